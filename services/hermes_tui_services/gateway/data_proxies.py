"""The gateway's calls to the router and to the sessions' data proxies.

The supervisor restarts a role within seconds. A turn that has not begun is sent again until then;
one that has begun is not, because its tools may have changed something.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar
from urllib.parse import urlencode

import httpx
from pydantic import BaseModel

from hermes_tui_common.errors import ApiError, cause_of
from hermes_tui_common.http import api_error_from, iter_sse
from hermes_tui_common.keyed_locks import KeyedLocks
from hermes_tui_common.peer_client import CALL_TIMEOUT_S
from hermes_tui_services.api.events import TurnEvent, TurnFailed, TurnStarted, event_from_json
from hermes_tui_services.api.protocol import (
    PROXY_UNAVAILABLE,
    WORKER_UNAVAILABLE,
    RouteBody,
    SessionBody,
    TurnRequest,
    path_key,
)
from hermes_tui_services.api.wire import ConversationInfo, PairState, RunningTurn, SearchHit

Row = TypeVar("Row", bound=BaseModel)
logger = logging.getLogger(__name__)

ROUTER_TIMEOUT_S = 5.0
"""How long the router may take: it answers from memory; one that is hung holds up every turn."""

HEALTH_TIMEOUT_S = 2.0
"""How long the router may take to say whether all is well."""

LIST_TIMEOUT_S = 5.0
"""How long a data proxy may take over a list; the others' rows are shown without those of one that
is hung."""

RETRY_EVERY_S = 0.2
"""Time between two tries."""

MAX_KNOWN = 10_000
"""How many sessions' data proxies are remembered."""

_ROUTER_UNAVAILABLE = "router_unavailable"
_UNAVAILABLE = (_ROUTER_UNAVAILABLE, "no_live_pair", PROXY_UNAVAILABLE, WORKER_UNAVAILABLE)


