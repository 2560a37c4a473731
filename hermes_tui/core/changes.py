"""A conversation's turns, and the changes that the front ends are notified of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter

from hermes_tui.core.models import EpisodeDetail, Token
from hermes_tui_training.api.types import Event
from hermes_tui_training.api.wire import SampledTokens

TurnStatus = Literal["running", "completed", "failed", "interrupted"]
"""Where a turn is in its life."""

Source = Literal["sent", "joined", "read"]
"""How a view knows a turn: it sent it, joined it while it ran, or read the record of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEvent:
    """Something that the trainer says has happened."""

    kind: str
    """Name in the past tense, such as ``completion.started``."""
    session_id: str = ""
    """The session that it happened in; empty for none."""
    episode_id: str = ""
    """The episode that it happened to; empty for none."""
    episode_ids: tuple[str, ...] = ()
    """The episodes of a step."""
    reason: str = ""
    """Why it happened; empty when that needs no reason."""
    num_prompt_tokens: int = 0
    """Length of a completion's prompt; 0 for every kind but its start."""
    sampled: SampledTokens | None = None
    """What ``completion.tokens`` carries; None for every other kind."""

    @classmethod
    def of(cls, event: Event) -> TrainerEvent:
        """Return an event of the trainer's feed, without what no view shows.

        Raises: ValueError: it carries something of another type than here.
        """
        names = ("session_id", "episode_id", "episode_ids", "reason", "num_prompt_tokens")
        values = {name: event.payload[name] for name in names if event.payload.get(name)}
        sampled = event.payload if event.kind == "completion.tokens" else None
        return _TRAINER_EVENT.validate_python({"kind": event.kind, "sampled": sampled, **values})


_TRAINER_EVENT = TypeAdapter(TrainerEvent)


@dataclass(slots=True, kw_only=True)
class TextPart:
    """Words of the agent; grows while they arrive."""

    text: str


@dataclass(slots=True, kw_only=True)
class ThoughtPart:
    """What the model thought before it spoke."""

    text: str


@dataclass(slots=True, kw_only=True)
class ToolPart:
    """A tool call of the agent and, once there, its result."""

    call_id: str
    name: str
    arguments: str
    result: str | None = None
    seconds: float | None = None
    """How long it took; None while it runs, and where that was not measured."""


Part = TextPart | ThoughtPart | ToolPart
"""A part of what the agent said and did."""


