"""``/ws``: AReaL's frames, live, in order, with collected and repeated messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.roles import ADMIN_KEY, Chain, chain, eventually
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from hermes_tui_services.api.client import AgentClient


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Chain]:
    async with chain(tmp_path) as running:
        yield running


@pytest.fixture
async def socket(one: Chain) -> AsyncIterator[ClientConnection]:
    async with connect(ws_url(one, f"?token={ADMIN_KEY}")) as connection:
        yield connection


def ws_url(one: Chain, query: str = "") -> str:
    return one.gateway.replace("http", "ws") + "/ws" + query


async def send(socket: ClientConnection, request_id: str, message: str, **params: Any) -> None:
    fields = {"message": message, "sessionKey": "s", **params}
    await socket.send(
        json.dumps({"type": "req", "id": request_id, "method": "agent", "params": fields})
    )


async def receive(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(5):
        frame: dict[str, Any] = json.loads(await socket.recv())
        return frame


async def until_done(socket: ClientConnection, *ids: str) -> list[dict[str, Any]]:
    """Return all frames up to the last of the requests' final answers."""
    frames, open_ids = [], set(ids)
    while open_ids:
        frame = await receive(socket)
        frames.append(frame)
        if frame["type"] == "res" and frame["payload"]["status"] in ("complete", "failed"):
            open_ids.remove(frame["id"])
    return frames


async def test_a_turn_is_accepted_streamed_and_completed(socket: ClientConnection) -> None:
    await send(socket, "1", "hello tool:look")
    frames = await until_done(socket, "1")
    run_id = frames[0]["payload"]["runId"]
    assert run_id.startswith("run-")
    assert frames[0] == {
        "type": "res",
        "id": "1",
        "ok": True,
        "payload": {"runId": run_id, "status": "accepted"},
    }
    assert frames[1] == {
        "type": "event",
        "event": "agent",
        "payload": {"runId": run_id, "delta": "hello"},
    }
    call = frames[2]["payload"]["toolCall"]
    assert (call["name"], call["args"]) == ("look", '{"a": 1}')
    assert frames[3]["payload"]["toolResult"] == {"callId": call["callId"], "result": "done"}
    assert frames[4]["payload"] == {"runId": run_id, "status": "complete", "summary": "hello"}


async def test_a_question_and_its_answer_are_frames(one: Chain, socket: ClientConnection) -> None:
    await send(socket, "1", "ask:a wait:x")
    await eventually(lambda: one.agent.waiting)
    async with AgentClient(one.gateway, ADMIN_KEY) as other:
        await other.approve("s", "a", "once")
    one.agent.open("x")
    payloads = [frame["payload"] for frame in await until_done(socket, "1")]
    assert payloads[1]["approval"]["approval_id"] == "a"
    assert payloads[2]["approvalAnswered"] == {"approval_id": "a", "choice": "once"}


async def test_a_failure_says_why(socket: ClientConnection) -> None:
    await send(socket, "1", "fail:the-cause")
    last = (await until_done(socket, "1"))[-1]
    assert last["ok"] is False
    assert last["payload"]["status"] == "failed"
    assert "the-cause" in last["payload"]["error"]


BAD_FRAMES: list[tuple[str | bytes, str]] = [
    ("not json", "JSON"),
    ("[" * 20_000, "nested"),
    (b"\xff", "JSON"),
    (b"", "req"),
    ("", "req"),
    ("[]", "req"),
    ('{"type": "req", "id": 7}', "id"),
    ('{"type": "req", "id": "1", "params": 7}', "dictionary"),
    ('{"type": "event"}', "req"),
    ('{"type": "req", "method": "agent"}', "id"),
    ('{"type": "req", "id": "1", "method": "dance"}', "dance"),
    ('{"type": "req", "id": "1", "params": {"message": "x"}}', "sessionKey"),
    ('{"type": "req", "id": "1", "params": {"message": "", "sessionKey": "s"}}', "text"),
    ('{"type": "req", "id": "1", "params": {"message": "x", "sessionKey": "s",'
     ' "session_api_key": "k"}}', "inf_base_url"),
]  # fmt: skip


async def test_a_bad_frame_is_answered_and_the_socket_lives(socket: ClientConnection) -> None:
    for frame, word in BAD_FRAMES:
        await socket.send(frame)
        answer = await receive(socket)
        assert (answer["type"], answer["ok"]) == ("res", False)
        assert word in answer["payload"]["error"]
    await send(socket, "2", "hello")
    assert (await until_done(socket, "2"))[-1]["payload"]["summary"] == "hello"


async def test_a_binary_frame_and_any_text_are_taken(socket: ClientConnection) -> None:
    fields = {"message": "hé \U0001f600", "sessionKey": "a/b ü"}
    frame = {"type": "req", "id": "1", "method": "agent", "params": fields}
    await socket.send(json.dumps(frame).encode())
    last = (await until_done(socket, "1"))[-1]
    assert last["payload"]["summary"] == "hé \U0001f600"


async def test_messages_that_wait_are_collected_into_one_turn(
    one: Chain, socket: ClientConnection
) -> None:
    await send(socket, "1", "one wait:gate")
    await eventually(lambda: one.agent.waiting)
    await send(socket, "2", "two")
    await send(socket, "3", "three")
    assert [(await receive(socket))["payload"].get("status") for _ in range(4)].count(
        "accepted"
    ) == 3
    one.agent.open("gate")
    frames = await until_done(socket, "1", "2", "3")
    assert [request.message for request in one.agent.seen] == ["one wait:gate", "two\n\nthree"]
    summaries = {f["id"]: f["payload"]["summary"] for f in frames if f["type"] == "res"}
    assert summaries == {"1": "one", "2": "two three", "3": "two three"}


async def test_followups_run_one_by_one(one: Chain, socket: ClientConnection) -> None:
    await send(socket, "1", "one wait:gate")
    await eventually(lambda: one.agent.waiting)
    for number, text in (("2", "two"), ("3", "three")):
        await send(socket, number, text, queueMode="followup")
    one.agent.open("gate")
    await until_done(socket, "1", "2", "3")
    assert [request.message for request in one.agent.seen] == ["one wait:gate", "two", "three"]


async def test_a_repeated_key_returns_the_first_run_running_or_over(
    one: Chain, socket: ClientConnection
) -> None:
    for number in ("1", "2"):
        await send(socket, number, "one wait:gate", idempotencyKey="same")
    await eventually(lambda: one.agent.waiting)
    one.agent.open("gate")
    frames = await until_done(socket, "1", "2")
    await send(socket, "3", "one wait:gate", idempotencyKey="same")
    frames += await until_done(socket, "3")
    assert len(one.agent.seen) == 1
    assert len({frame["payload"]["runId"] for frame in frames}) == 1


async def test_a_client_that_leaves_stops_its_turns(one: Chain) -> None:
    async with connect(ws_url(one, f"?token={ADMIN_KEY}")) as socket:
        await send(socket, "1", "one wait:never")
        await eventually(lambda: one.agent.waiting)
    await eventually(lambda: not one.agent.waiting, within_s=1.0)


async def test_the_key_may_be_a_bearer_header(one: Chain) -> None:
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with connect(ws_url(one), additional_headers=headers) as socket:
        await send(socket, "1", "hello")
        assert (await until_done(socket, "1"))[-1]["payload"]["summary"] == "hello"


async def test_without_the_key_there_is_no_socket(one: Chain) -> None:
    for query in ("", "?token=wrong", "?token="):
        with pytest.raises(InvalidStatus) as refused:
            async with connect(ws_url(one, query)):
                pass
        assert refused.value.response.status_code == 401