class DataProxies:
    """Router and data proxies, over HTTP.

    Args:
        client: knows the admin key and keeps connections.
        router_url: where the router answers.
        retry_s: how long a turn that has not begun waits for a role that is down or hung, counted
            from its first failure; it may have waited behind others before.
    """

    def __init__(self, client: httpx.AsyncClient, router_url: str, retry_s: float) -> None:
        self._client = client
        self._router = router_url.rstrip("/")
        self._retry_s = retry_s
        self._arrivals = KeyedLocks()
        self._known: dict[str, str] = {}

    async def turn(self, session_key: str, request: TurnRequest) -> AsyncGenerator[TurnEvent, None]:
        """Run a turn and yield its events: first TurnStarted, last a TurnEnd.

        Turns of a session are accepted in the order in which they came here.

        Raises: ApiError: it was not accepted.
        """
        deadline: float | None = None
        addr: list[str] = []
        accepted = False
        while True:
            begun = False
            try:
                async with aclosing(self._attempt(session_key, request, addr)) as events:
                    async for event in events:
                        if isinstance(event, TurnFailed) and not begun:
                            _raise_if_unavailable(event)
                        begun = not isinstance(event, TurnStarted)
                        if begun or not accepted:
                            accepted = True
                            yield event
                return
            except ApiError as error:
                deadline = deadline or time.monotonic() + self._retry_s
                again = error.code in _UNAVAILABLE and not begun and time.monotonic() < deadline
                if not again:
                    if not accepted:
                        raise
                    yield TurnFailed.of(error)
                    return
                logger.info("turn waits session=%s cause=%s", session_key, error)
            await asyncio.sleep(RETRY_EVERY_S)

    async def _attempt(
        self, session_key: str, request: TurnRequest, tried: list[str]
    ) -> AsyncGenerator[TurnEvent, None]:
        """Send a turn once and yield its events; ``tried`` holds the last data proxy that failed.

        Raises: ApiError.
        """
        async with AsyncExitStack() as stack:
            async with self._arrivals.hold(session_key):
                addr = await self._where(session_key, avoid=tried[-1] if tried else None)
                tried[:] = [addr]
                sent = request.model_dump(exclude_defaults=True)
                events = await self._open(stack, "POST", addr, session_key, "turn", sent)
                first = await anext(events, None)
            if first is None:
                raise _proxy_down(addr, "it closed the connection")
            yield first
            async for event in events:
                yield event

    async def join(self, session_key: str) -> AsyncGenerator[TurnEvent, None]:
        """Yield the events of the session's turn in flight: those so far, then as they come.

        Raises: ApiError: 404 when no turn runs; 503 when its data proxy is down.
        """
        addr = await self._where(session_key, create=False)
        async with AsyncExitStack() as stack:
            begun = False
            try:
                async for event in await self._open(stack, "GET", addr, session_key, "events"):
                    begun = True
                    yield event
            except ApiError as error:
                if not begun:
                    raise
                yield TurnFailed.of(error)

    async def _open(
        self,
        stack: AsyncExitStack,
        method: str,
        addr: str,
        session_key: str,
        path: str,
        body: dict[str, Any] | None = None,
    ) -> AsyncIterator[TurnEvent]:
        url = f"{addr}/session/{path_key(session_key)}/{path}"
        try:
            answer = await stack.enter_async_context(self._client.stream(method, url, json=body))
            if answer.status_code != 200:
                await answer.aread()
                raise api_error_from(answer)
        except httpx.TransportError as error:
            raise _proxy_down(addr, cause_of(error)) from error
        return _events(addr, answer)

    async def _where(
        self, session_key: str, *, create: bool = True, avoid: str | None = None
    ) -> str:
        """Return the URL of the session's data proxy.

        The router is asked each time: it moves the sessions of a pair that is hung, which nobody
        else learns of. What it said last counts only while it is down itself.

        Args:
            create: whether a session without a pair is given one for good.
            avoid: a data proxy that failed just now.

        Raises: ApiError: 503 when the router is down, or no pair is up.
        """
        known = self._known.get(session_key)
        body = RouteBody(session_key=session_key, create=create, avoid=avoid, known=known)
        try:
            answer = await self._ask_router("POST", "/route", body.model_dump())
        except ApiError as error:
            if error.code != _ROUTER_UNAVAILABLE or known in (None, avoid):
                self._known.pop(session_key, None)
                raise
            return known
        addr = str(answer["data_proxy_addr"])
        if create:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[session_key] = addr
        return addr

    async def close(self, session_key: str) -> None:
        """Delete the session everywhere: its history, its agent, its place in a pair."""
        await self.call("POST", session_key, "close")
        self._known.pop(session_key, None)
        await self._ask_router(
            "POST", "/remove_session", SessionBody(session_key=session_key).model_dump()
        )

    async def call(
        self, method: str, session_key: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Call a route of the session's data proxy other than its turns.

        Raises: ApiError: what it answered; 503 when it is down.
        """
        path = f"/session/{path_key(session_key)}/{path}"
        addr = await self._where(session_key, create=False)
        try:
            return await self._call(method, addr, path, body)
        except ApiError as error:
            if error.code not in _UNAVAILABLE:
                raise
        addr = await self._where(session_key, create=False, avoid=addr)
        return await self._call(method, addr, path, body)

    async def sessions(self) -> list[ConversationInfo]:
        """Return every session, the one used last first; ``running`` where a turn is in flight."""
        rows: dict[str, ConversationInfo] = {}
        for row in await self._from_all("/sessions", ConversationInfo):
            known = rows.setdefault(row.session_key, row)
            if row.running and not known.running:
                rows[row.session_key] = known.model_copy(update={"running": True})
        return list(rows.values())

    async def turns(self) -> list[RunningTurn]:
        """Return every turn in flight."""
        return await self._from_all("/turns", RunningTurn)

    async def search(self, text: str, limit: int) -> list[SearchHit]:
        """Return the turns of all sessions that contain a text, the newest first.

        Any data proxy will do: they share one file.

        Raises: ApiError.
        """
        path = f"/search?{urlencode({'q': text, 'limit': limit})}"
        for addr in (live := await self._live()):
            try:
                answer = await self._call("GET", addr, path, timeout_s=LIST_TIMEOUT_S)
            except ApiError:
                if addr == live[-1]:
                    raise
                continue
            return [SearchHit.model_validate(row) for row in answer["data"]]
        raise ApiError(503, "No data proxy is up; try again.", retry_after_s=1.0)

    async def _live(self) -> list[str]:
        answer = await self._ask_router("GET", "/pairs")
        pairs = [PairState.model_validate(row) for row in answer["data"]]
        return [pair.addr for pair in pairs if pair.cause is None]

    async def _from_all(self, path: str, kind: type[Row]) -> list[Row]:
        """Return the rows of all data proxies that live. Raises: ApiError."""
        live = await self._live()
        answers = await asyncio.gather(
            *(self._call("GET", addr, path, timeout_s=LIST_TIMEOUT_S) for addr in live),
            return_exceptions=True,
        )
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in errors:
            logger.warning("list is incomplete path=%s cause=%s", path, error)
            if len(errors) == len(answers) or not isinstance(error, ApiError):
                raise error
        rows = (answer["data"] for answer in answers if not isinstance(answer, BaseException))
        return [kind.model_validate(row) for data in rows for row in data]

    async def problem(self) -> str:
        """Return what is wrong behind the gateway, in a sentence; empty when all is well."""
        try:
            url = f"{self._router}/health"
            health = await self._request("GET", url, None, HEALTH_TIMEOUT_S)
        except (httpx.TransportError, ApiError):
            return "the router does not answer: conversations that have a pair go on, new ones wait"
        return str(health.get("problem", ""))

    async def _ask_router(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            return await self._request(method, f"{self._router}{path}", body, ROUTER_TIMEOUT_S)
        except httpx.TransportError as error:
            raise _down("router", self._router, cause_of(error), _ROUTER_UNAVAILABLE) from error

    async def _call(
        self,
        method: str,
        addr: str,
        path: str,
        body: dict[str, Any] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[str, Any]:
        try:
            return await self._request(method, f"{addr}{path}", body, timeout_s)
        except httpx.TransportError as error:
            raise _proxy_down(addr, cause_of(error)) from error

    async def _request(
        self, method: str, url: str, body: dict[str, Any] | None, timeout_s: float
    ) -> dict[str, Any]:
        answer = await self._client.request(method, url, json=body, timeout=timeout_s)
        if answer.status_code != 200:
            raise api_error_from(answer)
        result: dict[str, Any] = answer.json()
        return result


async def _events(addr: str, answer: httpx.Response) -> AsyncIterator[TurnEvent]:
    try:
        async for sent in iter_sse(answer):
            yield event_from_json(sent.json())
    except httpx.TransportError as error:
        raise _proxy_down(addr, f"it died during the turn: {cause_of(error)}") from error


def _raise_if_unavailable(failed: TurnFailed) -> None:
    if failed.code in _UNAVAILABLE:
        raise failed.error()


def _proxy_down(addr: str, cause: str) -> ApiError:
    return _down("data proxy", addr, cause, PROXY_UNAVAILABLE)


def _down(role: str, url: str, cause: str, code: str) -> ApiError:
    return ApiError(
        503,
        f"The {role} at {url} is down ({cause}); the supervisor restarts it. Send it again.",
        code=code,
        retry_after_s=1.0,
    )
