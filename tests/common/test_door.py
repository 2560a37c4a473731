"""Host and Origin: a foreign page gets nowhere, by whatever name it calls."""

from __future__ import annotations

import socket

import pytest
import websockets
from fakes.doors import get, open_door


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("LOCALHOST", 200),
        ("[::1]:5", 200),
        ("192.0.2.7", 200),
        (socket.gethostname(), 200),
        ("my.box:1", 200),
        ("evil.test", 421),
        ("127.0.0.1.evil.test", 421),
        ("localhost@evil.test", 421),
        ("evil.test:80\\@localhost", 421),
        ("2130706433", 421),
        ("[", 421),
    ],
)
async def test_only_names_of_this_server_are_served(host: str, status: int) -> None:
    async with open_door(allowed_hosts=["my.box"]) as door:
        got = await door.ask(get(host=host))
        assert int(got.split()[1]) in (status, 400 if status != 200 else status)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:{port}", 200),
        ("https://my.page", 200),
        ("https://my.page:444", 403),
        ("http://evil.test", 403),
        ("http://127.0.0.1:1", 403),
        ("null", 403),
        ("", 403),
    ],
)
async def test_only_own_and_listed_pages_may_call(origin: str, status: int) -> None:
    async with open_door(allowed_origins=["https://my.page"]) as door:
        origin = origin.format(port=door.port)
        raw = get("/health", f"Origin: {origin}", host=f"127.0.0.1:{door.port}")
        got = await door.ask(raw)
        assert int(got.split()[1]) == status
        allowed = b"access-control-allow-origin: https://my.page" in got.lower()
        assert allowed == (origin == "https://my.page")
        url = f"ws://127.0.0.1:{door.port}/ws"
        headers = {"Origin": origin}
        if status == 200:
            async with websockets.connect(url, additional_headers=headers) as ws:
                await ws.send("hello")
                assert await ws.recv() == "hello"
        else:
            with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
                await websockets.connect(url, additional_headers=headers)
            assert refused.value.response.status_code == status