@dataclass(slots=True, kw_only=True)
class ChatTurn:
    """One turn as a view holds it: a user message and all that the agent did until its reply."""

    turn_id: str
    """Unique within the view."""
    session_id: str
    """Its session; empty before one was started."""
    user_text: str
    """What the user said."""
    parts: list[Part] = field(default_factory=list)
    """What the agent said and did, in order."""
    state: TurnStatus = "running"
    """Where it is in its life."""
    error: str = ""
    """Why it failed; empty when it did not."""
    episode_id: str = ""
    """The episode that it was recorded in; empty when nothing was recorded."""
    num_tokens: int = 0
    """Sampled tokens so far."""
    seconds: float = 0.0
    """How long the model took, with reading."""
    first_token_s: float | None = None
    """Seconds until its first token; None where that is not known."""
    sampling_s: float = 0.0
    """Seconds in which tokens came: without the model's reading, and without tools."""
    context_tokens: int = 0
    """Tokens of its last completion, the prompt's too; 0 where that is not known."""
    reading: int = 0
    """Tokens of the prompt that the model reads now; 0 when it reads none."""
    reading_since: float = 0.0
    """Since when it reads, seconds since the epoch."""
    started_at: float = 0.0
    """When it was sent, seconds since the epoch."""
    ended_at: float | None = None
    """When its end was seen, seconds since the epoch; None before, and for one that was read."""
    run_id: str = ""
    """Its id in the agent service; empty until the service sends it, and for recorded turns."""
    source: Source = "sent"
    """How this view knows of it."""
    num_updates: int = 0
    """Number of updates received; a reconnect resumes after them."""
    policy_version: int | None = None
    """Newest version among its tokens."""
    untrainable: tuple[str, ...] = ()
    """Reasons why completions of it can't be trained."""
    num_trainable: int = 0
    """Completions of it that can be trained."""
    _read_s: float = 0.0
    """Of its time so far, how much was not sampling."""

    def began_reading(self, num_tokens: int, now: float) -> None:
        """Note that the model reads a prompt, from a moment on in seconds since the epoch."""
        self.reading, self.reading_since, self.context_tokens = num_tokens, now, num_tokens

    def sampled(self, num_tokens: int, now: float) -> None:
        """Note that tokens came."""
        if self.first_token_s is None:
            self.first_token_s = max(now - self.started_at, 0.0)
        if self.reading or not self.num_tokens:  # the next ones are timed from here
            self._read_s = now - self.started_at - self.sampling_s
            self.reading = 0
        self.num_tokens += num_tokens
        self.context_tokens += num_tokens
        self.seconds = max(now - self.started_at, 0.0)
        self.sampling_s = max(self.seconds - self._read_s, 0.0)

    def covers(self, read: ChatTurn) -> bool:
        """Return whether this live turn is the one that a recorded turn was read from."""
        if self.source == "read" or read.source != "read":
            return False
        if read.run_id:
            return read.run_id == self.run_id
        return self.ran_at(read.started_at)

    def ran_at(self, at: float) -> bool:
        """Return whether it ran at a time, in seconds since the epoch."""
        return self.started_at <= at and (self.ended_at is None or at <= self.ended_at)

    @property
    def text(self) -> str:
        """The agent's words without tool calls."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    def add_text(self, delta: str) -> None:
        """Append words of the agent."""
        if self.parts and isinstance(self.parts[-1], TextPart):
            self.parts[-1].text += delta
        else:
            self.parts.append(TextPart(text=delta))

    def add_thought(self, delta: str) -> None:
        """Append words that the model thinks."""
        if self.parts and isinstance(self.parts[-1], ThoughtPart):
            self.parts[-1].text += delta
        else:
            self.parts.append(ThoughtPart(text=delta))


@dataclass(slots=True, kw_only=True)
class QueuedMessage:
    """A message that waits for the end of a turn."""

    message_id: str
    """Unique within the view."""
    text: str
    """What will be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsChanged:
    """Rows of the state were replaced: sessions, episodes, processes, trainer, steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrew:
    """The log that is read has new lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnChanged:
    """A turn began, grew or ended."""

    turn: ChatTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """A turn that this view followed has ended, and what was recorded of it was read."""

    turn: ChatTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsLoaded:
    """The recorded turns of a session were read."""

    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChanged:
    """The messages that wait for a turn's end are others."""

    sent: QueuedMessage | None = None
    """The message that goes now; None when one was added, changed or removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensSampled:
    """The model sampled tokens just now."""

    session_id: str
    episode_id: str
    completion_id: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLoaded:
    """An episode was read with its completions."""

    detail: EpisodeDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingApproval:
    """A question of the agent that waits for a person's answer."""

    session_id: str
    approval_id: str
    question: str
    """What may happen, in lines; whatever could not be seen in it is written out."""
    choices: tuple[str, ...]
    """What may be answered."""
    free: bool = False
    """Whether any text will do: then the choices are suggestions."""
    expires_at: float | None = None
    """When silence becomes a no, seconds since the epoch; None is never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A sentence for the person."""

    text: str
    severity: Literal["information", "warning", "error"] = "information"
    episode_id: str = ""
    """The episode whose new score it tells of; ``Rewards.countdown`` says the same at any time."""
    replaces: bool = False
    """Whether the toasts before it go: only the newest matters."""
    refuses_score: bool = False
    """Whether it says why an episode takes no score."""


Change = (
    RowsChanged
    | LogGrew
    | TurnChanged
    | TurnEnded
    | TurnsLoaded
    | QueueChanged
    | TokensSampled
    | EpisodeLoaded
    | PendingApproval
    | Notice
)
"""What a front end can be notified of."""
