"""What servers that stream share: the key check, session keys in paths, answers that end when their
reader leaves, and one task at a time for each key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from hermes_tui_common.auth import require_key, same_key
from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import error_response

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
"""How long a connection to another role may take."""

CALL_TIMEOUT_S = 30.0
"""How long another role may take over a call that is no turn."""

PEER_KEEP_ALIVE_S = 60.0
"""How long a client keeps an idle connection to another role; the roles keep them longer."""


class _SessionKeyConvertor(Convertor[str]):
    """A session key in a path: percent-decoded, any character, slashes and newlines included."""

    regex = r"(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("session_key", _SessionKeyConvertor())


class RequireKey:
    """Middleware: every request but GET /health needs the admin key; web sockets may send it as
    ``?token=``.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            try:
                require_key(HTTPConnection(scope), self._key)
            except ApiError as error:
                await error_response(error)(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            socket = WebSocket(scope, receive, send)
            try:
                if not same_key(socket.query_params.get("token", ""), self._key):
                    require_key(socket, self._key)
            except ApiError as error:
                await socket.receive()
                await socket.send_denial_response(error_response(error))
                return
        await self._app(scope, receive, send)


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
    """

    def __init__(
        self, chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
    ) -> None:
        self._chunks = chunks
        super().__init__(
            None,
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


class KeyedLocks:
    """One first-come-first-served lock per key; keys without a holder take no memory."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._users: defaultdict[str, int] = defaultdict(int)

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold the key's lock; waiters get it in the order in which they came."""
        self._users[key] += 1
        try:
            async with self._locks[key]:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]


def peer_client(admin_key: str) -> httpx.AsyncClient:
    """Return a client for calls to other roles: keeps connections open, knows the key.

    Reading has no deadline by itself: a turn takes as long as it takes. Calls that are no turn pass
    ``timeout=CALL_TIMEOUT_S``.
    """
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {admin_key}"},
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=PEER_KEEP_ALIVE_S
        ),
        trust_env=False,
    )
