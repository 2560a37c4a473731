"""What the app hands to its screens, so that none of them has to know the app."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hermes_tui.tui.keys import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """Settled when the main screen opens; the same for all screens after that."""

    keys: Keys
    """The keys in force."""
    folder: Path
    """The run directory."""
    training: bool
    """Whether the stack has a trainer."""
