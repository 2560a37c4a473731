"""The router's memory: the pairs, their health, and the pair of each session."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

import httpx

from hermes_tui_common.errors import ApiError, cause_of
from hermes_tui_services.api.protocol import RegisterBody

logger = logging.getLogger(__name__)

HEALTH_TIMEOUT_S = 2.0
"""How long /health may take. A process that is gone refuses the connection at once."""

MAX_SLOW_POLLS = 3
"""A process that accepts connections but answers late counts as dead after this many polls."""

FORGET_S = 30.0
"""A pair that is dead and no longer registers is forgotten after this long."""

LEARN_S = 5.0
"""Within this time of its start every pair that lives has registered; they try each second."""


@dataclass(slots=True, kw_only=True)
class Pair:
    """A data proxy and its worker."""

    addr: str
    worker_addr: str
    instance: str
    cause: str = ""
    """Why it gets no sessions; empty when it lives."""
    slow_polls: int = 0
    seen_at: float = field(default_factory=time.monotonic)


class Pairs:
    """The pairs and the sessions; data proxies register themselves every second."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._pairs: dict[str, Pair] = {}
        self._sessions: dict[str, str] = {}
        self._started_at = time.monotonic()

    @property
    def num_sessions(self) -> int:
        """How many sessions have a pair."""
        return len(self._sessions)

    def all(self) -> list[Pair]:
        """Return every pair that is known."""
        return list(self._pairs.values())

    @property
    def problem(self) -> str:
        """Which pairs are down, in a sentence; empty when there are some and all live."""
        if not self._pairs:
            return "no pair of data proxy and worker has registered: turns wait for one"
        causes = [pair.cause for pair in self._pairs.values() if pair.cause]
        if not causes:
            return ""
        return f"{len(causes)} of {len(self._pairs)} pairs are down: {'; '.join(causes)}"

    def register(self, body: RegisterBody) -> bool:
        """Add a pair, or note that it lives; return whether this same process was known before."""
        pair = self._pairs.get(body.addr)
        known = pair is not None and pair.instance == body.instance
        if pair is None or not known:
            logger.info("registered pair=%s worker=%s", body.addr, body.worker_addr)
            pair = self._pairs[body.addr] = Pair(
                addr=body.addr, worker_addr=body.worker_addr, instance=body.instance
            )
        pair.seen_at = time.monotonic()
        for session_key in body.sessions:
            self._sessions.setdefault(session_key, body.addr)
        return known

    def unregister(self, addr: str) -> None:
        """Forget a pair; its sessions are given another when they come back."""
        if self._pairs.pop(addr, None):
            logger.info("unregistered pair=%s", addr)
        self._sessions = {key: at for key, at in self._sessions.items() if at != addr}

    def remove_session(self, session_key: str, addr: str | None = None) -> None:
        """Forget where a session is; with an address, only if it is there."""
        if addr is None or self._sessions.get(session_key) == addr:
            self._sessions.pop(session_key, None)

    async def route(
        self, session_key: str, *, create: bool, avoid: str | None = None, known: str | None = None
    ) -> str:
        """Return the data proxy for a session: the one that it has, else the least busy one.

        Args:
            create: whether the session keeps what it is given.
            avoid: a data proxy that just failed the caller; another goes first unless it answers.
            known: what the caller was told last, for a router that was restarted since.
        Raises: ApiError: 503 when no pair lives; says why.
        """
        suspect = self._pairs.get(avoid or "")
        if suspect:
            await self._poll(suspect)
        slow = suspect if suspect and suspect.slow_polls else None
        addr = self._sessions.get(session_key, known or "")
        if addr and addr == known and addr not in (avoid, *self._pairs) and self._is_learning():
            return addr
        pair = self._pairs.get(addr)
        if pair is None or pair.cause or (pair is slow and self._live(but=slow)):
            pair = self._least_busy(but=slow)
        if create:
            self._sessions[session_key] = pair.addr
        return pair.addr

    def _is_learning(self) -> bool:
        """Return whether it was started just now, so that pairs may live that it does not know."""
        return time.monotonic() - self._started_at < LEARN_S

    def _live(self, but: Pair | None = None) -> list[Pair]:
        return [pair for pair in self._pairs.values() if not pair.cause and pair is not but]

    def _least_busy(self, but: Pair | None = None) -> Pair:
        """Return the live pair with the fewest sessions; ``but`` only if there is no other."""
        live = self._live(but) or self._live()
        if not live:
            causes = "; ".join(f"{pair.addr}: {pair.cause}" for pair in self._pairs.values())
            raise ApiError(
                503,
                f"No pair of data proxy and worker is up ({causes or 'none has registered'}); "
                "the supervisor restarts them.",
                code="no_live_pair",
                retry_after_s=1.0,
            )
        counts = dict.fromkeys((pair.addr for pair in live), 0)
        for addr in self._sessions.values():
            if addr in counts:
                counts[addr] += 1
        return min(live, key=lambda pair: counts[pair.addr])

    async def watch(self, every_s: float) -> None:
        """Poll every pair's health until cancelled."""
        while True:
            await asyncio.gather(*map(self._poll, self.all()))
            for pair in self.all():
                if pair.cause and time.monotonic() - pair.seen_at > FORGET_S:
                    self.unregister(pair.addr)
            await asyncio.sleep(every_s)

    async def _poll(self, pair: Pair) -> None:
        causes = await asyncio.gather(
            self._health("data proxy", pair.addr), self._health("worker", pair.worker_addr)
        )
        cause = "; ".join(filter(None, causes))
        slow = bool(cause) and all(_SLOW in text for text in causes if text)
        pair.slow_polls = pair.slow_polls + 1 if slow else 0
        if slow and pair.slow_polls < MAX_SLOW_POLLS:
            return
        if bool(cause) != bool(pair.cause):
            state = f"dead cause={cause}" if cause else "alive"
            logger.warning("pair=%s is %s", pair.addr, state)
        pair.cause = cause

    async def _health(self, name: str, url: str) -> str:
        """Return what is wrong with a process; empty when nothing is."""
        try:
            answer = await self._client.get(f"{url}/health", timeout=HEALTH_TIMEOUT_S)
        except httpx.TimeoutException:
            return f"{name} {_SLOW}"
        except httpx.HTTPError as error:
            return f"{name} is down ({cause_of(error)})"
        return "" if answer.status_code == 200 else f"{name} answers {answer.status_code}"


_SLOW = "does not answer in time"
