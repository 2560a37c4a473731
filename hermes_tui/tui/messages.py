"""Messages that widgets post to their screen and to the app."""

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

    index: int
    """Which reply, from 0."""


@dataclass
class CursorMoved(Message):
    """Another token is under the cursor of the token view."""

    index: int


@dataclass
class ActionPressed(Message):
    """An action was clicked in the footer, or chosen in the palette."""

    action_id: str


@dataclass
class FindRequested(Message):
    """Something is to be found in a pane."""

    last: str
    """What was looked for before."""
    pane: Literal["tokens", "chat"]
    """Where."""


@dataclass
class FilterRequested(Message):
    """Only some of the sessions are to be listed."""

    text: str
    """What they are filtered by now; empty lists all."""


@dataclass
class ExportRequested(Message):
    """An episode is to be written to a file."""

    episode_id: str
    """Empty when none is shown."""


@dataclass
class CopyRequested(Message):
    """Text is to go to the clipboard."""

    text: str
    what: str
    """What it is, for the toast."""


@dataclass
class LogSearchRequested(Message):
    """Something is to be found in the log, or only lines with something are to be shown."""

    kind: Literal["find", "filter"]
    last: str
    """What it was before."""


@dataclass
class LogOpened(Message):
    """The log of a process is to be read."""

    process: str


@dataclass
class RollbackRequested(Message):
    """An earlier version is to be made current; which, is still to be asked."""


@dataclass
class RestartRequested(Message):
    """One process is to be restarted."""

    process: str


@dataclass
class HoldToggled(Message):
    """Training is to be held, or to go on."""
