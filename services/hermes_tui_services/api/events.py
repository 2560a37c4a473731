"""What happens in a turn: one tagged union, used by the agent, every role, and every client.

Between the roles an event is one JSON object in a stream of server-sent events (``event_to_json``):

========================  ======================================================================
``type``                  fields
========================  ======================================================================
``accepted``              ``run_id``: the turn was queued (always first); to a reader that joins
                          it later also ``message`` and ``started_at`` (Unix seconds)
``delta``                 ``text``: the next part of the reply
``reasoning``             ``text``: the next part of the model's reasoning
``tool_call``             ``call_id``, ``name``, ``args`` (JSON text)
``tool_result``           ``call_id``, ``name``, ``result``, ``seconds`` when it is known
``approval_requested``    ``approval_id``, ``kind`` ("command" or "clarify"), ``command``,
                          ``description``, ``choices``, ``expires_at`` (Unix seconds)
``approval_answered``     ``approval_id``, ``choice``
``relay``                 ``status``, ``headers``: the agent passes another server's answer on
``bytes``                 ``data`` (base64): the next part of that answer
``done``                  ``summary``, ``metadata``, ``messages`` (None: made from the events)
``failed``                ``status`` (HTTP), ``error`` (OpenAI's shape), ``interrupted``,
                          ``usage`` when it is known
========================  ======================================================================

Clients of the agent gateway get them as OpenAI's response events (``event_from_response``).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_tui_common.errors import ApiError
from hermes_tui_services.api.protocol import INTERRUPTED, ChatMessage

# Dataclasses, not pydantic models: a model's text may hold half of a surrogate pair, which pydantic
# refuses as a str, and one event is made for every token.


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """The turn was accepted; it may wait behind others of its session."""

    run_id: str
    """Names the turn, for every client that follows it."""
    response_id: str = ""
    """The gateway's name for the answer; empty between the roles."""
    message: str = ""
    """What the user said; only for a client that joins a turn which another one sent."""
    started_at: float | None = None
    """When the turn left the queue, Unix seconds; None unless ``message`` is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextArrived:
    """The next part of the reply."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningArrived:
    """The next part of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """The agent called a tool."""

    call_id: str
    """Pairs the call with its result."""
    name: str
    arguments: str
    """JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned:
    """A tool came back."""

    call_id: str
    """The call that it answers."""
    output: str
    name: str = ""
    seconds: float | None = None
    """How long it took, a person's answer included; None when that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested:
    """The turn waits for a person."""

    approval_id: str
    description: str
    choices: tuple[str, ...]
    """The allowed answers; for ``clarify`` they are suggestions, and any text is allowed."""
    kind: str = "command"
    """``command``: may this run? ``clarify``: what is meant?"""
    command: str | None = None
    """The command that would run; None for ``clarify``."""
    expires_at: float | None = None
    """Unix seconds; no answer by then is a no. None waits for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswered:
    """Somebody answered the approval request; the turn goes on."""

    approval_id: str
    choice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStarted:
    """The agent passes another server's answer on, byte for byte (AReaL's ``StreamResponse``)."""

    status: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesRelayed:
    """The next part of the answer that is passed on."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCompleted:
    """The turn is over and part of the conversation."""

    text: str
    """The reply."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the agent reports about the turn; ``usage`` and ``incomplete_details`` are OpenAI's."""
    messages: list[ChatMessage] | None = None
    """From the worker: what the turn adds to the conversation after the user's message. None: it
    is put together from the events."""

    @property
    def usage(self) -> Mapping[str, int]:
        """Token counts under OpenAI's names; empty when the agent gave none."""
        return self.metadata.get("usage") or {}

    @property
    def incomplete_reason(self) -> str | None:
        """``max_output_tokens`` or ``max_turns`` when the agent had to stop; else None."""
        reason: str | None = (self.metadata.get("incomplete_details") or {}).get("reason")
        return reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    """The turn is over without a whole reply; the conversation keeps what it had said."""

    message: str
    """What went wrong, for a person."""
    code: str | None = None
    """Machine-readable reason, or None."""
    param: str | None = None
    """The request field at fault, or None."""
    status: int = 502
    """HTTP status. A client's stream does not carry it: there it is the default."""
    text: str = ""
    """The part of the reply that arrived; only on a client's side."""
    usage: Mapping[str, int] | None = None
    """Tokens of the turn's model calls under OpenAI's names; None when they are not known."""

    @classmethod
    def of(cls, error: ApiError) -> TurnFailed:
        """Return the end of a turn that failed with an error."""
        return cls(
            message=error.message,
            code=error.code,
            param=error.param,
            status=error.status,
            usage=error.usage if isinstance(error, TurnError) else None,
        )

    def error(self) -> ApiError:
        """Return what went wrong as an HTTP error."""
        return ApiError(self.status, self.message, code=self.code, param=self.param)

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped."""
        return self.code == INTERRUPTED


class TurnError(ApiError):
    """What an agent raises when a turn failed and it knows what the turn's model calls used.

    Args:
        cause: what went wrong.
        usage: as in TurnFailed.
    """

    def __init__(self, cause: ApiError, usage: Mapping[str, int] | None) -> None:
        super().__init__(cause.status, cause.message, code=cause.code, param=cause.param)
        self.usage = usage


TurnEnd = TurnCompleted | TurnFailed
"""The events that end a turn; for ``isinstance`` too."""

TurnEvent = (
    TurnStarted
    | TextArrived
    | ReasoningArrived
    | ToolCalled
    | ToolReturned
    | ApprovalRequested
    | ApprovalAnswered
    | RelayStarted
    | BytesRelayed
    | TurnEnd
)
"""One thing that happened in a turn: first TurnStarted, last a TurnEnd."""


def turn_interrupted() -> TurnFailed:
    """Return the end of a turn that was stopped."""
    text = "The turn was interrupted; its text so far is kept."
    return TurnFailed(message=text, code=INTERRUPTED, status=409)


def approval_to_json(event: ApprovalRequested | ApprovalAnswered) -> dict[str, Any]:
    """Return an approval event's fields, which have the same names on every wire."""
    if isinstance(event, ApprovalAnswered):
        return {"approval_id": event.approval_id, "choice": event.choice}
    fields = {
        "approval_id": event.approval_id,
        "kind": event.kind,
        "description": event.description,
        "choices": list(event.choices),
        "expires_at": event.expires_at,
    }
    return fields if event.command is None else {**fields, "command": event.command}


