"""What a turn tells whoever follows it: the gateway's events as types, read from the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_tui_services.api.protocol import INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """The turn was taken; it may wait behind others of its session."""

    run_id: str
    """Names the turn, for every client that follows it."""
    response_id: str = ""
    message: str = ""
    """What the user said; told only to a client that joins a turn which another one sent."""
    started_at: float | None = None
    """When it was sent, Unix seconds; told like the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextArrived:
    """The next piece of the reply."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningArrived:
    """The next piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """The agent called a tool."""

    call_id: str
    name: str
    arguments: str
    """JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned:
    """A tool came back."""

    call_id: str
    output: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested:
    """The turn waits for a person."""

    approval_id: str
    description: str
    choices: tuple[str, ...]
    """What may be answered; for ``clarify`` suggestions, any text will do."""
    kind: str = "command"
    """``command``: may this run? ``clarify``: what is meant?"""
    command: str | None = None
    expires_at: float | None = None
    """Unix seconds; silence until then is a no. None waits for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswered:
    """Somebody answered what the turn waited for; it goes on."""

    approval_id: str
    choice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCompleted:
    """The turn is over and part of the conversation."""

    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, int] = field(default_factory=dict)
    incomplete_reason: str | None = None
    """``max_output_tokens`` or ``max_turns`` when the agent had to stop; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    """The turn is over without an answer; it is no part of the conversation, unless it was
    interrupted.
    """

    message: str
    code: str | None = None
    text: str = ""
    """What there was of the reply."""

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped: then the conversation keeps its text."""
        return self.code == INTERRUPTED


TurnUpdate = (
    TurnStarted
    | TextArrived
    | ReasoningArrived
    | ToolCalled
    | ToolReturned
    | ApprovalRequested
    | ApprovalAnswered
    | TurnCompleted
    | TurnFailed
)
"""What a turn tells while it runs: first TurnStarted, last TurnCompleted or TurnFailed."""


def update_of(data: dict[str, Any]) -> TurnUpdate | None:
    """Return what a response event says; None for kinds that add nothing."""
    match data["type"]:
        case "response.created":
            response = data["response"]
            return TurnStarted(
                run_id=response["metadata"].get("run_id", ""),
                response_id=response["id"],
                message=data.get("input", ""),
                started_at=data.get("started_at"),
            )
        case "response.output_text.delta":
            return TextArrived(text=data["delta"])
        case "response.reasoning_text.delta":
            return ReasoningArrived(text=data["delta"])
        case "response.function_call":
            return ToolCalled(
                call_id=data["call_id"], name=data["name"], arguments=data["arguments"]
            )
        case "response.function_call_output":
            return ToolReturned(call_id=data["call_id"], name=data["name"], output=data["output"])
        case "response.approval_requested":
            return ApprovalRequested(
                approval_id=data["approval_id"],
                kind=data["kind"],
                description=data["description"],
                choices=tuple(data["choices"]),
                expires_at=data.get("expires_at"),
                command=data.get("command"),
            )
        case "response.approval_answered":
            return ApprovalAnswered(approval_id=data["approval_id"], choice=data["choice"])
        case "response.completed":
            return _completed(data["response"])
        case "response.failed":
            response = data["response"]
            error = response["error"]
            return TurnFailed(message=error["message"], code=error["code"], text=_text_of(response))
    return None


def _completed(response: dict[str, Any]) -> TurnCompleted:
    return TurnCompleted(
        text=_text_of(response),
        metadata=response["metadata"],
        usage=response["usage"] or {},
        incomplete_reason=(response["incomplete_details"] or {}).get("reason"),
    )


def _text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )
