"""A small server with the product's limits, and clients that behave badly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from hermes_tui_common.http import EXCEPTION_HANDLERS, read_body
from hermes_tui_common.limits import HttpConfig
from hermes_tui_common.routes import ApiRoute, BodySize
from hermes_tui_common.serving import ServeConfig, bind, server_config


class Note(BaseModel):
    """A body."""

    text: object = ""


@dataclass
class SmallApp:
    """Answers, takes bodies, streams without end, and echoes frames."""

    threads: list[str] = field(default_factory=list)
    """Where bodies were parsed."""
    streams_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> Starlette:
        return Starlette(
            exception_handlers=EXCEPTION_HANDLERS,
            routes=[
                ApiRoute("/health", self._health),
                ApiRoute("/small", self._take, method="POST"),
                ApiRoute("/large", self._take, method="POST", size=BodySize.CONVERSATION),
                ApiRoute("/stream", self._stream),
                WebSocketRoute("/ws", self._ws),
            ],
        )

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _take(self, request: Request) -> Response:
        await read_body(request, self._model())
        return JSONResponse({})

    def _model(self) -> type[Note]:
        threads = self.threads

        class Told(Note):
            def model_post_init(self, _: object) -> None:
                threads.append(threading.current_thread().name)

        return Told

    async def _stream(self, _: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65_536
                    await asyncio.sleep(0)
            finally:
                self.streams_ended.set()

        return StreamingResponse(chunks())

    async def _ws(self, socket: WebSocket) -> None:
        await socket.accept()
        async for text in socket.iter_text():
            await socket.send_text(text)


@dataclass
class Door:
    """A server that runs."""

    port: int
    app: SmallApp

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, raw: bytes) -> bytes:
        """Send bytes; return all that comes until the server closes, or has answered."""
        reader, writer = await self.connect()
        try:
            writer.write(raw)
            await writer.drain()
            async with asyncio.timeout(10):
                return await answer(reader)
        finally:
            writer.close()


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Return one answer, or what there was until the connection was closed."""
    head = b""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        name = b"content-length:"
        length = next(
            int(line[len(name) :]) for line in head.lower().split(b"\r\n") if line.startswith(name)
        )
        return head + await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError, StopIteration):
        return head


def get(path: str = "/health", *headers: str, host: str = "127.0.0.1") -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", *headers]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


@asynccontextmanager
async def open_door(**limits: object) -> AsyncIterator[Door]:
    """Serve ``SmallApp`` within limits."""
    small = SmallApp()
    with bind(ServeConfig(name="door")) as sock:
        config = server_config(
            small.app(),
            HttpConfig.model_validate(limits),
            lifespan="off",
            timeout_keep_alive=1,
            timeout_graceful_shutdown=0,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([sock]))
        try:
            async with asyncio.timeout(10):
                while not server.started:  # noqa: ASYNC110  # it tells nobody
                    await asyncio.sleep(0.005)
            yield Door(port=sock.getsockname()[1], app=small)
        finally:
            server.should_exit = True
            await serving
