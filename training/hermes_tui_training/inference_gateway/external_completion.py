"""Completions of other servers' models, recorded as far as those tell.

A request under a session key whose ``model`` is a registered name goes to that model's server and
its answer comes back, with our completion id in it. What was said is recorded in the session like
any completion. Its tokens are not the policy's, so it is not trained; unless the server was
registered as one that serves a version of the policy, and tells token ids and log-probabilities.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui_common.errors import ApiError, cause_of
from hermes_tui_common.http import api_error_from, iter_sse, sse, validated
from hermes_tui_common.streaming import ClientGoneError, LiveResponse, unless_gone
from hermes_tui_training.api.types import NOT_OURS, CompletionOutcome, Session, UntrainableReason
from hermes_tui_training.chat_template.prefix_match import completion_kind
from hermes_tui_training.inference_gateway.context import Services
from hermes_tui_training.inference_gateway.external_models import ExternalModel
from hermes_tui_training.store.store import ConflictError, new_id

logger = logging.getLogger(__name__)

_TIMEOUT = httpx.Timeout(30.0, read=600.0)
"""Seconds; a model may think for a while between two chunks."""


class ExternalRun:
    """One completion of another server's model, from request to record.

    Args:
        services: record it.
        session: whose it is.
        model: who is asked.
        body: the client's request.
    """

    def __init__(
        self, services: Services, session: Session, model: ExternalModel, body: dict[str, Any]
    ) -> None:
        self.completion_id = new_id("chatcmpl-")
        self._services = services
        self._store = services.store
        self._session = session
        self._model = model
        self._body = body
        self._kind = completion_kind(body["messages"])
        self._answer = ToldAnswer()
        self._started = time.monotonic()

    async def begin(self) -> None:
        """Record the request. Raises: ApiError: 401: the session was ended meanwhile."""
        names = ("temperature", "top_p", "top_k", "seed", "max_tokens", "stop")
        sampling = {name: self._body[name] for name in names if self._body.get(name) is not None}
        try:
            await asyncio.to_thread(
                self._store.completions.begin,
                completion_id=self.completion_id,
                session_id=self._session.session_id,
                prompt_token_ids=(),
                sampling={"model": self._model.name, **sampling},
                request_messages=self._body["messages"],
                tools=self._body.get("tools") or [],
                prefix={},
                kind=self._kind,
            )
        except ConflictError as error:
            raise ApiError(401, f"{error}: its key works no longer.") from error

    async def parts(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the answer, or its chunks, under our names; it is recorded before the end.

        Raises: ApiError: the server refused, or could not be reached.
        """
        error: str | None = "the client left"
        try:
            async with aclosing(self._told()) as told:
                async for part in told:
                    self._answer.take(part)
                    yield {**part, "id": self.completion_id, "model": self._model.name}
            error = None
        except ApiError as refused:
            error = str(refused)
            raise
        finally:
            await asyncio.shield(self._record(error))

    async def _told(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what the server says. Raises: ApiError."""
        body = {**self._body, "model": self._model.provider_model}
        if self._model.policy_version is not None:
            body |= {"return_token_ids": True, "logprobs": True}
        key = self._model.api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"{self._model.url.rstrip('/')}/chat/completions"
        try:
            async with (
                httpx.AsyncClient(timeout=_TIMEOUT, headers=headers) as http,
                http.stream("POST", url, json=body) as answer,
            ):
                if answer.status_code != 200:
                    await answer.aread()
                    raise self._refusal(api_error_from(answer))
                if not body.get("stream"):
                    yield json.loads(await answer.aread())
                    return
                async for event in iter_sse(answer):
                    if event.data != "[DONE]":
                        yield event.json()
        except (httpx.HTTPError, ValueError) as error:
            name = self._model.name
            raise ApiError(502, f"The server of '{name}' failed: {cause_of(error)}.") from error

    def _refusal(self, error: ApiError) -> ApiError:
        """Return a server's refusal as ours: its key is not the client's."""
        status = 502 if error.status in (401, 403) else error.status
        return ApiError(status, f"The server of '{self._model.name}' refused: {error}")

    async def _record(self, error: str | None) -> None:
        told, version = self._answer, self._model.policy_version
        obstacle = self._obstacle(error)
        count = len(told.token_ids)
        outcome = CompletionOutcome(
            completion_id=self.completion_id,
            prompt_token_ids=told.prompt_token_ids,
            token_ids=told.token_ids,
            logprobs=told.logprobs,
            policy_versions=[NOT_OURS if version is None else version] * count,
            finish_reason=told.finish_reason,
            message=told.message if told.parts else None,
            latency={"total_s": time.monotonic() - self._started},
            trainable=obstacle is None,
            untrainable_reason=obstacle,
            error=error,
        )
        await asyncio.to_thread(self._store.completions.finish, outcome)
        text = "external completion recorded id=%s model=%s tokens=%d untrainable=%s"
        logger.info(text, self.completion_id, self._model.name, count, obstacle)

    def _obstacle(self, error: str | None) -> UntrainableReason | None:
        """Return why it may not be trained, or None."""
        told = self._answer
        if self._model.policy_version is None:
            return "external_model"
        if error is not None:
            return "engine_error"
        if self._kind == "aux":
            return "aux_call"
        if not told.token_ids or not told.prompt_token_ids:
            return "no_token_ids"
        if not self._services.chat.knows([*told.prompt_token_ids, *told.token_ids]):
            return "external_model"
        if any(self._body.get(name) not in plain for name, plain in _PLAIN.items()):
            return "sampling_mismatch"
        cut = told.finish_reason == "length"
        return "truncated" if cut and not self._services.config.training.train_truncated else None


_PLAIN: dict[str, tuple[Any, ...]] = {
    "temperature": (None, 1),  # servers tell log-probabilities at temperature 1
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
}
"""Values of sampling fields with which the tokens are drawn from the policy's own distribution."""


class ToldAnswer:
    """What a server told of one completion, put together from its answer or its chunks."""

    def __init__(self) -> None:
        self.parts = 0
        """Answers or chunks that were taken."""
        self.message: dict[str, Any] = {"role": "assistant", "content": ""}
        """OpenAI's assistant message."""
        self.finish_reason: str | None = None
        """None until it was told."""
        self.prompt_token_ids: list[int] = []
        """Empty when they were not told; vLLM's name."""
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []

    @property
    def token_ids(self) -> list[int]:
        """The sampled ids; empty unless each came with its log-probability."""
        return self._token_ids if len(self._token_ids) == len(self._logprobs) else []

    @property
    def logprobs(self) -> list[float]:
        """As many as ``token_ids``."""
        return self._logprobs if len(self._token_ids) == len(self._logprobs) else []

    def take(self, part: dict[str, Any]) -> None:
        """Add an answer or a chunk."""
        self.parts += 1
        self.prompt_token_ids = part.get("prompt_token_ids") or self.prompt_token_ids
        for choice in part.get("choices") or ():
            self._add(choice.get("message") or choice.get("delta") or {})
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self._token_ids += choice.get("token_ids") or ()
            entries = (choice.get("logprobs") or {}).get("content") or ()
            self._logprobs += [entry["logprob"] for entry in entries]

    def _add(self, delta: dict[str, Any]) -> None:
        for name in ("content", "reasoning_content"):
            if text := delta.get(name):
                self.message[name] = self.message.get(name, "") + text
        for position, call in enumerate(delta.get("tool_calls") or ()):
            calls = self.message.setdefault("tool_calls", [])
            index = call.get("index", position)
            while len(calls) <= index:
                empty = {"name": "", "arguments": ""}
                calls.append({"id": "", "type": "function", "function": empty})
            calls[index]["id"] = call.get("id") or calls[index]["id"]
            for name, text in (call.get("function") or {}).items():
                calls[index]["function"][name] += text or ""


async def answer_external(
    request: Request,
    services: Services,
    session: Session,
    model: ExternalModel,
    body: dict[str, Any],
) -> Response:
    """Answer a chat completion with another server's model.

    Raises: ApiError: 400: the request is none. 401: the session was ended. Else what the server
        answered, or 502 when it could not be reached.
    """
    validated(body, _Conversation)
    if body.get("n") not in (None, 1):
        raise ApiError(400, "'n' must be 1: one answer of another model is recorded.", param="n")
    run = ExternalRun(services, session, model, body)
    await run.begin()
    parts = run.parts()
    try:
        # A refusal has a status code: nothing is sent before the first part is there.
        first = await unless_gone(request, anext(parts, None))
    except ClientGoneError:
        await parts.aclose()
        return Response(status_code=499)
    if body.get("stream"):
        return LiveResponse(_stream(first, parts))
    await anext(parts, None)  # records it
    return JSONResponse(first)


async def _stream(
    first: dict[str, Any] | None, parts: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(parts):
        if first is not None:
            yield sse(first)
        try:
            async for part in parts:
                yield sse(part)
        except ApiError as error:
            yield sse(error.body())
    yield sse("[DONE]")


class _Conversation(BaseModel):
    """What must be there to be recorded; the rest is the other server's to check."""

    messages: list[dict[str, Any]]
