"""Where the agent's commands run: a directory for each session."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path


def digest(session_key: str) -> str:
    """Return 12 hexadecimal digits that stand for a session key in names and paths."""
    return hashlib.sha256(session_key.encode()).hexdigest()[:12]


def session_dir(workdir: Path, session_key: str) -> Path:
    """Return the directory in which a session's commands run.

    Args:
        workdir: ``services.agent.workdir``, or the run directory's ``work/``.
        session_key: names the session; its readable part is in the directory's name.
    """
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", session_key).strip("-")[:40] or "session"
    return workdir / f"{readable}-{digest(session_key)}"
