"""Answers a completion while it runs, and ends it when nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from hermes_tui_services.errors import ApiError
from hermes_tui_services.http import SseResponse, error_response, read_body, sse
from hermes_tui_training.gateway.completions import CompletionRun, Outcome, Piece
from hermes_tui_training.gateway.openai import ChatShapes
from hermes_tui_training.gateway.requests import plan
from hermes_tui_training.gateway.services import require_session, services_of
from hermes_tui_training.protocol import ChatRequest

_DONE = sse("[DONE]")


async def chat_completions(request: Request) -> Response:
    """``POST /v1/chat/completions``."""
    session = await require_session(request)
    services = services_of(request)
    run = CompletionRun(services, session, plan(await read_body(request, ChatRequest)))
    await run.begin()
    shapes = ChatShapes(run, model=services.config.model.path, token_text=services.chat.token_text)
    return LiveResponse(run, shapes)


class LiveResponse(Response):
    """A completion's answer, JSON or event stream; a client that leaves ends the completion.

    The completion does not wait for a slow client: its outcome is recorded when it is there, and
    the last chunk is sent after that.
    """

    def __init__(self, run: CompletionRun, shapes: ChatShapes) -> None:
        super().__init__()
        self._run = run
        self._shapes = shapes
        self._pieces: asyncio.Queue[Piece | Outcome | ApiError] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        async with self._run.registered(), asyncio.TaskGroup() as group:
            sampling = group.create_task(self._sample(), name="sample")
            answering = group.create_task(self._answer(scope, send), name="answer")
            leaving = group.create_task(_disconnected(receive), name="disconnect")
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            self._run.client_left |= leaving.done()
            for task in (sampling, answering, leaving):
                task.cancel()

    async def _sample(self) -> None:
        try:
            self._pieces.put_nowait(await self._run.run(self._pieces.put_nowait))
        except ApiError as error:
            self._pieces.put_nowait(error)

    async def _answer(self, scope: Scope, send: Send) -> None:
        first = await self._pieces.get()
        if isinstance(first, ApiError):
            response: Response = error_response(first)
        elif self._run.plan.stream:
            response = SseResponse(self._stream(first))
        else:
            response = await self._whole(first)

        try:
            await response(scope, _never, send)
        except (OSError, ClientDisconnect):
            self._run.client_left = True

    async def _whole(self, item: Piece | Outcome | ApiError) -> Response:
        pieces: list[Piece] = []
        while isinstance(item, Piece):
            pieces.append(item)
            item = await self._pieces.get()
        if isinstance(item, ApiError):
            return error_response(item)
        return JSONResponse(self._shapes.answer(pieces, item))

    async def _stream(self, item: Piece | Outcome | ApiError) -> AsyncIterator[bytes]:
        yield sse(self._shapes.first_chunk())
        while isinstance(item, Piece):
            chunk = self._shapes.piece_chunk(item)
            if chunk is not None:
                yield sse(chunk)
            item = await self._pieces.get()
        if isinstance(item, ApiError):
            yield sse(item.body())
        else:
            for chunk in self._shapes.last_chunks(item):
                yield sse(chunk)
        yield _DONE


async def _never() -> Message:
    """Receive nothing: whether the client left is watched elsewhere."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def _disconnected(receive: Receive) -> None:
    """Return when the client has gone; the body has been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
