"""``/v1/responses``: OpenAI's Responses, stateless: the conversation is in each request."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import read_body, sse
from hermes_tui_training.inference_gateway.apis.base import ResponseFormat, TokenText
from hermes_tui_training.inference_gateway.apis.responses_input import (
    ResponsesRequest,
    responses_plan,
)
from hermes_tui_training.inference_gateway.completion_run import (
    CompletionDelta,
    CompletionResult,
    CompletionRun,
)
from hermes_tui_training.inference_gateway.context import require_session
from hermes_tui_training.inference_gateway.streaming import begin


async def responses(request: Request) -> Response:
    """``POST /v1/responses``."""
    session = await require_session(request)
    body = await read_body(request, ResponsesRequest)

    def make_format(run: CompletionRun, *, model: str, token_text: TokenText) -> ResponsesFormat:
        return ResponsesFormat(run, model=model, token_text=token_text, request=body)

    return await begin(request, session, responses_plan(body), make_format)


class ResponsesFormat(ResponseFormat):
    """The answers of one response: a list of items that grows."""

    def __init__(
        self, run: CompletionRun, *, model: str, token_text: TokenText, request: ResponsesRequest
    ) -> None:
        super().__init__(run, model=model, token_text=token_text)
        self._request = request
        self._sequence = itertools.count()
        self._items: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._num_sent_logprobs = 0

    # -- whole ------------------------------------------------------------------------------

    def answer(self, deltas: Sequence[CompletionDelta], result: CompletionResult) -> dict[str, Any]:
        """Return the whole response as one JSON object."""
        for delta in deltas:
            self._keep_logprobs(delta)
        for _ in self._finish(result.message, result.finish_reason):
            pass
        return self._response(_status(result.finish_reason))

    def _response(self, status: str, error: ApiError | None = None) -> dict[str, Any]:
        plan, request = self.plan, self._request
        body = {
            "id": self.run.completion_id,
            "object": "response",
            "created_at": int(self.run.created_at),
            "status": status,
            "error": {"code": "server_error", "message": error.message} if error else None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self.model,
            "output": self._items,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": plan.temperature,
            "text": {"format": (request.text and request.text.format) or {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_p": plan.top_p,
            "truncation": "disabled",
            "usage": None if status == "in_progress" else self._usage(),
        }
        return body if status == "in_progress" else self.with_token_ids(body)

    def _usage(self) -> dict[str, Any]:
        prompt, sampled = self.num_prompt_tokens, len(self.run.token_ids)
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + sampled,
        }

    # -- streamed ---------------------------------------------------------------------------

    def start_events(self) -> Iterable[bytes]:
        """Yield that the response was created and runs."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def delta_events(self, delta: CompletionDelta) -> Iterable[bytes]:
        """Yield what the items gained."""
        self._keep_logprobs(delta)
        return self._grow(delta.message_delta)

    def end_events(self, result: CompletionResult) -> Iterable[bytes]:
        """Yield the rest, and the whole response."""
        yield from self._finish(result.message_delta, result.finish_reason)
        status = _status(result.finish_reason)
        yield self._event(f"response.{status}", response=self._response(status))

    def error_events(self, error: ApiError) -> Iterable[bytes]:
        """Yield the response as it broke off."""
        yield self._event("response.failed", response=self._response("failed", error))

    def _event(self, kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(self._sequence), **fields}, event=kind)

    def _item_event(self, kind: str, **fields: Any) -> bytes:
        """Return an event about the last item."""
        index, item_id = len(self._items) - 1, self._items[-1]["id"]
        return self._event(f"response.{kind}", output_index=index, item_id=item_id, **fields)

    def _keep_logprobs(self, delta: CompletionDelta) -> None:
        if self.plan.logprobs:
            self._logprobs += self.logprob_entries(delta)

    def _grow(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        """Add a chat delta to the items; yield the events for what they gained."""
        if thought := delta.get("reasoning_content"):
            yield from self._open("reasoning")
            yield from self._add_text("reasoning_text", thought)
        if text := delta.get("content"):
            yield from self._open("message")
            new = self._logprobs[self._num_sent_logprobs :]
            self._num_sent_logprobs = len(self._logprobs)
            yield from self._add_text("output_text", text, logprobs=new)
        for call in delta.get("tool_calls") or ():
            yield from self._add_call(call)

    def _finish(self, delta: Mapping[str, Any], finish_reason: str) -> Iterator[bytes]:
        """Add the last delta and close the last item; there is always one."""
        yield from self._grow(delta)
        if not self._items:
            yield from self._open("message")
        yield from self._close(_status(finish_reason))

    def _open(self, kind: str) -> Iterator[bytes]:
        """Begin an item of text, unless the last one is of that kind."""
        last = self._items[-1] if self._items else None
        if last is not None and last["type"] == kind and last["status"] == "in_progress":
            return
        yield from self._close()
        if kind == "reasoning":
            item: dict[str, Any] = {"id": _new_id("rs_"), "type": kind, "summary": []}
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        else:
            item = {"id": _new_id("msg_"), "type": kind, "role": "assistant"}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._items.append(item | {"status": "in_progress", "content": []})
        yield self._event(
            "response.output_item.added", output_index=len(self._items) - 1, item=self._items[-1]
        )
        self._items[-1]["content"].append(part)
        yield self._item_event("content_part.added", content_index=0, part=part)

    def _add_text(self, kind: str, text: str, **fields: Any) -> Iterator[bytes]:
        self._items[-1]["content"][0]["text"] += text
        yield self._item_event(f"{kind}.delta", content_index=0, delta=text, **fields)

    def _add_call(self, call: Mapping[str, Any]) -> Iterator[bytes]:
        yield from self._close()
        function = call["function"]
        item = {
            "id": _new_id("fc_"),
            "type": "function_call",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": "",
            "status": "in_progress",
        }
        self._items.append(item)
        yield self._event(
            "response.output_item.added", output_index=len(self._items) - 1, item=item
        )
        item["arguments"] = function["arguments"]
        yield self._item_event("function_call_arguments.delta", delta=function["arguments"])

    def _close(self, status: str = "completed") -> Iterator[bytes]:
        """End the last item, if there is one that is open."""
        if not self._items or self._items[-1]["status"] != "in_progress":
            return
        item = self._items[-1]
        if item["type"] == "function_call":
            yield self._item_event(
                "function_call_arguments.done", name=item["name"], arguments=item["arguments"]
            )
        else:
            part = item["content"][0]
            fields = {"content_index": 0, "text": part["text"]}
            if part["type"] == "output_text":
                part["logprobs"] = list(self._logprobs)
                fields["logprobs"] = part["logprobs"]
            yield self._item_event(f"{part['type']}.done", **fields)
            yield self._item_event("content_part.done", content_index=0, part=part)
        item["status"] = status
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def _status(finish_reason: str) -> str:
    """Return how a response ended: one that was cut is incomplete."""
    return "incomplete" if finish_reason == "length" else "completed"
