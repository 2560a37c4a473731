"""The control API as an async client: what the screen and the commands use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import TypeVar

import httpx
from pydantic import BaseModel

from hermes_tui.config.paths import RunDir
from hermes_tui.config.secrets import read_keys
from hermes_tui.core.control_api import (
    CONTROL_EVENT,
    ControlEvent,
    LogLine,
    LogTail,
    ScaleRequest,
    ShutdownAnswer,
)
from hermes_tui.core.errors import NotRunningError
from hermes_tui.core.stack_status import StackStatus, SystemSample
from hermes_tui_common.errors import ServiceError, UnreachableError
from hermes_tui_common.http import SkippedEvents, SseEvent, iter_sse, parsed, require_ok
from hermes_tui_common.run_file import RunFile

Answer = TypeVar("Answer", bound=BaseModel)

_QUICK_S = 10.0
"""Deadline of a request that only reads."""
_SLOW_S = 660.0
"""Deadline of a request that starts processes: longer than a process may take to be ready."""


class ControlClient:
    """One supervisor's control API; use it as an async context manager, or ``aclose()`` it.

    Raises: UnreachableError, RefusedError: from any method that asks it. ServiceError: its answer
        is of another version's shape.
    """

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.skipped_events = SkippedEvents(self._name)
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=_QUICK_S,
            trust_env=False,
        )

    @classmethod
    def of(cls, run_dir: RunDir) -> ControlClient:
        """Return a client for the supervisor that serves a run directory.

        Raises: NotRunningError: none has left its address there.
        """
        try:
            url = RunFile.read(run_dir.supervisor).url
        except (OSError, ValueError) as error:
            raise NotRunningError(str(run_dir.root)) from error
        keys = read_keys(run_dir)
        if keys is None:
            raise NotRunningError(str(run_dir.root))
        return cls(url, keys.control_key)

    async def __aenter__(self) -> ControlClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def status(self) -> StackStatus:
        """Return the state of every process."""
        return await self._call("GET", "/status", StackStatus)

    async def system(self) -> SystemSample:
        """Return a sample of the machine."""
        return await self._call("GET", "/system", SystemSample)

    async def events(self, after: int = 0) -> AsyncGenerator[ControlEvent, None]:
        """Yield the stack's events after a position, oldest first, then live ones.

        Ends when the supervisor goes away. Skips what cannot be read: a newer supervisor may have
        kinds of events, or states of processes, that this version does not know.

        Raises: UnreachableError.
        """
        async with aclosing(self._stream("/events", {"after": str(after)})) as stream:
            async for sent in stream:
                try:
                    event = parsed(self._name, CONTROL_EVENT, sent)
                except ServiceError as error:
                    self.skipped_events.add("control", error)
                    continue
                yield event

    async def logs(self, name: str, tail: int = 200) -> list[str]:
        """Return the last lines of a process's log.

        Raises: RefusedError: 404, there is no such process.
        """
        path = f"/services/{name}/logs"
        return list((await self._call("GET", path, LogTail, params={"tail": str(tail)})).lines)

    async def follow_logs(self, name: str, tail: int = 200) -> AsyncGenerator[str, None]:
        """Yield the last lines of a process's log, then each new one."""
        params = {"tail": str(tail), "follow": "true"}
        async with aclosing(self._stream(f"/services/{name}/logs", params)) as stream:
            async for sent in stream:
                yield parsed(self._name, LogLine, sent).line

    async def restart(self, name: str) -> StackStatus:
        """Restart one process on the port it had; return the stack once it is ready again."""
        path = f"/services/{name}/restart"
        return await self._call("POST", path, StackStatus, timeout_s=_SLOW_S)

    async def scale(self, count: int) -> StackStatus:
        """Run this many pairs; return the stack once they are ready, or drained."""
        request = ScaleRequest(count=count)
        path = "/services/pairs"
        return await self._call("POST", path, StackStatus, body=request, timeout_s=_SLOW_S)

    async def shutdown(self) -> None:
        """Ask the supervisor to stop everything and end; returns at once."""
        await self._call("POST", "/shutdown", ShutdownAnswer)

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        *,
        body: BaseModel | None = None,
        params: dict[str, str] | None = None,
        timeout_s: float = _QUICK_S,
    ) -> Answer:
        try:
            answer = await self._http.request(
                method,
                path,
                json=body.model_dump(mode="json") if body else None,
                params=params,
                timeout=timeout_s,
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        await require_ok(answer)
        return parsed(self._name, kind, answer)

    async def _stream(self, path: str, params: dict[str, str]) -> AsyncGenerator[SseEvent, None]:
        timeout = httpx.Timeout(_QUICK_S, read=None)
        try:
            async with self._http.stream("GET", path, params=params, timeout=timeout) as answer:
                await require_ok(answer)
                async for event in iter_sse(answer):
                    yield event
        except (httpx.RemoteProtocolError, httpx.ReadError):
            return  # the supervisor ended; that is the end of its events
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.HTTPError) -> UnreachableError:
        return UnreachableError.of(self._name, error)

    @property
    def _name(self) -> str:
        return f"the supervisor at {self.url}"
