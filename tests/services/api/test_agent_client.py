"""The client: a turn as typed events, and errors as ServiceError."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest
from fakes.roles import ADMIN_KEY, USAGE, Chain, chain, eventually

from hermes_tui_common.errors import RefusedError, ServiceError
from hermes_tui_services.api.client import AgentClient
from hermes_tui_services.api.events import (
    ApprovalAnswered,
    ApprovalRequested,
    ReasoningArrived,
    TextArrived,
    ToolCalled,
    ToolReturned,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
    TurnStarted,
)
from hermes_tui_services.api.protocol import NO_TURN

KEY = "tui/ключ 1"


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Chain]:
    async with chain(tmp_path) as running:
        yield running


@pytest.fixture
async def client(one: Chain) -> AsyncIterator[AgentClient]:
    async with AgentClient(one.gateway, ADMIN_KEY) as client:
        yield client


async def updates(client: AgentClient, text: str) -> list[TurnEvent]:
    return [update async for update in client.turn(text, session_key=KEY)]


async def test_a_turn_is_a_row_of_events(one: Chain, client: AgentClient) -> None:
    started, text, called, returned, more, completed = await updates(client, "see tool:look ok")
    assert isinstance(started, TurnStarted)
    assert started.run_id.startswith("run-")
    assert text == TextArrived(text="see")
    assert isinstance(called, ToolCalled)
    assert (called.name, called.arguments) == ("look", '{"a": 1}')
    assert isinstance(returned, ToolReturned)
    assert (returned.call_id, returned.name, returned.output) == (called.call_id, "look", "done")
    assert returned.seconds is not None
    assert returned.seconds >= 0
    assert more == TextArrived(text=" ok")
    assert isinstance(completed, TurnCompleted)
    assert (completed.text, completed.usage) == ("see ok", USAGE)
    assert one.agent.seen[0].session_key == KEY
    messages = (await client.history(KEY)).messages
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]


async def test_the_upstream_travels_with_the_turn(one: Chain, client: AgentClient) -> None:
    turn = client.turn(
        "hi", session_key=KEY, inf_base_url="http://127.0.0.1:7", session_api_key="k", inf_model="m"
    )
    async with aclosing(turn) as events:
        async for _ in events:
            pass
    upstream = one.agent.seen[0].metadata["areal_inference"]
    assert (upstream["address"], upstream["model"]) == ("http://127.0.0.1:7/v1", "m")


async def test_a_failed_turn_is_an_event(client: AgentClient) -> None:
    failed = (await updates(client, "some fail:boom"))[-1]
    assert isinstance(failed, TurnFailed)
    assert "boom" in failed.message
    assert failed.text == "some"
    assert not failed.interrupted


async def test_interrupting_by_call_and_by_hanging_up(one: Chain, client: AgentClient) -> None:
    task = asyncio.create_task(updates(client, "so wait:x"))
    await eventually(lambda: one.agent.waiting)
    assert await client.interrupt(KEY) is True
    failed = (await task)[-1]
    assert isinstance(failed, TurnFailed)
    assert failed.interrupted
    assert await client.interrupt(KEY) is False
    async with aclosing(client.turn("so wait:x", session_key=KEY)) as events:
        async for update in events:
            if isinstance(update, TextArrived):
                break
    await eventually(lambda: not one.agent.waiting, within_s=1.0)


async def test_sessions_are_listed_and_closed(client: AgentClient) -> None:
    await updates(client, "hi")
    assert [row.session_key for row in await client.sessions()] == [KEY]
    await client.close(KEY)
    assert await client.sessions() == []
    with pytest.raises(ServiceError, match="no such session"):
        await client.history(KEY)


async def test_a_session_is_listed_while_its_first_turn_runs(
    one: Chain, client: AgentClient
) -> None:
    sender = asyncio.create_task(updates(client, "so wait:x"))
    await eventually(lambda: one.agent.waiting)
    [row] = await client.sessions()
    assert (row.session_key, row.running, row.num_turns) == (KEY, True, 0)
    one.agent.open("x")
    await sender
    [row] = await client.sessions()
    assert (row.session_key, row.running, row.num_turns) == (KEY, False, 1)


async def test_a_conversation_is_read_turn_by_turn(client: AgentClient) -> None:
    await updates(client, "see tool:look ok")
    await updates(client, "bye")
    first, second = await client.past_turns(KEY)
    roles = [[message["role"] for message in turn.messages] for turn in (first, second)]
    assert roles == [["user", "assistant", "tool", "assistant"], ["user", "assistant"]]
    assert [message["content"] for message in second.messages] == ["bye", "bye"]
    assert first.run_id != second.run_id
    assert first.started_at <= first.finished_at <= second.started_at
    assert (first.interrupted, first.num_tokens) == (False, USAGE["output_tokens"])


async def test_an_approval_is_answered(one: Chain, client: AgentClient) -> None:
    await client.approve(KEY, "appr-1", "deny", "no")
    assert one.agent.answers == [(KEY, "appr-1", "deny", "no")]


async def test_what_the_gateway_refuses_is_a_service_error(one: Chain) -> None:
    async with AgentClient(one.gateway, "wrong") as client:
        for call in (updates(client, "hi"), client.sessions(), client.interrupt(KEY)):
            with pytest.raises(ServiceError, match="key"):
                await call
    async with AgentClient("http://127.0.0.1:9", ADMIN_KEY) as client:
        for call in (updates(client, "hi"), client.sessions()):
            with pytest.raises(ServiceError, match="does not answer"):
                await call


async def test_events_of_every_kind_are_understood() -> None:
    text = (
        'data: {"type": "response.created", "response": {"id": "r", "metadata": {}}}\n\n'
        'data: {"type": "response.reasoning_text.delta", "delta": "hm"}\n\n'
        'data: {"type": "response.something.new"}\n\n'
        'data: {"type": "response.approval_requested", "approval_id": "a", "kind": "command",'
        ' "command": "rm", "description": "d", "choices": ["once"], "expires_at": 5.5}\n\n'
    )
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=text))
    seen: list[TurnEvent] = []

    async def read(http: httpx.AsyncClient) -> None:
        async for update in AgentClient("http://gw", "k", http).turn("x", session_key="s"):
            seen.append(update)

    async with httpx.AsyncClient(transport=transport) as http:
        with pytest.raises(ServiceError, match="without a result"):
            await read(http)
    assert seen[1:] == [
        ReasoningArrived(text="hm"),
        ApprovalRequested(
            approval_id="a",
            kind="command",
            command="rm",
            description="d",
            choices=("once",),
            expires_at=5.5,
        ),
    ]


def test_the_client_is_light() -> None:
    heavy = "{'run_agent', 'uvicorn', 'openai', 'hermes_tui_services.worker.app'}"
    code = f"import sys, hermes_tui_services.api.client; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Joining a turn that another client sent -----------------------------------------------------


async def joined(client: AgentClient, seen: list[TurnEvent]) -> None:
    async for update in client.join(KEY):
        seen.append(update)


async def test_a_second_client_is_told_the_whole_turn(one: Chain, client: AgentClient) -> None:
    sender = asyncio.create_task(updates(client, "see tool:look so wait:x ok"))
    await eventually(lambda: one.agent.waiting)
    began = time.time()
    async with AgentClient(one.gateway, ADMIN_KEY) as other:
        [(key, run_id)] = (await other.turns()).items()
        seen: list[TurnEvent] = []
        watcher = asyncio.create_task(joined(other, seen))
        await eventually(lambda: TextArrived(text=" so") in seen)
        one.agent.open("x")
        await watcher
        assert await other.turns() == {}
    sent = await sender
    started = seen[0]
    assert isinstance(started, TurnStarted)
    assert started.message == "see tool:look so wait:x ok"
    assert started.started_at == pytest.approx(began, abs=5)
    assert isinstance(sent[0], TurnStarted)
    assert (key, run_id) == (KEY, started.run_id)
    assert sent[0].run_id == run_id
    assert seen[1:] == sent[1:]


async def test_a_client_that_joined_and_leaves_ends_nothing(
    one: Chain, client: AgentClient
) -> None:
    sender = asyncio.create_task(updates(client, "so wait:x ok"))
    await eventually(lambda: one.agent.waiting)
    async with aclosing(client.join(KEY)) as events:
        async for update in events:
            if isinstance(update, TextArrived):
                break
    one.agent.open("x")
    assert isinstance((await sender)[-1], TurnCompleted)
    assert one.agent.interrupts == 0


async def test_a_sender_that_hangs_up_ends_its_turn_for_those_who_joined_too(
    one: Chain, client: AgentClient
) -> None:
    seen: list[TurnEvent] = []
    async with aclosing(client.turn("so wait:x", session_key=KEY)) as events:
        async for update in events:
            if isinstance(update, TextArrived):
                watcher = asyncio.create_task(joined(client, seen))
                await eventually(lambda: seen)
                break
    await watcher
    assert isinstance(seen[-1], TurnFailed)
    assert seen[-1].interrupted


async def test_where_no_turn_runs_there_is_nothing_to_join(client: AgentClient) -> None:
    for _ in range(2):  # a session that is not known, then one that is quiet
        with pytest.raises(RefusedError, match="No turn runs") as refused:
            await joined(client, [])
        assert (refused.value.status, refused.value.code) == (404, NO_TURN)
        await updates(client, "hi")


async def test_an_answer_reaches_those_who_did_not_give_it(one: Chain, client: AgentClient) -> None:
    sender = asyncio.create_task(updates(client, "ask:a ask:b wait:x"))
    await eventually(lambda: one.agent.waiting)
    await client.approve(KEY, "a", "once")
    seen: list[TurnEvent] = []
    watcher = asyncio.create_task(joined(client, seen))
    await eventually(lambda: len(seen) == 2)
    await client.approve(KEY, "b", "deny")
    one.agent.open("x")
    await watcher
    told = [u for u in await sender if isinstance(u, ApprovalRequested | ApprovalAnswered)]
    assert [type(update) for update in told] == [ApprovalRequested] * 2 + [ApprovalAnswered] * 2
    # The one that was answered before is no news; the other one is asked, then answered.
    assert seen[1:-1] == [told[1], ApprovalAnswered(approval_id="b", choice="deny")]


async def test_a_question_that_has_run_out_is_not_asked_again(
    one: Chain, client: AgentClient
) -> None:
    sender = asyncio.create_task(updates(client, "late:a wait:x"))
    await eventually(lambda: one.agent.waiting)
    seen: list[TurnEvent] = []
    watcher = asyncio.create_task(joined(client, seen))
    await eventually(lambda: seen)
    one.agent.open("x")
    await asyncio.gather(watcher, sender)
    assert [type(update) for update in seen] == [TurnStarted, TurnCompleted]


async def test_many_turns_are_followed_and_calls_still_go_through(
    one: Chain, client: AgentClient
) -> None:
    async def say(number: int) -> TurnEvent:
        turn = client.turn("wait:x", session_key=f"s{number}")
        return [update async for update in turn][-1]

    turns = [asyncio.create_task(say(number)) for number in range(120)]
    await eventually(lambda: len(one.agent.waiting) == 120, within_s=20)
    async with asyncio.timeout(5):
        assert len(await client.turns()) == 120
    one.agent.open("x")
    assert all(isinstance(last, TurnCompleted) for last in await asyncio.gather(*turns))


async def test_a_conversation_is_searched_and_forked(one: Chain, client: AgentClient) -> None:
    await updates(client, "the needle")
    await updates(client, "the straw")
    hits = await client.search("NEEDLE")
    assert [(hit.session_key, hit.match) for hit in hits] == [(KEY, "needle")]
    with pytest.raises(RefusedError, match="'q': "):
        await client.search("")
    assert await client.fork(KEY, "another", until=hits[0].finished_at) == 1
    forked = await client.past_turns("another")
    assert [turn.messages[0]["content"] for turn in forked] == ["the needle"]
    with pytest.raises(RefusedError, match="already"):
        await client.fork(KEY, "another")
    with pytest.raises(RefusedError, match="no such session"):
        await client.fork("none", "third")
