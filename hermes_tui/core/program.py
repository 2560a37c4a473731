"""What a person types to run this program again."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

PROGRAM = "hermes-tui"
"""The program's name."""


def typed_program() -> str:
    """Return what runs this program from here: its name, or its path where the name is not found.

    Beside the running Python interpreter there is a copy; its path is relative where it lies below
    the working directory.
    """
    installed = Path(sys.executable).with_name(PROGRAM)
    if shutil.which(PROGRAM) or not installed.exists():
        return PROGRAM
    if not installed.is_relative_to(here := Path.cwd()):
        return str(installed)
    path = installed.relative_to(here)
    return f"./{path}" if path.parent == Path() else str(path)
