"""What the program prints once the screen is gone: what goes on, and what was not sent."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from hermes_tui.core.sanitize import clean, one_line, shorten
from hermes_tui.core.state import ViewState

MAX_UNSENT_CHARS = 2000
"""Longest text that was not sent to print whole."""


def goes_on(view: ViewState, folder: Path, command: str) -> str:
    """Return what goes on without the screen, and the commands that open and end it.

    Args:
        view: the stack as it was when the screen left; empty when it left during the start.
        folder: the run directory.
        command: what opens the screen again, such as ``hermes-tui run.dir=/tmp/x``.
    """
    program, *words = shlex.split(command)
    stop = shlex.join([program, "stop", *words])
    lines = [f"The stack goes on in {one_line(str(folder))}."]
    speaking = [
        f"“{one_line(view.title(session_id))}”"
        for session_id in view.sessions
        if view.running_turn(session_id)
    ]
    if speaking:
        lines.append(f"The agent is still replying in {', '.join(speaking)}.")
    width = max(len(command), len(stop))
    lines += [f"  {command:<{width}}  opens it again", f"  {stop:<{width}}  ends it"]
    return "\n".join(lines)


def not_sent(texts: Iterable[str]) -> str:
    """Return messages that were typed and not sent, so that they can be copied; empty for none."""
    kept = [shorten(clean(text).strip(), MAX_UNSENT_CHARS) for text in texts if text.strip()]
    return "\n".join(["Not sent:", *kept]) if kept else ""
