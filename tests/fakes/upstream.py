"""A scripted OpenAI-compatible model server: streams, tool calls, errors, hangs, broken streams.

It runs in a thread of the test, answers what its script says, and remembers what it was asked and
which of its streams were hung up on. As a program (``python upstream.py``) it is the benchmark's
instant upstream: prints its URL and answers until its standard input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hermes_tui_common.auth import COMPLETIONS_KEY_PATH


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model server does with one request."""

    chunks: tuple[str, ...] = ()
    """Pieces of text, a delta each."""
    reasoning: tuple[str, ...] = ()
    """Pieces of reasoning, before the text."""
    tool_calls: tuple[tuple[str, str, str], ...] = ()
    """Calls as (id, name, arguments)."""
    finish_reason: str = ""
    """Empty is ``stop``, or ``tool_calls`` when there are some."""
    status: int = 200
    """Another one is answered with an error."""
    error: str = "scripted error"
    code: str | None = None
    gap_s: float = 0.0
    """Seconds before each piece."""
    hang: bool = False
    """Whether to send nothing more after the pieces, and not to end."""
    usage: tuple[int, int] | None = (10, 5)
    """Tokens read and sampled; None is not told."""
    raw: bytes = b""
    """Sent as it is after the pieces."""
    cut: bool = False
    """Whether to close the connection after the pieces, without an end."""


def say(*chunks: str, **more: Any) -> Reply:
    """Return a reply with text."""
    return Reply(chunks=chunks, **more)


def call(name: str, arguments: dict[str, Any], call_id: str = "call_1", **more: Any) -> Reply:
    """Return a reply that calls a tool."""
    return Reply(tool_calls=((call_id, name, json.dumps(arguments)),), **more)


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request that arrived."""

    method: str
    path: str
    key: str
    body: dict[str, Any]
    hung_up_at: float | None = None
    """When the client closed the connection before the end, on the monotonic clock."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body["messages"])

    @property
    def last_user(self) -> str:
        return next(m["content"] for m in reversed(self.messages) if m["role"] == "user")


Script = Callable[[Asked], Reply]


def echo(asked: Asked) -> Reply:
    """Say the user's last message back, a word at a time."""
    words = asked.last_user.split(" ")
    return say(*(word if i == 0 else f" {word}" for i, word in enumerate(words)))


@dataclass(slots=True, kw_only=True)
class Upstream:
    """The server; ``script`` may be changed at any time."""

    script: Script = echo
    gives_keys: bool = False
    """Whether it gives out keys for completions, as an inference gateway does."""
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    @property
    def chats(self) -> list[Asked]:
        """The chat completions that were asked for."""
        return [a for a in self.asked if a.path.endswith("/chat/completions")]

    def app(self) -> Starlette:
        methods = ["GET", "POST", "PUT", "DELETE"]
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=methods)])

    async def _answer(self, request: Request) -> Response:
        raw = await request.body()
        asked = Asked(
            method=request.method,
            path=request.url.path,
            key=request.headers.get("authorization", "").removeprefix("Bearer "),
            body=json.loads(raw) if raw else {},
        )
        self.asked.append(asked)
        if asked.path == COMPLETIONS_KEY_PATH and self.gives_keys:
            return JSONResponse({"api_key": f"sk-comp-of-{asked.key}", "session_id": "sess-1"})
        if not asked.path.endswith("/chat/completions"):
            return JSONResponse({"error": {"message": "unknown path"}}, status_code=404)
        reply = self.script(asked)
        if reply.status != 200:
            error = {"message": reply.error, "type": "scripted", "code": reply.code}
            return JSONResponse({"error": error}, status_code=reply.status)
        return StreamingResponse(self._stream(asked, reply), media_type="text/event-stream")

    async def _stream(self, asked: Asked, reply: Reply) -> AsyncIterator[bytes]:
        try:
            for delta in _deltas(reply):
                if reply.gap_s:
                    await asyncio.sleep(reply.gap_s)
                yield _chunk(delta)
            if reply.raw:
                yield reply.raw
            if reply.hang:
                await asyncio.Event().wait()
            if reply.cut:
                raise ConnectionResetError("scripted cut")
            default = "tool_calls" if reply.tool_calls else "stop"
            yield _chunk({}, finish=reply.finish_reason or default)
            if reply.usage:
                yield _chunk(None, usage=reply.usage)
            yield b"data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            asked.hung_up_at = time.monotonic()
            raise


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for text in reply.reasoning:
        yield {"reasoning_content": text}
    for text in reply.chunks:
        yield {"content": text}
    for index, (call_id, name, arguments) in enumerate(reply.tool_calls):
        function = {"name": name, "arguments": arguments}
        row = {"index": index, "id": call_id, "type": "function", "function": function}
        yield {"tool_calls": [row]}


def _chunk(
    delta: dict[str, Any] | None, *, finish: str = "", usage: tuple[int, int] | None = None
) -> bytes:
    chunk: dict[str, Any] = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "scripted",
        "choices": [],
    }
    if delta is not None:
        chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish or None}]
    if usage:
        read, sampled = usage
        chunk["usage"] = {
            "prompt_tokens": read,
            "completion_tokens": sampled,
            "total_tokens": read + sampled,
        }
    return f"data: {json.dumps(chunk)}\n\n".encode()


@contextlib.contextmanager
def running(script: Script = echo) -> Iterator[Upstream]:
    """Serve a scripted upstream in a thread, on a free port."""
    upstream = Upstream(script=script)
    config = uvicorn.Config(
        upstream.app(), host="127.0.0.1", port=0, log_level="critical", timeout_graceful_shutdown=0
    )
    server = uvicorn.Server(config)
    # Said to be TCP: else asyncio leaves Nagle's algorithm on, and pieces wait 40 ms.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind((config.host, config.port))
    upstream.url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    try:
        yield upstream
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()


def main() -> None:
    """Answer every request at once with one short text, until standard input closes."""
    with running(lambda asked: say("Hello", " there", ".")) as upstream:
        upstream.gives_keys = True
        print(upstream.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
