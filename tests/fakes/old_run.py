"""What an earlier version left behind: ``fixtures/old_run``, as files that a stack can use."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

OLD_RUN = Path(__file__).parents[1] / "fixtures" / "old_run"


def copy_old_run(folder: Path) -> Path:
    """Copy it, its databases as files again; return the folder, with hermes.toml and run-dir."""
    shutil.copytree(OLD_RUN, folder)
    for script in (folder / "run-dir").glob("*.sql"):
        with closing(sqlite3.connect(script.with_suffix(".db"))) as database:
            database.executescript(script.read_text(encoding="utf-8"))
        script.unlink()
    (folder / "run-dir" / "keys.json").chmod(0o600)
    return folder
