"""What is wrong with a command that was typed in ``--plain``."""

from __future__ import annotations

from hermes_tui.core.sanitize import clean


class Usage(Exception):
    """A command cannot be used like this; the text says how it can."""


def index_of(text: str, count: int, what: str) -> int:
    """Return the index that a typed number means.

    Raises: Usage: there is no such number.
    """
    if text.isdecimal() and 1 <= int(text) <= count:
        return int(text) - 1
    known = f"there are 1 to {count}" if count else "there is none"
    raise Usage(f"no {what} “{clean(text)}”: {known}; /sessions lists them")
