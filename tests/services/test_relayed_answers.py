"""An agent that passes another server's answer on, as AReaL's ``StreamResponse`` does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.roles import Chain, chain, eventually

from hermes_tui_services.api.agent import AgentRequest

PARTS = [b'data: {"id": "\xc3', b'\xa9"}\n\n', b"data: [DONE]\n\n"]


@dataclass
class StreamResponse:
    """As AReaL's class of this name: what an agent written for it returns."""

    status_code: int
    headers: dict[str, str]
    body: AsyncIterator[bytes]


class RelayingAgent:
    """Answers with parts of another server's answer."""

    def __init__(self) -> None:
        self.seen: list[AgentRequest] = []
        self.gate = asyncio.Event()
        self.status = 200
        self.breaks = False

    async def run(self, request: AgentRequest, *, emitter: Any) -> StreamResponse:
        self.seen.append(request)
        headers = {"Content-Type": "text/event-stream", "X-Upstream": "one", "Content-Length": "9"}
        return StreamResponse(self.status, headers, self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        yield PARTS[0]
        await self.gate.wait()
        if self.breaks:
            raise RuntimeError("the other server died")
        for part in PARTS[1:]:
            yield part


@pytest.fixture
async def relaying(tmp_path: Path) -> AsyncIterator[tuple[Chain, RelayingAgent]]:
    async with chain(tmp_path) as one:
        agent = RelayingAgent()
        one.agent.run = agent.run  # type: ignore[assignment,method-assign]
        yield one, agent


def body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}


async def test_the_answer_reaches_the_client_byte_for_byte_while_it_is_made(
    relaying: tuple[Chain, RelayingAgent],
) -> None:
    one, agent = relaying
    async with one.client.stream("POST", "/v1/chat/completions", json=body(stream=True)) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-upstream"] == "one"
        assert answer.headers["x-areal-session-key"]
        parts = answer.aiter_raw()
        assert await anext(parts) == PARTS[0]
        agent.gate.set()
        assert b"".join([part async for part in parts]) == b"".join(PARTS[1:])


async def test_the_agent_gets_the_request_without_the_fields_that_steer_the_service(
    relaying: tuple[Chain, RelayingAgent],
) -> None:
    one, agent = relaying
    agent.gate.set()
    agent.status = 418
    steering = {"inf_base_url": "http://127.0.0.1:1/v1", "session_api_key": "sk-sess-x"}
    answer = await one.client.post("/v1/chat/completions", json=body(temperature=0.5, **steering))
    assert answer.status_code == 418
    assert answer.content == b"".join(PARTS)
    (request,) = agent.seen
    assert request.metadata["chat_request"] == body(temperature=0.5)
    key = request.metadata["areal_inference"]["api_key"]
    assert key.startswith("sk-comp-")  # it opens completions alone, not the session's rewards


async def test_an_answer_that_breaks_off_breaks_the_connection(
    relaying: tuple[Chain, RelayingAgent],
) -> None:
    one, agent = relaying
    agent.breaks = True
    agent.gate.set()
    with pytest.raises(httpx.RemoteProtocolError):
        await one.client.post("/v1/chat/completions", json=body(stream=True))


async def test_a_client_that_leaves_ends_the_answer(
    relaying: tuple[Chain, RelayingAgent],
) -> None:
    one, _ = relaying
    async with one.client.stream("POST", "/v1/chat/completions", json=body(stream=True)) as answer:
        await anext(answer.aiter_raw())

    async def over() -> bool:
        return not (await one.client.get("/turns")).json()["data"]

    await eventually(over)


async def test_other_apis_do_not_relay_and_callers_cannot_forge_the_request(
    relaying: tuple[Chain, RelayingAgent],
) -> None:
    one, agent = relaying
    agent.gate.set()
    refused = await one.say("hi")
    assert refused.status_code == 502
    assert "/v1/chat/completions" in refused.text
    forged = await one.say("hi", metadata={"chat_request": {}})
    assert forged.status_code == 400
    assert "metadata.chat_request" in forged.text
