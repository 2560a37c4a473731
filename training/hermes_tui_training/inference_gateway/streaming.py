"""Answers a completion while it runs, and ends it when nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import SseResponse
from hermes_tui_common.streaming import disconnected
from hermes_tui_training.api.types import Session
from hermes_tui_training.inference_gateway.apis.base import ResponseFormat, ResponseFormatFactory
from hermes_tui_training.inference_gateway.completion_run import (
    CompletionDelta,
    CompletionResult,
    CompletionRun,
)
from hermes_tui_training.inference_gateway.context import services_of
from hermes_tui_training.inference_gateway.sampling_plan import SamplingPlan

Arrival = CompletionDelta | CompletionResult | ApiError
"""What a completion gives while it runs: deltas, then its result or an error."""


async def begin(
    request: Request, session: Session, plan: SamplingPlan, make_format: ResponseFormatFactory
) -> CompletionResponse:
    """Begin a completion and return what will answer it: the one way to a recorded completion.

    Raises: ApiError: see ``CompletionRun.begin``.
    """
    services = services_of(request)
    if services.external.get(plan.model):
        raise ApiError(
            400,
            f"'{plan.model}' is another server's model; it answers /v1/chat/completions only.",
            param="model",
        )
    run = CompletionRun(services, session, plan)
    await run.begin()
    response_format = make_format(
        run, model=services.config.model.path, token_text=services.chat.token_texts.alone
    )
    return CompletionResponse(run, response_format)


class CompletionResponse(Response):
    """A completion's answer, JSON or event stream; a client that leaves ends the completion.

    The completion does not wait for a slow client. Its result is recorded as soon as it is there;
    the last chunk is sent after that.
    """

    def __init__(self, run: CompletionRun, response_format: ResponseFormat) -> None:
        super().__init__()
        self._run = run
        self._format = response_format
        self._arrived: asyncio.Queue[Arrival] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        async with self._run.registered(), asyncio.TaskGroup() as group:
            sampling = group.create_task(self._sample(), name="sample")
            answering = group.create_task(self._answer(scope, send), name="answer")
            leaving = group.create_task(disconnected(receive), name="disconnect")
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            self._run.client_left |= leaving.done()
            for task in (sampling, answering, leaving):
                task.cancel()

    async def _sample(self) -> None:
        try:
            self._arrived.put_nowait(await self._run.run(self._arrived.put_nowait))
        except ApiError as error:
            self._arrived.put_nowait(error)

    async def _answer(self, scope: Scope, send: Send) -> None:
        first = await self._arrived.get()
        if isinstance(first, ApiError):
            response: Response = self._format.refused(first)
        elif self._run.plan.stream:
            response = SseResponse(self._stream(first))
        else:
            response = await self._whole(first)

        try:
            await response(scope, _never, send)
        except (OSError, ClientDisconnect):
            self._run.client_left = True

    async def _whole(self, item: Arrival) -> Response:
        deltas: list[CompletionDelta] = []
        while isinstance(item, CompletionDelta):
            deltas.append(item)
            item = await self._arrived.get()
        if isinstance(item, ApiError):
            return self._format.refused(item)
        return JSONResponse(self._format.answer(deltas, item))

    async def _stream(self, item: Arrival) -> AsyncIterator[bytes]:
        for event in self._format.start_events():
            yield event
        while isinstance(item, CompletionDelta):
            for event in self._format.delta_events(item):
                yield event
            item = await self._arrived.get()
        if isinstance(item, ApiError):
            events = self._format.error_events(item)
        else:
            events = self._format.end_events(item)
        for event in events:
            yield event


async def _never() -> Message:
    """Receive nothing: whether the client left is watched elsewhere."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
