"""Registers a pair with the router, once a second: a restarted router learns of it this way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx

from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_services.api.config import DataProxyRole
from hermes_tui_services.api.protocol import AddrBody, RegisterBody, SessionBody

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
"""Time between two registrations: for at most this long a restarted router lacks the pair."""

RETRY_S = 0.25
"""Time between two tries while the router is down, or this process is not listening yet."""

CALL_S = 3.0
"""How long the router may take to answer."""


class Registration:
    """One data proxy's registration.

    Args:
        client: knows the admin key.
        config: the role.
        sessions: returns the sessions that this data proxy holds.
        url: where this process answers; None reads it from the run file once it is there.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        config: DataProxyRole,
        sessions: Callable[[], Iterable[str]],
        url: str | None = None,
    ) -> None:
        self._client = client
        self._config = config
        self._sessions = sessions
        self._url = url
        self._router = config.router_url.rstrip("/")
        self.problem = "this pair has not registered with the router yet: it gets no sessions"
        """Why the pair may get no sessions; empty when it is registered."""

    async def keep(self) -> None:
        """Register for ever; returns only by cancellation."""
        known = False
        while True:
            try:
                known = await self._register(known=known)
                self.problem = "" if known else self.problem
                await asyncio.sleep(HEARTBEAT_S if known else RETRY_S)
            except (httpx.HTTPError, OSError, ValueError) as error:
                if known:
                    logger.warning("router lost url=%s cause=%s", self._router, error)
                known = False
                self.problem = "the router does not answer: this pair may get no sessions"
                await asyncio.sleep(RETRY_S)

    async def unregister(self) -> None:
        """Take the pair out; a router that is gone does not matter."""
        if self._url is None:
            return
        await self._tell("/unregister", AddrBody(addr=self._url).model_dump())

    async def release(self, session_key: str) -> None:
        """Free the session's place in this pair."""
        body = SessionBody(session_key=session_key, addr=self._url)
        await self._tell("/remove_session", body.model_dump())

    async def _tell(self, path: str, body: dict[str, object]) -> None:
        try:
            await self._client.post(f"{self._router}{path}", json=body, timeout=CALL_S)
        except httpx.TransportError as error:
            logger.info("router not told path=%s cause=%s", path, error)

    async def _register(self, *, known: bool) -> bool:
        if self._url is None:
            self._url = _own_url(self._config.serve.run_file, self._config.serve.instance)
            if self._url is None:
                return False
        body = RegisterBody(
            addr=self._url,
            worker_addr=self._config.worker_url,
            instance=self._config.serve.instance,
            sessions=[] if known else list(self._sessions()),
        )
        answer = await self._client.post(
            f"{self._router}/register", json=body.model_dump(), timeout=CALL_S
        )
        answer.raise_for_status()
        if not known:
            logger.info("registered router=%s url=%s", self._router, self._url)
        # A router that did not know the pair is told its sessions with the next call, at once.
        return bool(answer.json()["known"]) or not known


def _own_url(run_file: Path | None, instance: str) -> str | None:
    """Return this process's URL from its run file; None while it is not written yet."""
    if run_file is None or not run_file.exists():
        return None
    own = RoleRunFile.read(run_file)
    return own.url if own.instance == instance else None
