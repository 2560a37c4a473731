"""``/v1/messages``: Anthropic's Messages, so that agents written for them can be trained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import error_response, read_body, sse
from hermes_tui_training.inference_gateway.apis.anthropic_input import (
    CountTokensRequest,
    MessagesRequest,
    messages_plan,
)
from hermes_tui_training.inference_gateway.apis.base import ResponseFormat, TokenText
from hermes_tui_training.inference_gateway.completion_run import (
    CompletionDelta,
    CompletionResult,
    CompletionRun,
    rendered_prompt,
)
from hermes_tui_training.inference_gateway.context import require_session, services_of
from hermes_tui_training.inference_gateway.streaming import begin

KEY_HEADER = "x-api-key"
"""Where Anthropic's clients put the key; ``Authorization`` is taken too."""

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


async def messages(request: Request) -> Response:
    """``POST /v1/messages``."""
    try:
        session = await require_session(request, request.headers.get(KEY_HEADER))
        body = await read_body(request, MessagesRequest)
        return await begin(request, session, messages_plan(body), MessagesFormat)
    except ApiError as error:
        return refusal(error)


async def count_tokens(request: Request) -> Response:
    """``POST /v1/messages/count_tokens``: the tokens of the prompt; nothing is recorded."""
    try:
        session = await require_session(request, request.headers.get(KEY_HEADER))
        plan = messages_plan(await read_body(request, CountTokensRequest))
        prompt, _ = await asyncio.to_thread(
            rendered_prompt, services_of(request), session.session_id, plan
        )
        return JSONResponse({"input_tokens": len(prompt.token_ids)})
    except ApiError as error:
        return refusal(error)


def refusal(error: ApiError) -> Response:
    """Return an error in Anthropic's shape, with OpenAI's keys in it as everywhere here."""
    answer = error_response(error)
    return JSONResponse(
        {"type": "error", **error.body()}, status_code=error.status, headers=_kept(answer)
    )


def _kept(answer: Response) -> dict[str, str]:
    names = ("retry-after", "www-authenticate")
    return {name: answer.headers[name] for name in names if name in answer.headers}


class MessagesFormat(ResponseFormat):
    """The answers of one message: a list of blocks that grows."""

    def __init__(self, run: CompletionRun, *, model: str, token_text: TokenText) -> None:
        super().__init__(run, model=model, token_text=token_text)
        self._num_blocks = 0
        self._open_kind: str | None = None

    def answer(self, deltas: Sequence[CompletionDelta], result: CompletionResult) -> dict[str, Any]:
        """Return the whole message as one JSON object."""
        usage = {"input_tokens": self.num_prompt_tokens, "output_tokens": len(self.run.token_ids)}
        body = self._envelope() | _ending(result) | {"usage": usage}
        return self.with_token_ids(body | {"content": list(_blocks(result.message))})

    def refused(self, error: ApiError) -> Response:
        """Return the answer to a request that got no token."""
        return refusal(error)

    def _envelope(self) -> dict[str, Any]:
        return {
            "id": self.run.completion_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    # -- streamed ---------------------------------------------------------------------------

    def start_events(self) -> Iterable[bytes]:
        """Yield that the message begins."""
        usage = {"input_tokens": self.num_prompt_tokens, "output_tokens": 0}
        yield _event("message_start", message=self._envelope() | {"usage": usage})

    def delta_events(self, delta: CompletionDelta) -> Iterable[bytes]:
        """Yield what the blocks gained."""
        return self._grow(delta.message_delta)

    def end_events(self, result: CompletionResult) -> Iterable[bytes]:
        """Yield the rest, why it ended, and the end."""
        yield from self._grow(result.message_delta)
        yield from self._close()
        usage = {"output_tokens": len(self.run.token_ids)}
        ending: dict[str, Any] = {"delta": _ending(result), "usage": usage}
        yield _event("message_delta", **self.with_token_ids(ending))
        yield _event("message_stop")

    def error_events(self, error: ApiError) -> Iterable[bytes]:
        """Yield the error."""
        yield _event("error", **error.body())

    def _grow(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        for block in _blocks(delta):
            kind = block["type"]
            if kind == "tool_use":
                arguments = json.dumps(block["input"], ensure_ascii=False)
                yield from self._open(block | {"input": {}})
                yield self._delta(type="input_json_delta", partial_json=arguments)
                continue
            if kind != self._open_kind:
                yield from self._open(block | {kind: ""})
            if kind == "text":
                yield self._delta(type="text_delta", text=block["text"])
            else:
                yield self._delta(type="thinking_delta", thinking=block["thinking"])

    def _open(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._close()
        self._open_kind = block["type"]
        yield _event("content_block_start", index=self._num_blocks, content_block=block)

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._num_blocks, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open_kind is not None:
            yield _event("content_block_stop", index=self._num_blocks)
            self._num_blocks += 1
            self._open_kind = None


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, event=kind)


def _ending(result: CompletionResult) -> dict[str, Any]:
    """Return why a message ended."""
    reason = _STOP_REASONS.get(result.finish_reason, "end_turn")
    if result.stop_text is not None and reason == "end_turn":
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": result.stop_text}


def _blocks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the blocks of an assistant message of chat's, or of a delta of one."""
    if thought := message.get("reasoning_content"):
        yield {"type": "thinking", "thinking": thought, "signature": ""}
    if text := message.get("content"):
        yield {"type": "text", "text": text}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = json.loads(function["arguments"])
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}
