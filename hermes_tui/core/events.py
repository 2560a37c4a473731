"""What happens in the stack and in a conversation, as the front ends are told of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from hermes_tui.core.rows import CompletionRow, EpisodeDetail, Token, Wire

Turned = Literal["running", "completed", "failed", "interrupted"]
"""How far a turn is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackEvent:
    """Something that a service says has happened."""

    kind: str
    """Name in the past tense, such as ``completion.started``."""
    data: Wire
    """Its fields."""


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


Part = TextPart | ThoughtPart | ToolPart
"""A piece of what the agent said and did."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """One user message and all that the agent did until its reply."""

    turn_id: str
    """Unique within the view."""
    session_id: str
    """Its session; empty before one was started."""
    user_text: str
    """What the user said."""
    parts: list[Part] = field(default_factory=list)
    """What the agent said and did, in order."""
    state: Turned = "running"
    """How far it is."""
    error: str = ""
    """Why it failed; empty when it did not."""
    episode_id: str = ""
    """The episode that it was recorded in; empty when nothing was recorded."""
    num_tokens: int = 0
    """Sampled tokens so far."""
    seconds: float = 0.0
    """How long sampling took."""
    started_at: float = 0.0
    """When it was sent, seconds since the epoch."""
    policy_version: int | None = None
    """Newest version among its tokens."""
    untrainable: tuple[str, ...] = ()
    """Reasons why completions of it can't be trained."""

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


def recorded_turns(detail: EpisodeDetail) -> list[Turn]:
    """Return the turns of an episode as its recorded completions tell them.

    A completion whose last message is the user's begins a turn; one that follows a tool's result
    goes on with it. Calls beside the agent's own turns are left out.
    """
    turns: list[Turn] = []
    for completion in detail.completions:
        if completion.kind != "turn":
            continue
        messages = list(completion.request_messages)
        results = _trailing_tool_results(messages)
        if not turns or not results:
            turns.append(_recorded_turn(detail, completion, messages))
        else:
            _fill_results(turns[-1], results)
        _add_completion(turns[-1], completion)
    return turns


def _trailing_tool_results(messages: list[Wire]) -> dict[str, str]:
    results: dict[str, str] = {}
    for message in reversed(messages):
        if message.get("role") != "tool":
            break
        results[str(message.get("tool_call_id"))] = message_text(message)
    return results


def _recorded_turn(
    detail: EpisodeDetail, completion: CompletionRow, messages: Iterable[Wire]
) -> Turn:
    users = [m for m in messages if m.get("role") == "user"]
    return Turn(
        turn_id=completion.completion_id,
        session_id=detail.row.session_id,
        user_text=message_text(users[-1]) if users else "",
        state="completed",
        episode_id=detail.row.episode_id,
    )


def _fill_results(turn: Turn, results: dict[str, str]) -> None:
    for part in turn.parts:
        if isinstance(part, ToolPart) and part.call_id in results:
            part.result = results[part.call_id]


def _add_completion(turn: Turn, completion: CompletionRow) -> None:
    if thought := completion.message.get("reasoning_content"):
        turn.add_thought(str(thought))
    if text := message_text(completion.message):
        turn.add_text(text)
    for call in completion.message.get("tool_calls") or ():
        function = call.get("function") or {}
        turn.parts.append(
            ToolPart(
                call_id=str(call.get("id")),
                name=str(function.get("name")),
                arguments=str(function.get("arguments") or ""),
            )
        )
    add_measures(turn, completion)
    if completion.finish_reason is None:
        turn.state = "interrupted"


def add_measures(turn: Turn, completion: CompletionRow) -> None:
    """Add a finished completion's tokens, seconds and version to its turn."""
    turn.num_tokens += len(completion.tokens)
    turn.seconds += completion.total_s
    versions = [t.policy_version for t in completion.tokens if t.policy_version is not None]
    turn.policy_version = max(versions, default=turn.policy_version)
    if completion.untrainable_reason:
        turn.untrainable = (*turn.untrainable, completion.untrainable_reason)


def message_text(message: Wire) -> str:
    """Return the text of an OpenAI message, whose content is a string or a list of parts."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else ()
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsChanged:
    """Rows of the state were replaced: sessions, episodes, processes, trainer, steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrew:
    """The log that is read has new lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnChanged:
    """A turn began, grew or ended."""

    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsLoaded:
    """The recorded turns of a session were read."""

    session_id: str


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
class ApprovalRequested:
    """The agent asks before it does something."""

    session_id: str
    approval_id: str
    question: str
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


Change = (
    RowsChanged
    | LogGrew
    | TurnChanged
    | TurnsLoaded
    | TokensSampled
    | EpisodeLoaded
    | ApprovalRequested
    | Notice
)
"""What a front end can be told."""
