"""Connections that wait for ever, are too many, or too long: each is ended, and others get in."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from fakes.doors import answer, get, open_door
from uvicorn.protocols.http.h11_impl import H11Protocol

from hermes_tui_common import connections as connections_module
from hermes_tui_common.connections import Connections, _Phase
from hermes_tui_common.limits import HttpConfig

POST = b"POST /small HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SOON = {"header_timeout_s": 0.2, "body_timeout_s": 0.2, "reader_timeout_s": 0.3}


@pytest.fixture(params=["auto", "h11"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn takes httptools where it is installed; the limits hold with h11, too."""
    if request.param == "h11":
        monkeypatch.setattr(connections_module, "AutoHTTPProtocol", H11Protocol)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A",
        b"",
        POST + b"Content-Length: 9\r\n\r\n{}",
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}",
    ],
)
async def test_a_request_that_does_not_come_to_its_end_is_closed(sent: bytes, kept: bool) -> None:
    async with open_door(**SOON) as door:
        reader, writer = await door.connect()
        async with asyncio.timeout(20):
            if kept:  # the connection of an earlier request
                writer.write(get())
                assert (await answer(reader)).startswith(b"HTTP/1.1 200 ")
            writer.write(sent)
            late = await reader.read()
        writer.close()
        # Between two requests there is time: the connection goes as an idle one, without a word.
        assert late == b"" if kept and not sent else late.startswith(b"HTTP/1.1 408 ")
        assert (await door.ask(get())).startswith(b"HTTP/1.1 200 ")


async def test_half_sent_requests_lock_nobody_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with open_door(max_connections=8, header_timeout_s=60) as door:
        flood = [await door.connect() for _ in range(40)]
        for _, writer in flood:
            writer.write(b"GET /health HTTP/1.1\r\nHost: ")
        assert (await door.ask(get())).startswith(b"HTTP/1.1 200 ")
        async with asyncio.timeout(10):
            assert await flood[0][0].read() == b""  # the first was the first to go
        for _, writer in flood:
            writer.close()
    said = [r.getMessage() for r in caplog.records if "connections are full" in r.getMessage()]
    assert len(said) == 1
    assert "max_connections" in said[0]


async def test_when_all_are_at_work_a_new_one_is_refused() -> None:
    async with open_door(max_connections=8, reader_timeout_s=60) as door:
        busy = [await door.connect() for _ in range(8)]
        for reader, writer in busy:
            writer.write(get("/stream"))
            await reader.readuntil(b"\r\n\r\n")
        assert (await door.ask(get())).startswith(b"HTTP/1.1 503 ")
        for _, writer in busy:
            writer.transport.abort()


@pytest.mark.parametrize(
    "raw",
    [
        get("/health", "X-Long: " + "x" * 1_000_000),
        get("/health?" + "x" * 40_000),
        get("/health", *(f"X-{i}: y" for i in range(200))),
    ],
    ids=["long", "path", "many"],
)
async def test_too_much_of_headers_is_431(raw: bytes) -> None:
    async with open_door() as door:
        got = await door.ask(raw)
        assert got.startswith(b"HTTP/1.1 431 ")
        assert b"http.max_header" in got


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ",
        b"POST /large HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
        b"0\r\nX-Trailer: ",
    ],
    ids=["headers", "trailers"],
)
async def test_headers_without_end_are_cut(head: bytes) -> None:
    async with open_door() as door:
        reader, writer = await door.connect()
        writer.write(head)
        sent = 0
        try:
            async with asyncio.timeout(20):
                while not reader.at_eof() and sent < 50_000_000:
                    writer.write(b"x" * 65_536)
                    sent += 65_536
                    await writer.drain()
                    await asyncio.sleep(0)
        except ConnectionError:
            pass
        assert sent < 50_000_000
        assert (await door.ask(get())).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.parametrize(("path", "size"), [("/small", 2_000_000), ("/large", 60_000_000)])
async def test_a_large_body_is_refused_before_it_is_sent(path: str, size: int) -> None:
    async with open_door() as door:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n"
        got = await door.ask(head.encode())
        assert got.startswith(b"HTTP/1.1 413 ")
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["message"]


async def test_a_large_body_without_a_length_is_refused_on_the_way() -> None:
    async with open_door(body_timeout_s=30) as door:
        reader, writer = await door.connect()
        writer.write(b"POST /small HTTP/1.1\r\nHost: a.localhost\r\n".replace(b"a.", b""))
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            writer.write(b"20000\r\n" + b" " * 0x20000 + b"\r\n")
        async with asyncio.timeout(10):
            assert (await answer(reader)).startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_a_client_that_does_not_read_is_closed() -> None:
    async with open_door(**SOON) as door:
        reader, writer = await door.connect()
        writer.write(get("/stream"))
        async with asyncio.timeout(10):
            await door.app.streams_ended.wait()
        writer.transport.abort()
        assert (await door.ask(get())).startswith(b"HTTP/1.1 200 ")
        del reader


async def test_large_bodies_are_parsed_in_a_thread() -> None:
    async with open_door() as door:
        for size in (10, 500_000):
            body = json.dumps({"text": "x" * size}).encode()
            head = f"POST /large HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
            assert (await door.ask(head.encode() + body)).startswith(b"HTTP/1.1 200 ")
        assert door.app.threads[0] == "MainThread"
        assert door.app.threads[1] != "MainThread"


class _Transport:
    """A connection from an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.aborted = False

    def get_extra_info(self, name: str) -> Any:
        return (self.address, 1) if name == "peername" else None

    def abort(self) -> None:
        self.aborted = True


def test_one_address_beyond_loopback_gets_its_share() -> None:
    held = Connections(HttpConfig(max_connections=100, max_connections_per_peer=4))
    greedy: list[Any] = [_Transport("192.0.2.1") for _ in range(6)]
    for transport in greedy:
        assert held.admit(transport)
        held.set_phase(transport, _Phase.HEAD)
    assert [transport.aborted for transport in greedy] == [True, True] + [False] * 4
    for transport in greedy[2:]:
        held.set_phase(transport, _Phase.BUSY)
    assert not held.admit(_Transport("192.0.2.1"))  # type: ignore[arg-type]
    assert held.admit(_Transport("192.0.2.2"))  # type: ignore[arg-type]
    for _ in range(20):
        assert held.admit(_Transport("::ffff:127.0.0.1"))  # type: ignore[arg-type]
    held.forget(greedy[2])
    assert held.admit(_Transport("192.0.2.1"))  # type: ignore[arg-type]
