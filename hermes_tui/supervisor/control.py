"""The supervisor's control API: state, events, logs, restarts, scaling, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hermes_tui.core.control_api import (
    LogLine,
    LogTail,
    ScaleRequest,
    ShutdownAnswer,
    event_to_json,
)
from hermes_tui.core.stack_status import SUPERVISOR, StackStatus
from hermes_tui.supervisor.events import EventLog
from hermes_tui.supervisor.logs import follow_lines, tail_lines
from hermes_tui.supervisor.stack import Stack
from hermes_tui_common.auth import require_key
from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import (
    EXCEPTION_HANDLERS,
    SseResponse,
    health_response,
    read_body,
    sse,
)

MAX_TAIL_LINES = 10_000
_GRACEFUL_S = 1
"""How long event streams may go on once the supervisor stops."""

Endpoint = Callable[[Request], Awaitable[Response]]


class ControlApi:
    """The routes of the control API.

    Args:
        stack: what they control.
        events: what they tell.
        key: the control key; every route but /health needs it.
        url: where the API itself answers.
        shut_down: called when someone asks for the end of everything.
    """

    def __init__(
        self, stack: Stack, events: EventLog, *, key: str, url: str, shut_down: Callable[[], None]
    ) -> None:
        self._stack = stack
        self._events = events
        self._key = key
        self._url = url
        self._shut_down = shut_down

    def app(self) -> Starlette:
        """Return the ASGI app."""
        routes = [
            Route("/health", self._health),
            Route("/status", self._guarded(self._status)),
            Route("/events", self._guarded(self._follow_events)),
            Route("/system", self._guarded(self._system)),
            Route("/services/pairs", self._guarded(self._scale), methods=["POST"]),
            Route("/services/{name}/logs", self._guarded(self._logs)),
            Route("/services/{name}/restart", self._guarded(self._restart), methods=["POST"]),
            Route("/shutdown", self._guarded(self._shutdown), methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS)

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            require_key(request, self._key)
            return await endpoint(request)

        return checked

    async def _health(self, _: Request) -> Response:
        return health_response(self._stack.problem)

    async def _status(self, _: Request) -> Response:
        return await self._status_response()

    async def _status_response(self) -> Response:
        # In a thread: asking the system for every process's memory takes its time.
        status: StackStatus = await asyncio.to_thread(self._stack.status, self._url)
        return _json(status)

    async def _system(self, _: Request) -> Response:
        sample = await asyncio.to_thread(self._stack.system)
        return _json(sample)

    async def _follow_events(self, request: Request) -> Response:
        position = request.query_params.get("after") or request.headers.get("last-event-id") or "0"
        after = _whole_number(position, "after")

        async def stream() -> AsyncIterator[bytes]:
            async for event in self._events.follow(after):
                yield sse(event_to_json(event), event=event.event, event_id=event.id)

        return SseResponse(stream())

    async def _logs(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != SUPERVISOR:
            self._stack.process(name)
        tail = _whole_number(request.query_params.get("tail", "200"), "tail")
        tail = min(tail, MAX_TAIL_LINES)
        path = self._stack.plan.run_dir.log(name)
        if request.query_params.get("follow", "").lower() in ("1", "true", "yes"):
            return SseResponse(
                sse(LogLine(line=line).model_dump()) async for line in follow_lines(path, tail)
            )
        lines = await asyncio.to_thread(tail_lines, path, tail)
        return _json(LogTail(name=name, lines=tuple(lines)))

    async def _restart(self, request: Request) -> Response:
        await self._stack.restart(request.path_params["name"])
        return await self._status_response()

    async def _scale(self, request: Request) -> Response:
        body = await read_body(request, ScaleRequest)
        await self._stack.scale(body.count)
        return await self._status_response()

    async def _shutdown(self, _: Request) -> Response:
        self._shut_down()
        return _json(ShutdownAnswer(), status_code=202)


def _json(answer: BaseModel, status_code: int = 200) -> JSONResponse:
    return JSONResponse(answer.model_dump(mode="json"), status_code=status_code)


def _whole_number(text: str, param: str) -> int:
    if not text.isdecimal():
        raise ApiError(400, f"'{param}' must be a whole number, not {text!r}.", param=param)
    return int(text)


class ControlServer(uvicorn.Server):
    """Serves the control API inside the supervisor, which handles the signals itself."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=_GRACEFUL_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the supervisor."""
        yield

    async def run_on(self, sock: socket.socket) -> None:
        """Serve on a bound socket until ``should_exit`` is set."""
        await self.serve(sockets=[sock])
