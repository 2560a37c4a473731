"""The supervisor's control API: state, events, logs, restarts, scaling, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui.core.control_api import (
    EventsQuery,
    LogLine,
    LogsQuery,
    LogTail,
    ScaleRequest,
    ShutdownAnswer,
    event_to_json,
)
from hermes_tui.core.stack_status import SUPERVISOR, StackStatus, SystemSample
from hermes_tui.supervisor.events import EventLog
from hermes_tui.supervisor.logs import follow_lines, tail_lines
from hermes_tui.supervisor.stack import Stack
from hermes_tui_common.http import (
    EXCEPTION_HANDLERS,
    SseResponse,
    health_response,
    read_body,
    read_query,
    sse,
)
from hermes_tui_common.limits import HttpConfig
from hermes_tui_common.openapi import described
from hermes_tui_common.request_keys import RequireKey
from hermes_tui_common.routes import ApiRoute, Health
from hermes_tui_common.serving import server_config

MAX_TAIL_LINES = 10_000
_GRACEFUL_S = 1
"""How long event streams may go on once the supervisor stops."""


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
        return Starlette(
            routes=described("Hermes TUI: the control API", self._routes()),
            exception_handlers=EXCEPTION_HANDLERS,
            middleware=[Middleware(RequireKey, key=self._key)],
        )

    def _routes(self) -> list[ApiRoute]:
        post, status = "POST", StackStatus
        restart, logs = "/services/{name}/restart", "/services/{name}/logs"
        scale: dict[str, Any] = {"body": ScaleRequest, "answer": status}
        return [
            ApiRoute("/health", self._health, answer=Health),
            ApiRoute("/status", self._status, answer=status),
            ApiRoute("/events", self._follow_events, query=EventsQuery, events=True),
            ApiRoute("/system", self._system, answer=SystemSample),
            ApiRoute("/services/pairs", self._scale, method=post, **scale),
            ApiRoute(logs, self._logs, query=LogsQuery, answer=LogTail, events=True),
            ApiRoute(restart, self._restart, method=post, answer=status),
            ApiRoute("/shutdown", self._shutdown, method=post, answer=ShutdownAnswer, status=202),
        ]

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
        after = read_query(request, EventsQuery, last_event_id="after").after

        async def stream() -> AsyncIterator[bytes]:
            async for event in self._events.follow(after):
                yield sse(event_to_json(event), event=event.event, event_id=event.id)

        return SseResponse(stream())

    async def _logs(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != SUPERVISOR:
            self._stack.process(name)
        query = read_query(request, LogsQuery)
        tail = min(query.tail, MAX_TAIL_LINES)
        path = self._stack.plan.run_dir.log(name)
        if query.follow:
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


class ControlServer(uvicorn.Server):
    """Serves the control API inside the supervisor, which handles the signals itself."""

    def __init__(self, app: Starlette, limits: HttpConfig) -> None:
        super().__init__(
            server_config(app, limits, lifespan="off", timeout_graceful_shutdown=_GRACEFUL_S)
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the supervisor."""
        yield

    async def run_on(self, sock: socket.socket) -> None:
        """Serve on a bound socket until ``should_exit`` is set."""
        await self.serve(sockets=[sock])
