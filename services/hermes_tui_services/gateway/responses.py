"""A turn as an OpenAI response or chat completion: a stream of events, or one object."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import sse
from hermes_tui_services.api.events import (
    LIFTED,
    ApprovalAnswered,
    ApprovalRequested,
    ReasoningArrived,
    TextArrived,
    ToolCalled,
    ToolReturned,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    approval_to_json,
    tool_time,
)
from hermes_tui_services.gateway.output_items import OutputItems


@dataclass(slots=True, kw_only=True)
class ResponseBuilder:
    """Makes an OpenAI response of a turn's events.

    The stream has OpenAI's whole grammar, and AReaL's events ``response.function_call`` and
    ``response.function_call_output`` beside it.
    """

    model: str
    response_id: str = field(default_factory=lambda: f"resp-{secrets.token_hex(6)}")
    created_at: int = field(default_factory=lambda: int(time.time()))
    error: ApiError | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    _items: OutputItems = field(init=False)
    _sequence: int = -1

    def __post_init__(self) -> None:
        self._items = OutputItems(event=self._event)

    def add(self, event: TurnEvent) -> Iterator[dict[str, Any]]:
        """Add an event and yield the response events for it."""
        match event:
            case TurnStarted():
                yield self._begin(event)
            case TextArrived(text=text):
                yield from self._items.add_text(text)
            case ReasoningArrived(text=text):
                yield from self._items.add_reasoning(text)
            case ToolCalled(call_id=call_id, name=name, arguments=arguments):
                yield from self._items.add_call(call_id, name, arguments)
                call = {"name": name, "arguments": arguments, "call_id": call_id}
                yield self._event("response.function_call", **call)
            case ToolReturned(call_id=call_id, name=name, output=output):
                result = {"call_id": call_id, "name": name, "output": output}
                yield self._event("response.function_call_output", **result, **tool_time(event))
            case ApprovalRequested():
                yield self._event("response.approval_requested", **approval_to_json(event))
            case ApprovalAnswered():
                yield self._event("response.approval_answered", **approval_to_json(event))
            case TurnCompleted():
                self.metadata |= event.metadata
                status = "incomplete" if event.incomplete_reason else "completed"
                yield from self._items.finish(event.text, status)
                yield self._event("response.completed", response=self.response("completed"))
            case TurnFailed():
                self.error = event.error()
                self.metadata["usage"] = event.usage
                yield self._event("response.failed", response=self.response("failed"))

    def _begin(self, event: TurnStarted) -> dict[str, Any]:
        self.metadata["run_id"] = self._items.run_id = event.run_id
        joined = {"input": event.message, "started_at": event.started_at} if event.message else {}
        return self._event("response.created", response=self.response("in_progress"), **joined)

    def response(self, status: str) -> dict[str, Any]:
        """Return the response object."""
        metadata = {name: v for name, v in self.metadata.items() if name not in LIFTED}
        response = {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "output": list(self._items.items),
            "model": self.model,
            "metadata": metadata,
            "usage": self.metadata.get("usage"),
            "incomplete_details": self.metadata.get("incomplete_details"),
            "error": None,
            # Fields that the official clients' types require.
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        if self.error:
            response["error"] = self.error.body()["error"]
        return response

    def _event(self, event_type: str, /, **fields: Any) -> dict[str, Any]:
        self._sequence += 1
        return {"type": event_type, "sequence_number": self._sequence, **fields}


async def response_stream(
    builder: ResponseBuilder, events: AsyncGenerator[TurnEvent, None]
) -> AsyncGenerator[bytes, None]:
    """Yield a turn as OpenAI's server-sent events."""
    async with aclosing(events):
        async for event in events:
            for out in builder.add(event):
                yield sse(out, event=out["type"])


@dataclass(slots=True, kw_only=True)
class ChatBuilder:
    """Makes an OpenAI chat completion of a turn's events."""

    model: str
    include_usage: bool = False
    completion_id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    error: ApiError | None = None
    completed: TurnCompleted = field(default_factory=lambda: TurnCompleted(text=""))
    """How the turn ended; empty until then."""

    def add(self, event: TurnEvent) -> Iterator[dict[str, Any]]:
        """Add an event and yield the chunks for it."""
        match event:
            case TurnStarted():
                yield self._chunk({"role": "assistant", "content": ""})
            case TextArrived(text=text):
                self.texts.append(text)
                yield self._chunk({"content": text})
            case ReasoningArrived(text=text):
                self.reasoning.append(text)
                yield self._chunk({"reasoning_content": text})
            case TurnCompleted():
                self.completed = event
                if event.text and not self.texts:
                    yield self._chunk({"content": event.text})
                yield self._chunk({}, finish_reason=self._finish_reason)
                if self.include_usage:
                    yield {**self._base("chat.completion.chunk"), "choices": []} | self._usage()
            case TurnFailed():
                self.error = event.error()
                yield self.error.body()

    @property
    def _finish_reason(self) -> str:
        return "length" if self.completed.incomplete_reason else "stop"

    def completion(self) -> dict[str, Any]:
        """Return the whole chat completion."""
        message = {"role": "assistant", "content": self.completed.text or "".join(self.texts)}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        return {**self._base("chat.completion"), "choices": [choice]} | self._usage()

    def _usage(self) -> dict[str, Any]:
        """Return the usage; null when a part of it is unknown: clients take no null inside it."""
        usage = self.completed.usage
        names = ("input_tokens", "output_tokens", "total_tokens")
        read, sampled, total = (usage.get(name) for name in names)
        counts = {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": total}
        return {"usage": None if None in counts.values() else counts}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**self._base("chat.completion.chunk"), "choices": [choice]}

    def _base(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


async def chat_stream(
    builder: ChatBuilder, events: AsyncGenerator[TurnEvent, None]
) -> AsyncGenerator[bytes, None]:
    """Yield a turn as chat completion chunks; a turn that fails ends with an error object."""
    async with aclosing(events):
        async for event in events:
            for chunk in builder.add(event):
                yield sse(chunk)
    if builder.error is None:
        yield sse("[DONE]")
