"""Messages that widgets post to their screen and to the app."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.message import Message


@dataclass
class MessageTyped(Message):
    """The person sent the text in the prompt."""

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
    """An action was clicked, or chosen in the palette."""

    action_id: str


@dataclass
class FindRequested(Message):
    """The person wants to find something in a pane."""

    last: str
    """The last search."""
    pane: Literal["tokens", "chat"]
    """The pane to search."""


class RetryRequested(Message):
    """The person wants another reply to the last message."""


class EditRequested(Message):
    """The person wants to say the last message in other words."""


class RenameRequested(Message):
    """The person wants to give the marked session a name."""


class DeleteRequested(Message):
    """The person wants the marked session forgotten."""


class ComparisonRequested(Message):
    """The person wants to go back to a comparison that was left."""


@dataclass
class FilterRequested(Message):
    """The person wants to filter the sessions."""

    text: str
    """The filter in force; empty lists all."""


@dataclass
class ExportRequested(Message):
    """The person wants an episode written to a file."""

    episode_id: str
    """Empty when none is shown."""


@dataclass
class CopyRequested(Message):
    """The person wants text on the clipboard."""

    text: str
    what: str
    """What it is, for the toast."""


@dataclass
class LogSearchRequested(Message):
    """The person wants to search or to filter the log."""

    kind: Literal["find", "filter"]
    last: str
    """The search or filter in force."""


@dataclass
class LogOpened(Message):
    """The person wants to read the log of a process."""

    process: str


@dataclass
class LogFollowed(Message):
    """The cursor stands on a process, whose log is shown beside it where there is room."""

    process: str


@dataclass
class RollbackRequested(Message):
    """The person wants to roll back to an earlier version, still to be chosen."""


@dataclass
class AnswersRequested(Message):
    """The person wants to choose the versions whose answers to the canary are compared."""


@dataclass
class StepPicked(Message):
    """The person wants to see the episodes of a step."""

    step: int
    """Its number."""


@dataclass
class VersionPicked(Message):
    """The person wants to see the step that made a version."""

    step: int
    """Its number."""


@dataclass
class RestartRequested(Message):
    """The person wants to restart a process."""

    process: str


@dataclass
class HoldToggled(Message):
    """The person wants to pause training, or to resume it."""
