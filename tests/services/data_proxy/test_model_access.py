"""What the worker gets in place of a model server's key: the relay, and keys for completions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.roles import Chain, Served, chain, eventually
from fakes.upstream import Upstream, running, say
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hermes_tui_common.auth import COMPLETIONS_KEY_PATH
from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_common.serving import write_private

KEY = "sk-sess-a-key-of-a-person"
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with running() as upstream:
        yield upstream


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Chain]:
    async with chain(tmp_path, gateway_run_file=tmp_path / "trainer.json") as running:
        yield running


@contextlib.asynccontextmanager
async def granted(one: Chain, url: str) -> AsyncIterator[dict[str, Any]]:
    """Yield what the worker was given for a turn, while the turn runs."""
    turn = asyncio.create_task(one.say("wait:gate", inf_base_url=url, session_api_key=KEY))
    await eventually(lambda: one.agent.seen)
    yield one.agent.seen[0].metadata["areal_inference"]
    one.agent.open("gate")
    assert (await turn).status_code == 200


async def post(
    upstream: dict[str, Any], path: str = "/chat/completions", body: Any = None
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {upstream['api_key']}"}
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        return await client.post(upstream["base_url"] + path, json=body or CHAT, headers=headers)


async def test_a_call_reaches_the_server_with_its_real_key(one: Chain, upstream: Upstream) -> None:
    upstream.asked.clear()
    async with granted(one, upstream.url) as given:
        assert KEY not in json.dumps(given)
        answer = await post(given)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert '"content": "hello"' in answer.text
    assert [(asked.path, asked.key) for asked in upstream.asked] == [("/v1/chat/completions", KEY)]


@pytest.mark.parametrize(
    "path",
    ["/../rl/set_reward", "/rl/set_reward", "/chat/completions/../../rl/set_reward", "/files"],
)
async def test_nothing_but_model_calls_goes_through(
    one: Chain, upstream: Upstream, path: str
) -> None:
    upstream.asked.clear()
    async with granted(one, upstream.url) as given:
        answer = await post(given, path, {"reward": 1.0})
    assert answer.status_code in (401, 403, 404), answer.text
    assert upstream.asked == []


async def test_the_key_opens_nothing_else_and_works_no_longer_than_the_turn(
    one: Chain, upstream: Upstream
) -> None:
    async with granted(one, upstream.url) as given:
        headers = {"Authorization": f"Bearer {given['api_key']}"}
        for url in (one.gateway, one.router, *one.proxies, *one.workers):
            answer = await one.client.get(f"{url}/sessions", headers=headers)
            assert answer.status_code == 401, url
    assert (await post(given)).status_code == 401


async def test_an_error_is_passed_on_without_the_key(one: Chain, upstream: Upstream) -> None:
    upstream.script = lambda asked: say(status=429, error=f"slow down, {asked.key}", code="slow")
    async with granted(one, upstream.url) as given:
        answer = await post(given)
    assert answer.status_code == 429
    assert answer.json()["error"]["message"] == "slow down, ***"


async def test_the_server_is_hung_up_on_when_the_worker_hangs_up(
    one: Chain, upstream: Upstream
) -> None:
    upstream.script = lambda asked: say("so", hang=True)
    upstream.asked.clear()
    async with granted(one, upstream.url) as given:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(given), 0.5)
        await eventually(lambda: upstream.asked[0].hung_up_at)


async def test_a_stream_that_breaks_off_breaks_off_here_too(one: Chain, upstream: Upstream) -> None:
    upstream.script = lambda asked: say("so", cut=True)
    async with granted(one, upstream.url) as given:
        with pytest.raises(httpx.RemoteProtocolError):
            await post(given)


async def test_a_server_that_is_down_is_said_to_be(one: Chain) -> None:
    async with granted(one, "http://127.0.0.1:9") as given:
        answer = await post(given)
    assert answer.status_code == 502
    assert "does not answer" in answer.json()["error"]["message"]


async def test_the_stack_s_own_gateway_is_called_directly_with_a_key_of_its_making(
    one: Chain, tmp_path: Path
) -> None:
    async def key(request: Request) -> Response:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        return JSONResponse({"api_key": "sk-comp-of-the-session", "session_id": "sess-1"})

    gateway = Served(Starlette(routes=[Route(COMPLETIONS_KEY_PATH, key, methods=["POST"])]))
    url = await gateway.start()
    port = int(url.rpartition(":")[2])
    run_file = RoleRunFile(
        name="trainer", pid=1, url=url, started_at=time.time(), host="127.0.0.1", port=port,
        instance="",
    )  # fmt: skip
    write_private(tmp_path / "trainer.json", run_file.model_dump_json())
    async with granted(one, f"http://localhost:{port}") as given:
        assert given["base_url"] == f"http://localhost:{port}/v1"
        assert given["api_key"] == "sk-comp-of-the-session"
    await gateway.stop()
