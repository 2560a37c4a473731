"""Which servers a turn may name: loopback and listed ones, and metadata services by no trick."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from hermes_tui_common.errors import ApiError
from hermes_tui_common.upstream_hosts import UpstreamHosts

LISTED = UpstreamHosts(("gpu-box", "10.0.0.5:8000", "169.254.169.254", "rebind.test", ""))

REFUSED = [
    "http://169.254.169.254/latest/meta-data",
    "http://[fe80::1]/v1",
    "http://[fd00:ec2::254]/v1",
    "http://[::ffff:169.254.169.254]/v1",
    "http://[64:ff9b::a9fe:a9fe]/v1",
    "http://[2002:a9fe:a9fe::]/v1",
    "http://2852039166/v1",
    "http://0xa9fea9fe/v1",
    "http://0251.0376.0251.0376/v1",
    "http://169.254.43518/v1",
    "http://127.1/v1",
    "http://0.0.0.0:80/v1",
    "http://[::]/v1",
    "http://224.0.0.1/v1",
    "http://127.0.0.1@169.254.169.254/v1",
    "http://169.254.169.254#@127.0.0.1/v1",
    "http://127.0.0.1\\@169.254.169.254/v1",
    "http://127.0.0.1:80%2f@169.254.169.254/v1",
    "http://１６９.254.169.254/v1",
    "http://169。254。169。254/v1",
    "http://localhost.evil.test/v1",
    "http://other.test/v1",
    "http://gpu-box.evil.test/v1",
    "http://10.0.0.5:8001/v1",
    "http://192.168.1.1/v1",
    "http://[fe80::1%25eth0]/v1",
    "http://user:pw@127.0.0.1/v1",
    "http://127.0.0.1/v1?x=1",
    "http://127.0.0.1/v1\r\nHost: x",
    "file:///etc/passwd",
    "gopher://127.0.0.1/",
    "http://",
    "",
]


@pytest.mark.parametrize("url", REFUSED)
async def test_what_is_refused(url: str) -> None:
    with pytest.raises(ApiError) as refused:
        await LISTED.check(url)
    assert (refused.value.status, refused.value.param) == (400, "inf_base_url")
    assert "user:pw" not in refused.value.message


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1",
        "https://127.9.9.9/v1",
        "http://localhost:1/v1",
        "http://[::1]:5/v1",
        "http://[::ffff:127.0.0.1]/v1",
        "http://10.0.0.5:8000/v1",
        "http://GPU-box.:99/v1/a_b~c",
    ],
)
async def test_what_may_be_named(url: str) -> None:
    await LISTED.check(url)


@pytest.mark.parametrize(
    ("address", "allowed"),
    [("169.254.169.254", False), ("fe80::1%3", False), ("10.1.2.3", True), ("127.0.0.1", True)],
)
async def test_a_listed_name_does_not_lead_to_metadata(
    monkeypatch: pytest.MonkeyPatch, address: str, allowed: bool
) -> None:
    async def resolved(host: str, *_: Any, **__: Any) -> list[Any]:
        assert host == "rebind.test"
        rows = [(socket.AF_INET, 1, 6, "", ("10.9.9.9", 0)), (0, 1, 6, "", (address, 0))]
        return rows

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved, raising=False)
    if allowed:
        await LISTED.check("http://rebind.test/v1")
    else:
        with pytest.raises(ApiError, match="link-local or metadata"):
            await LISTED.check("http://rebind.test/v1")


async def test_who_may_name_any_server_may_not_name_those() -> None:
    anywhere = UpstreamHosts(None, "url")
    await anywhere.check("https://10.1.2.3/v1")
    with pytest.raises(ApiError) as refused:
        await anywhere.check("http://169.254.169.254/v1")
    assert refused.value.param == "url"
