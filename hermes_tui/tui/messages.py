"""What widgets tell the screen; in the past tense, each one line of meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.message import Message


@dataclass
class MessageTyped(Message):
    """The person sent what was in the prompt."""

    text: str


@dataclass
class EpisodePicked(Message):
    """A session, or one episode of it, was picked in the list."""

    session_id: str
    episode_id: str
    """Empty for the session itself."""


@dataclass
class SiblingClicked(Message):
    """One of several replies was clicked."""

    place: int
    """Its place, from 0."""


@dataclass
class CursorMoved(Message):
    """Another token is under the cursor of the token view."""

    index: int


@dataclass
class HintPressed(Message):
    """An action was clicked in the footer, or chosen in the palette."""

    action_id: str


@dataclass
class FindWanted(Message):
    """Something is to be found in a pane."""

    last: str
    """What was looked for before."""
    pane: Literal["tokens", "chat"]
    """Where."""


@dataclass
class FilterWanted(Message):
    """Only some of the sessions are to be listed."""

    text: str
    """What they are filtered by now; empty lists all."""


@dataclass
class ExportWanted(Message):
    """An episode is to be written to a file."""

    episode_id: str
    """Empty when none is shown."""


@dataclass
class CopyWanted(Message):
    """Text is to go to the clipboard."""

    text: str
    what: str
    """What it is, for the toast."""


@dataclass
class LogSearchWanted(Message):
    """Something is to be found in the log, or only lines with something are to be shown."""

    kind: Literal["find", "filter"]
    last: str
    """What it was before."""


@dataclass
class LogOpened(Message):
    """The log of a process is to be read."""

    process: str


@dataclass
class RollbackWanted(Message):
    """An earlier version is to be made current; which, is still to be asked."""


@dataclass
class RestartWanted(Message):
    """One process is to be restarted."""

    process: str


@dataclass
class TrainingHeld(Message):
    """Training is to be held, or to go on."""
