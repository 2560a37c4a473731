"""The connections of one server: how many there may be, and how long each may take.

uvicorn closes a connection that is idle after an answer. It waits for ever for a request that does
not come to its end, and for a client that does not read; it counts no bytes of unfinished headers,
and when descriptors run out it accepts nobody. This adds what is missing to its protocol classes,
h11's and httptools' alike (checked with uvicorn 0.54).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import ipaddress
import json
import logging
import resource
import time
from collections import Counter
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

from hermes_tui_common.errors import ApiError
from hermes_tui_common.limits import HttpConfig

logger = logging.getLogger(__name__)

LOG_EVERY_S = 60.0
"""Time between two lines about a server that is full."""

DRAIN_S = 5.0
"""How long the rest of a body is read once its answer was sent: closing at once would take the
answer away from a client that is still sending."""

_LOCAL = "this machine"


class _Phase(enum.Enum):
    HEAD = "headers are awaited"
    BODY = "the body is awaited"
    BUSY = "the request is answered"
    DRAIN = "the answer was sent before the body had come"
    IDLE = "a next request may come"


class Connections:
    """All connections of one server.

    Args:
        limits: how many there may be.
    """

    def __init__(self, limits: HttpConfig) -> None:
        self.limits = limits
        self._most = _most_connections(limits)
        self._open: dict[asyncio.Transport, str] = {}
        self._peers: Counter[str] = Counter()
        self._half: dict[asyncio.Transport, None] = {}
        """Those that have begun a request, or none yet; the one that waits the longest first."""
        self._idle: dict[asyncio.Transport, None] = {}
        """Those that were answered and are kept, in the same order."""
        self._num_told = 0
        self._told_at = -LOG_EVERY_S

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, transport: asyncio.Transport) -> bool:
        """Count a new connection; return False when there is no room for it."""
        peer = _peer(transport)
        if len(self._open) >= self._most and not self._make_room(None):
            return False
        most = self.limits.max_connections_per_peer
        if peer != _LOCAL and self._peers[peer] >= most and not self._make_room(peer):
            return False
        self._open[transport] = peer
        self._peers[peer] += 1
        return True

    def set_phase(self, transport: asyncio.Transport, phase: _Phase) -> None:
        """Note what a connection does."""
        if transport not in self._open:
            return
        self._half.pop(transport, None)
        self._idle.pop(transport, None)
        if phase in (_Phase.HEAD, _Phase.BODY):
            self._half[transport] = None
        elif phase in (_Phase.IDLE, _Phase.DRAIN):
            self._idle[transport] = None

    def forget(self, transport: asyncio.Transport) -> None:
        """Note that a connection has gone."""
        peer = self._open.pop(transport, None)
        if peer is None:
            return
        self._half.pop(transport, None)
        self._idle.pop(transport, None)
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]

    def _make_room(self, peer: str | None) -> bool:
        """Close the connection that waits the longest, of one peer or of all; False without one."""
        waiting = (
            transport
            for transports in (self._half, self._idle)
            for transport in transports
            if peer in (None, self._open[transport])
        )
        victim = next(waiting, None)
        self._tell(peer, "new ones are refused" if victim is None else "the oldest make room")
        if victim is None:
            return False
        self.forget(victim)
        victim.abort()
        return True

    def _tell(self, peer: str | None, what: str) -> None:
        self._num_told += 1
        now = time.monotonic()
        if now - self._told_at < LOG_EVERY_S:
            return
        self._told_at = now
        most = self._most if peer is None else self.limits.max_connections_per_peer
        logger.warning(
            "connections are full, %s peer=%s most=%s times=%s setting=http.max_connections%s",
            what,
            peer or "any",
            most,
            self._num_told,
            "_per_peer" if peer else "",
        )


def _most_connections(limits: HttpConfig) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each turn that is passed on takes a second descriptor; files and databases take some more.
    return limits.max_connections if soft < 0 else min(limits.max_connections, max(8, soft // 2))


def _peer(transport: asyncio.Transport) -> str:
    address = get_remote_addr(transport)
    if address is None:  # a Unix socket
        return _LOCAL
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(address[0].partition("%")[0])
        mapped = getattr(found, "ipv4_mapped", None) or found
        return _LOCAL if mapped.is_loopback else str(mapped)
    return address[0]


def guarded_http(connections: Connections) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol, held to the limits of ``connections``."""
    limits = connections.limits
    base: Any = AutoHTTPProtocol

    class GuardedHttp(_SlowReaders, base):  # type: ignore[misc]  # one of two classes
        """A connection that may not wait for ever."""

        _phase = _Phase.IDLE
        _timer: asyncio.TimerHandle | None = None
        _over = False
        """Whether it was refused, or has become a web socket."""
        _num_stray = 0
        """Bytes since the headers or the body last got on."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if connections.admit(transport):
                self._enter(_Phase.HEAD)
            else:
                self._refuse(503, "This server has as many connections as it may; try again.")

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timers()
            connections.forget(self.transport)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._over:
                return
            if self._phase is _Phase.IDLE:
                self._enter(_Phase.HEAD)
            cycle, num_body = self.cycle, self._num_body()
            super().data_received(data)
            if self.cycle is not cycle or self._num_body() > num_body:
                self._num_stray = 0
            else:
                self._num_stray += len(data)
            self._update()
            if self._is_too_long():
                self._refuse(
                    431,
                    f"The headers have more than {limits.max_header_bytes} bytes "
                    "(http.max_header_bytes).",
                )

        def _is_too_long(self) -> bool:
            if self._over or self._phase is _Phase.DRAIN or self.transport.is_closing():
                return False
            # Reading is paused while a further request waits behind the one that is answered.
            return self._num_stray > limits.max_header_bytes and not self.flow.read_paused

        def on_response_complete(self) -> None:
            cycle = self.cycle
            super().on_response_complete()
            if self.cycle is not cycle:
                self._num_stray = 0
            self._update()

        def handle_websocket_upgrade(self, *args: Any) -> None:
            self._over = True
            self._stop_timers()
            connections.set_phase(self.transport, _Phase.BUSY)
            super().handle_websocket_upgrade(*args)

        def _num_body(self) -> int:
            return len(self.cycle.body) if self.cycle else 0

        def _update(self) -> None:
            cycle = self.cycle
            if cycle is None or self._over or self.transport.is_closing():
                return
            if not cycle.response_complete:
                phase = _Phase.BODY if cycle.more_body else _Phase.BUSY
            elif cycle.more_body:
                phase = _Phase.DRAIN
            else:
                phase = _Phase.HEAD if self._num_stray else _Phase.IDLE
            if phase is not self._phase:
                self._enter(phase)

        def _enter(self, phase: _Phase) -> None:
            self._phase = phase
            if self._timer:
                self._timer.cancel()
                self._timer = None
            seconds = {
                _Phase.HEAD: limits.header_timeout_s,
                _Phase.BODY: limits.body_timeout_s,
                _Phase.DRAIN: DRAIN_S,
            }.get(phase)
            if seconds is not None:
                self._timer = self.loop.call_later(seconds, self._late)
            connections.set_phase(self.transport, phase)

        def _late(self) -> None:
            if self._phase is _Phase.DRAIN:
                self.transport.close()
                return
            part = "headers" if self._phase is _Phase.HEAD else "body"
            self._refuse(408, f"The request's {part} did not come in time.")

        def _refuse(self, status: int, message: str) -> None:
            """Answer with an error unless an answer has begun, and close."""
            self._over = True
            self._stop_timers()
            if self.cycle and self.cycle.response_started and not self.cycle.response_complete:
                self.transport.abort()
                return
            body = json.dumps(ApiError(status, message).body()).encode()
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            self.transport.close()

        def _stop_timers(self) -> None:
            if self._timer:
                self._timer.cancel()
                self._timer = None
            self._stop_reader_timer()

    GuardedHttp.reader_timeout_s = limits.reader_timeout_s
    return GuardedHttp


def guarded_websocket(connections: Connections) -> type[asyncio.Protocol] | None:
    """Return uvicorn's WebSocket protocol, held to the limits; None without a library for it.

    uvicorn pings the client itself, and bounds its messages.
    """
    if AutoWebSocketsProtocol is None:
        return None
    base: Any = AutoWebSocketsProtocol

    class GuardedWebSocket(_SlowReaders, base):  # type: ignore[misc]
        """A web socket that is counted, and whose client must read."""

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_reader_timer()
            connections.forget(self.transport)
            super().connection_lost(exc)

    GuardedWebSocket.reader_timeout_s = connections.limits.reader_timeout_s
    return GuardedWebSocket


class _SlowReaders(asyncio.Protocol):
    """Beside a protocol of uvicorn's: ends a connection whose client has not read for too long."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    reader_timeout_s = 0.0
    _reader_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader_timer = self.loop.call_later(self.reader_timeout_s, self._abort_slow)

    def resume_writing(self) -> None:
        self._stop_reader_timer()
        super().resume_writing()

    def _abort_slow(self) -> None:
        logger.info("client does not read; closed peer=%s", _peer(self.transport))
        self.transport.abort()

    def _stop_reader_timer(self) -> None:
        if self._reader_timer:
            self._reader_timer.cancel()
            self._reader_timer = None


_PHRASES = {
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