def tool_time(event: ToolReturned) -> dict[str, float]:
    """Return how long a tool took, as a field that is left out when that is not known."""
    return {} if event.seconds is None else {"seconds": round(event.seconds, 3)}


def event_to_json(event: TurnEvent) -> dict[str, Any]:
    """Return an event as the roles send it to each other; the module's docstring lists them."""
    match event:
        case TurnStarted(run_id=run_id):
            return {"type": "accepted", "run_id": run_id, **_joined(event)}
        case TextArrived(text=text):
            return {"type": "delta", "text": text}
        case ReasoningArrived(text=text):
            return {"type": "reasoning", "text": text}
        case ToolCalled(call_id=call_id, name=name, arguments=arguments):
            return {"type": "tool_call", "call_id": call_id, "name": name, "args": arguments}
        case ToolReturned(call_id=call_id, name=name, output=output):
            result = {"type": "tool_result", "call_id": call_id, "name": name, "result": output}
            return result | tool_time(event)
        case ApprovalRequested():
            return {"type": "approval_requested", **approval_to_json(event)}
        case ApprovalAnswered():
            return {"type": "approval_answered", **approval_to_json(event)}
        case RelayStarted(status=status, headers=headers):
            return {"type": "relay", "status": status, "headers": dict(headers)}
        case BytesRelayed(data=data):
            return {"type": "bytes", "data": base64.b64encode(data).decode()}
        case TurnCompleted(text=text, metadata=metadata, messages=messages):
            return {
                "type": "done",
                "summary": text,
                "metadata": dict(metadata),
                "messages": messages,
            }
        case TurnFailed():
            return {
                "type": "failed",
                "status": event.status,
                **event.error().body(),
                "interrupted": event.interrupted,
                **({"usage": dict(event.usage)} if event.usage else {}),
            }


def _joined(event: TurnStarted) -> dict[str, Any]:
    if not event.message:
        return {}
    return {"message": event.message, "started_at": event.started_at}


def event_from_json(data: Mapping[str, Any]) -> TurnEvent:
    """Return the event that another role sent. Raises: ValueError, KeyError: it is none."""
    match data["type"]:
        case "accepted":
            return TurnStarted(
                run_id=data["run_id"],
                message=data.get("message", ""),
                started_at=data.get("started_at"),
            )
        case "delta":
            return TextArrived(text=data["text"])
        case "reasoning":
            return ReasoningArrived(text=data["text"])
        case "tool_call":
            return ToolCalled(call_id=data["call_id"], name=data["name"], arguments=data["args"])
        case "tool_result":
            return ToolReturned(
                call_id=data["call_id"],
                name=data["name"],
                output=data["result"],
                seconds=data.get("seconds"),
            )
        case "approval_requested":
            return _approval_requested(data)
        case "approval_answered":
            return ApprovalAnswered(approval_id=data["approval_id"], choice=data["choice"])
        case "relay":
            return RelayStarted(status=data["status"], headers=data["headers"])
        case "bytes":
            return BytesRelayed(data=base64.b64decode(data["data"]))
        case "done":
            return TurnCompleted(
                text=data["summary"], metadata=data["metadata"], messages=data["messages"]
            )
        case "failed":
            return _failed(data["error"], status=data["status"], usage=data.get("usage"))
        case other:
            raise ValueError(f"there is no turn event of type {other!r}")


def event_from_response(data: Mapping[str, Any]) -> TurnEvent | None:
    """Return what one of the gateway's response events says; None for kinds that add nothing."""
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
            return ToolReturned(
                call_id=data["call_id"],
                name=data["name"],
                output=data["output"],
                seconds=data.get("seconds"),
            )
        case "response.approval_requested":
            return _approval_requested(data)
        case "response.approval_answered":
            return ApprovalAnswered(approval_id=data["approval_id"], choice=data["choice"])
        case "response.completed":
            response = data["response"]
            lifted = {name: v for name in LIFTED if (v := response[name]) is not None}
            return TurnCompleted(
                text=_text_of(response), metadata={**response["metadata"], **lifted}
            )
        case "response.failed":
            response = data["response"]
            return _failed(response["error"], text=_text_of(response), usage=response.get("usage"))
    return None


LIFTED = ("usage", "incomplete_details")
"""Names in a turn's metadata that are fields of their own in OpenAI's response."""


def _approval_requested(data: Mapping[str, Any]) -> ApprovalRequested:
    return ApprovalRequested(
        approval_id=data["approval_id"],
        kind=data["kind"],
        description=data["description"],
        choices=tuple(data["choices"]),
        expires_at=data.get("expires_at"),
        command=data.get("command"),
    )


def _failed(error: Mapping[str, Any], **more: Any) -> TurnFailed:
    return TurnFailed(
        message=error["message"], code=error["code"], param=error.get("param"), **more
    )


def _text_of(response: Mapping[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )
