"""Answers and work that end when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


async def disconnected(receive: Receive) -> None:
    """Return once the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientGoneError(Exception):
    """The client went away before its answer was ready."""


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Return the work's result; its task is cancelled when the client goes away.

    Raises: ClientGoneError: the client went away.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await _end(task, watcher)


class LiveResponse(Response):
    """Server-sent events that are sent as they come; closes their source when the reader leaves.

    Args:
        chunks: encoded events; the generator is closed in any case.
        headers: more headers.
        status: HTTP status.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        *,
        status: int = 200,
    ) -> None:
        self._chunks = chunks
        super().__init__(
            None,
            status,
            media_type="text/event-stream",
            headers={
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                **(headers or {}),
            },
        )
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        pump = asyncio.create_task(self._pump(send))
        watcher = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait((pump, watcher), return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
        finally:
            await _end(pump, watcher)
            await self._chunks.aclose()

    async def _pump(self, send: Send) -> None:
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks that still run and wait until they are over."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
