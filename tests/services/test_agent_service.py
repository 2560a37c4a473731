"""The agent service in one event loop: real roles over HTTP, scripted agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest
from fakes.roles import ADMIN_KEY, HEADERS, USAGE, Chain, chain, eventually
from openai.lib.streaming.responses import AsyncResponseStream
from openai.types.responses import ResponseStreamEvent

from hermes_tui_common.upstream_hosts import UpstreamHosts
from hermes_tui_services.api.agent import AgentRequest
from hermes_tui_services.api.config import UpstreamConfig
from hermes_tui_services.api.events import TextArrived, TurnCompleted, TurnEvent
from hermes_tui_services.api.protocol import (
    INTERRUPTED,
    PROXY_UNAVAILABLE,
    TurnRequest,
    path_key,
)
from hermes_tui_services.data_proxy.sessions import Sessions
from hermes_tui_services.data_proxy.store import ConversationStore
from hermes_tui_services.data_proxy.turns import Turn
from hermes_tui_services.gateway.responses import ChatBuilder

KEY = "agent:m:u"


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Chain]:
    async with chain(tmp_path) as running:
        yield running


def sse_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_a_turn_as_json_has_the_shape_of_areal(one: Chain) -> None:
    answer = await one.say("hello tool:look world")
    body = answer.json()
    assert answer.status_code == 200
    assert answer.headers["x-areal-session-key"] == KEY
    assert body["object"] == "response"
    assert body["status"] == "completed"
    assert body["model"] == "m"
    assert body["id"].startswith("resp-")
    assert body["metadata"]["run_id"].startswith("run-")
    assert body["usage"] == USAGE
    message, call = body["output"]
    assert (message["type"], message["role"]) == ("message", "assistant")
    (part,) = message["content"]
    assert (part["type"], part["text"]) == ("output_text", "hello world")
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "look", '{"a": 1}')
    assert call["call_id"]


async def test_a_turn_as_a_stream_tells_everything_in_order(one: Chain) -> None:
    answer = await one.say("hello tool:look world", stream=True)
    events = sse_events(answer.text)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.function_call",
        "response.function_call_output",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(15))
    assert events[8]["call_id"] == events[9]["call_id"]
    assert events[9]["output"] == "done"
    assert events[11]["text"] == "hello world"
    assert events[14]["response"]["output"][0]["content"][0]["text"] == "hello world"


async def test_the_first_delta_comes_while_the_turn_still_runs(one: Chain) -> None:
    body = {"input": "early wait:gate late", "model": "m", "user": "u", "stream": True}
    async with one.client.stream("POST", "/v1/responses", json=body) as answer:
        lines = answer.aiter_lines()
        async with asyncio.timeout(5):
            async for line in lines:
                if '"delta": "early"' in line:
                    break
        one.agent.open("gate")
        rest = [line async for line in lines]
    assert any("response.completed" in line for line in rest)


async def test_history_holds_user_text_calls_and_results_in_order(one: Chain) -> None:
    await one.say("first tool:a tool:b end")
    await one.say("second")
    messages = await one.history()
    assert [m["role"] for m in messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    for calls, result in ((messages[1], messages[2]), (messages[3], messages[4])):
        assert calls["tool_calls"][0]["id"] == result["tool_call_id"]
    assert messages[5]["content"] == "first end"
    assert one.agent.seen[1].history[0] == {"role": "user", "content": "first tool:a tool:b end"}
    assert one.agent.seen[1].history[-1] == {"role": "assistant", "content": "first end"}


async def test_a_failed_turn_carries_its_cause_and_keeps_what_it_said(one: Chain) -> None:
    await one.say("good")
    answer = await one.say("fail:the-cause")
    assert answer.status_code == 502
    assert "RuntimeError: the-cause" in answer.json()["error"]["message"]
    streamed = sse_events((await one.say("a fail:again", stream=True)).text)
    assert streamed[-1]["type"] == "response.failed"
    assert "again" in streamed[-1]["response"]["error"]["message"]
    messages = [(m["content"], m.get("interrupted", False)) for m in await one.history()]
    said = [("a fail:again", False), ("a", True)]
    assert messages == [("good", False), ("good", False), *said]


async def test_turns_of_one_session_run_in_order_and_of_others_at_once(one: Chain) -> None:
    first = asyncio.create_task(one.say("one wait:gate"))
    await eventually(lambda: one.agent.seen)
    second = asyncio.create_task(one.say("two"))
    other = await one.say("three", user="other")
    assert other.status_code == 200
    assert [request.message for request in one.agent.seen] == ["one wait:gate", "three"]
    one.agent.open("gate")
    answers = await asyncio.gather(first, second)
    assert [a.json()["output"][0]["content"][0]["text"] for a in answers] == ["one", "two"]
    assert [m["content"] for m in await one.history()] == ["one wait:gate", "one", "two", "two"]


async def test_interrupt_keeps_the_text_and_marks_it(one: Chain) -> None:
    turn = asyncio.create_task(one.say("partial wait:never"))
    await eventually(lambda: one.agent.waiting)
    answer = await one.client.post(f"/sessions/{KEY}/interrupt")
    assert answer.json()["interrupted"] is True
    failed = await asyncio.wait_for(turn, 2)
    assert failed.status_code == 409
    assert failed.json()["error"]["code"] == "interrupted"
    assert await one.history() == [
        {"role": "user", "content": "partial wait:never"},
        {"role": "assistant", "content": "partial", "interrupted": True},
    ]
    assert (await one.say("next")).status_code == 200
    assert "interrupted" not in one.agent.seen[-1].history[-1]


async def test_interrupting_an_idle_session_changes_nothing(one: Chain) -> None:
    assert (await one.client.post(f"/sessions/{KEY}/interrupt")).json()["interrupted"] is False
    assert (await one.say("hello")).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_interrupts_its_turn(one: Chain, stream: bool) -> None:
    body = {"input": "said wait:never", "model": "m", "user": "u", "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        await one.client.post("/v1/responses", json=body, timeout=0.3)
    await eventually(lambda: not one.agent.waiting, within_s=1.0)
    assert one.agent.interrupts
    await eventually_history(one, 2)
    assert (await one.history())[1]["interrupted"] is True


async def test_a_background_turn_goes_on_without_its_client(one: Chain) -> None:
    body = {"input": "said wait:gate", "model": "m", "user": "u"}
    with pytest.raises(httpx.ReadTimeout):
        await one.client.post(
            "/v1/responses", json={**body, "metadata": {"background": True}}, timeout=0.3
        )
    one.agent.open("gate")
    await eventually_history(one, 2)
    assert (await one.history())[1] == {"role": "assistant", "content": "said"}


async def test_a_waiting_turn_whose_client_left_never_runs(
    one: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[str] = []
    stopped: list[str] = []
    submit, stop = Sessions.submit, Sessions._stop

    async def noted_submit(self: Sessions, key: str, request: TurnRequest) -> Turn:
        turn: Turn = await submit(self, key, request)
        came.append(request.message)
        return turn

    def noted_stop(self: Sessions, turn: Turn) -> None:
        stop(self, turn)
        stopped.append(turn.request.message)

    monkeypatch.setattr(Sessions, "submit", noted_submit)
    monkeypatch.setattr(Sessions, "_stop", noted_stop)
    first = asyncio.create_task(one.say("one wait:gate"))
    await eventually(lambda: one.agent.waiting)
    second = asyncio.create_task(one.say("two"))
    await eventually(lambda: "two" in came)
    second.cancel()  # closes its connection
    await eventually(lambda: stopped == ["two"])
    one.agent.open("gate")
    await first
    await one.say("three")
    assert [r.message for r in one.agent.seen] == ["one wait:gate", "three"]


async def eventually_history(one: Chain, length: int) -> None:
    """Return once the session's history has so many messages."""

    async def there() -> bool:
        answer = await one.client.get(f"/sessions/{KEY}/history")
        return answer.status_code == 200 and len(answer.json()["messages"]) == length

    await eventually(there)


HOSTILE = [
    "a/b/c",
    "../../etc/passwd",
    "..",
    "a b\tc",
    "ключ/😀 é",
    "%2F%00",
    "x?y=1#z",
    "x/history",
    "line\nbreak",
    "';DROP TABLE turns;--",
]


async def test_any_key_works_in_every_route(one: Chain) -> None:
    for user in HOSTILE:
        key = f"agent:m:{user}"
        assert (await one.say("hello", user=user)).status_code == 200, key
        path = f"/sessions/{path_key(key)}"
        history = await one.client.get(f"{path}/history")
        assert history.json()["session_key"] == key
        assert one.agent.seen[-1].session_key == key
        rows = (await one.client.get("/sessions")).json()["data"]
        assert [row["session_key"] for row in rows] == [key]
        assert (await one.client.post(f"{path}/interrupt")).status_code == 200
        closed = await one.client.post("/sessions/close", json={"session_key": key})
        assert closed.status_code == 200
        assert one.agent.closed[-1] == key
        assert (await one.client.get(f"{path}/history")).status_code == 404


async def test_the_header_names_the_session_and_is_echoed(one: Chain) -> None:
    key = "mine/ключ"
    headers = {"X-Session-Key": key.encode()}
    answer = await one.client.post("/v1/responses", json={"input": "hi"}, headers=headers)
    assert answer.status_code == 200
    assert one.agent.seen[0].session_key == key
    assert answer.headers["x-areal-session-key"] == key


BAD_BODIES: list[tuple[dict[str, Any], str | None]] = [
    ({"input": "hi", "model": "m"}, "user"),
    ({"input": "", "user": "u"}, "input"),
    ({"input": [], "user": "u"}, "input"),
    ({"input": 7, "user": "u"}, "input.str"),
    ({"user": "u"}, "input"),
    ({"input": [{"type": "image", "content": "x"}], "user": "u"}, "input"),
    ({"input": [{"role": "assistant", "content": "x"}], "user": "u"}, "input"),
    ({"input": "hi", "user": "u", "inf_base_url": "http://x"}, "session_api_key"),
    ({"input": "hi", "user": "u", "session_api_key": "k"}, "inf_base_url"),
    ({"input": "hi", "user": "u", "inf_base_url": "x", "session_api_key": "k"}, "inf_base_url"),
    ({"input": "hi", "user": "u", "frequency_penalty": 1}, "frequency_penalty"),
    ({"input": "hi", "user": "u", "metadata": {"background": "yes"}}, "metadata"),
    ({"input": "hi", "user": "u", "metadata": {"areal_inference": {}}}, "metadata"),
    ({"input": "hi", "user": "u", "temperature": 9}, "temperature"),
    ({"input": "hi", "user": "x" * 2000}, None),
    ({"input": "hi", "user": "\ud800"}, None),
]


async def test_a_bad_request_is_a_400_that_names_the_field(one: Chain) -> None:
    for body, param in BAD_BODIES:
        answer = await one.client.post("/v1/responses", content=json.dumps(body).encode())
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == param, (body, error)
        assert error["type"] == "invalid_request_error"
    assert not one.agent.seen


async def test_a_body_that_is_no_json_is_a_400(one: Chain) -> None:
    answer = await one.client.post("/v1/responses", content=b"{")
    assert answer.status_code == 400


async def test_every_route_but_health_needs_the_key(one: Chain) -> None:
    paths = {
        one.gateway: ["/v1/responses", "/v1/chat/completions", "/v1/models", "/sessions", "/ws",
                      "/sessions/x/history", "/sessions/x/interrupt", "/sessions/close", "/none"],
        one.router: ["/register", "/route", "/pairs", "/remove_session", "/unregister"],
        one.proxies[0]: ["/session/x/turn", "/session/x/history", "/session/x/close", "/sessions"],
        one.workers[0]: ["/run", "/session/x/close", "/session/x/interrupt"],
    }  # fmt: skip
    async with httpx.AsyncClient() as client:
        for base, routes in paths.items():
            assert (await client.get(f"{base}/health")).status_code == 200
            for path in routes:
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"}):
                    answer = await client.post(base + path, headers=headers)
                    assert answer.status_code == 401, (path, headers)
                    assert answer.json()["error"]["type"] == "authentication_error"


async def test_the_upstream_is_remembered_until_the_session_is_closed(one: Chain) -> None:
    fields = {
        "inf_base_url": "http://127.0.0.1:1/",
        "session_api_key": "sk-sess-12345678",
        "inf_model": "",
    }
    await one.say("one", **fields)
    await one.say("two")
    await one.client.post("/sessions/close", json={"session_key": KEY})
    await one.say("three")
    remembered = [request.metadata.get("areal_inference", {}) for request in one.agent.seen]
    assert [upstream.get("address") for upstream in remembered] == ["http://127.0.0.1:1/v1"] * 2 + [
        None
    ]
    assert "sk-sess-12345678" not in str(one.agent.seen)
    assert "sk-sess" not in (await one.client.get("/sessions")).text


async def test_a_model_alone_is_asked_for_in_its_turn(one: Chain) -> None:
    await one.say("one", inf_model="plain")
    fields = {"inf_base_url": "http://127.0.0.1:1", "session_api_key": "sk-sess-12345678"}
    await one.say("two", **fields, inf_model="kept")
    await one.say("three", inf_model="other")
    await one.say("four")
    assert one.agent.seen[0].metadata == {"inf_model": "plain"}
    models = [request.metadata["areal_inference"]["model"] for request in one.agent.seen[1:]]
    assert models == ["kept", "other", "kept"]


async def test_instructions_reach_agents_that_know_nothing_of_them(one: Chain) -> None:
    await one.say("hello", instructions="be brief", metadata={"mine": 1})
    request = one.agent.seen[0]
    assert request.message == "be brief\nhello"
    assert request.metadata == {"mine": 1, "instructions": "be brief"}
    assert (await one.history())[0]["content"] == "hello"


async def test_an_idempotency_key_returns_the_first_run(one: Chain) -> None:
    headers = {"Idempotency-Key": "once"}
    body = {"input": "hello tool:x there", "model": "m", "user": "u"}
    answers = [
        (await one.client.post("/v1/responses", json=body, headers=headers)).json()
        for _ in range(2)
    ]
    assert len(one.agent.seen) == 1
    assert answers[0]["output"] == answers[1]["output"]
    assert answers[0]["metadata"] == answers[1]["metadata"]


async def test_chat_takes_the_history_from_its_messages(one: Chain) -> None:
    messages = [
        {"role": "system", "content": "short"},
        {"role": "user", "content": "before"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [{"type": "text", "text": "now"}]},
    ]
    answer = await one.client.post(
        "/v1/chat/completions", json={"messages": messages, "model": "m", "max_tokens": 5}
    )
    body = answer.json()
    assert body["object"] == "chat.completion"
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "short now"}
    assert choice["finish_reason"] == "stop"
    request = one.agent.seen[0]
    assert request.history == [
        {"role": "user", "content": "before"},
        {"role": "assistant", "content": "yes"},
    ]
    assert request.metadata["sampling"] == {"max_tokens": 5}
    assert (await one.client.get("/sessions")).json()["data"] == []
    await eventually(lambda: one.agent.closed == [request.session_key])


async def test_parallel_calls_of_a_chat_history_reach_the_agent(one: Chain) -> None:
    calls = [
        {"id": str(n), "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for n in (1, 2)
    ]
    history = [
        {"role": "user", "content": "look twice"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "2", "content": "blue"},
        {"role": "tool", "tool_call_id": "1", "content": "red"},
        {"role": "assistant", "content": "red and blue"},
    ]
    body = {"messages": [*history, {"role": "user", "content": "again"}]}
    answer = await one.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert one.agent.seen[0].history == history


async def test_the_openai_client_talks_to_the_agent(one: Chain) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{one.gateway}/v1", api_key=ADMIN_KEY, max_retries=0
    ) as client:
        said: Any = [{"role": "user", "content": "hello there"}]
        whole = await client.chat.completions.create(model="m", messages=said)
        assert whole.choices[0].message.content == "hello there"
        stream = await client.chat.completions.create(model="m", messages=said, stream=True)
        chunks = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(chunks).strip() == "hello there"
        response = await client.responses.create(model="m", input="hello", user="u")
        assert response.output_text == "hello"
        assert [model.id async for model in client.models.list()] == ["hermes-agent"]


async def test_the_stream_helper_of_the_openai_client_puts_a_turn_together(one: Chain) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{one.gateway}/v1", api_key=ADMIN_KEY, max_retries=0
    ) as client:
        said, arguments = "", ""
        async with client.responses.stream(
            model="m", input="think:hm hello tool:look world tool:again", user="u"
        ) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    said += event.delta
                    assert event.snapshot == said
                elif event.type == "response.function_call_arguments.delta":
                    arguments += event.delta
            final = await stream.get_final_response()
        assert final.output_text == said == "hello world"
        assert [item.type for item in final.output] == [
            "message",
            "reasoning",
            "function_call",
            "function_call",
        ]
        calls = [item for item in final.output if item.type == "function_call"]
        assert [call.name for call in calls] == ["look", "again"]
        assert "".join(call.arguments for call in calls) == arguments
        assert {item.status for item in final.output} == {"completed"}


async def test_a_joined_turn_is_a_response_stream_of_the_openai_client(one: Chain) -> None:
    async with openai.AsyncOpenAI(base_url=one.gateway, api_key=ADMIN_KEY, max_retries=0) as client:
        sent = asyncio.create_task(one.say("hello tool:look wait:gate world"))
        await eventually(lambda: one.agent.waiting)
        raw = await client.get(
            f"/sessions/{path_key(KEY)}/events",
            cast_to=ResponseStreamEvent,  # type: ignore[arg-type]  # as the client's own calls do
            stream=True,
            stream_cls=openai.AsyncStream[ResponseStreamEvent],
        )
        stream = AsyncResponseStream(
            raw_stream=raw,
            text_format=openai.omit,
            input_tools=openai.omit,
            starting_after=None,
        )
        one.agent.open("gate")
        final = await stream.get_final_response()
        await stream.close()
    assert final.output_text == "hello world"
    message, call = (await sent).json()["output"]
    assert [item.id for item in final.output] == [message["id"], call["id"]]
    assert call.items() <= final.output[1].to_dict().items()
    assert message["content"][0]["text"] == final.output_text


async def test_every_streamed_item_is_the_one_in_the_whole_response(one: Chain) -> None:
    text = "think:hm hello tool:look think:so world reply:other"
    events = sse_events((await one.say(text, stream=True)).text)
    made: list[dict[str, Any]] = []
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(made)
                made.append(event["item"])
            case "content_part.added":
                item = made[event["output_index"]]
                assert event["item_id"] == item["id"]
                assert event["content_index"] == len(item["content"])
                item["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                made[event["output_index"]]["content"][0]["text"] += event["delta"]
            case "function_call_arguments.delta":
                made[event["output_index"]]["arguments"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == made[event["output_index"]]["content"][0]["text"]
            case "output_item.done":
                made[event["output_index"]]["status"] = event["item"]["status"]
                assert event["item"] == made[event["output_index"]]
    assert made == events[-1]["response"]["output"]
    assert made[0]["content"][0]["text"] == "hello world\n\nother"


async def test_null_asks_for_the_default(one: Chain) -> None:
    nulls = {"stream": None, "n": None, "user": None, "temperature": None, "metadata": None}
    said = [{"role": "user", "content": "x"}]
    answer = await one.client.post("/v1/chat/completions", json={"messages": said} | nulls)
    assert answer.status_code == 200, answer.text
    unknown = {"messages": said, "colour": None}
    refused = await one.client.post("/v1/chat/completions", json=unknown)
    assert refused.json()["error"]["param"] == "colour"


@pytest.mark.parametrize(("usage", "total"), [(USAGE, 3), ({"total_tokens": 3}, None), ({}, None)])
def test_a_usage_of_which_a_part_is_unknown_is_null(
    usage: dict[str, int], total: int | None
) -> None:
    builder = ChatBuilder(model="m")
    list(builder.add(TurnCompleted(text="hi", metadata={"usage": usage})))
    told = builder.completion()["usage"]
    assert (told and told["total_tokens"]) == total


async def test_chat_streams_chunks(one: Chain) -> None:
    body = {
        "messages": [{"role": "user", "content": "a b"}],
        "user": "u",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = await one.client.post("/v1/chat/completions", json=body)
    chunks = sse_events(answer.text)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text == "a b"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["total_tokens"] == 3
    assert answer.text.endswith("data: [DONE]\n\n")
    body["messages"] = [{"role": "user", "content": "fail:boom"}]
    failed = (await one.client.post("/v1/chat/completions", json=body)).text
    assert "boom" in sse_events(failed)[-1]["error"]["message"]
    assert "[DONE]" not in failed


async def test_chat_refuses_what_it_does_not_do(one: Chain) -> None:
    said = [{"role": "user", "content": "x"}]
    bodies: list[dict[str, Any]] = [
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": said, "n": 2},
        {"messages": said, "logprobs": True},
        {"messages": [{"role": "critic", "content": "x"}, *said]},
        {"messages": said, "stream_options": {"include_usage": True}},
        {"messages": said, "max_tokens": 1, "max_completion_tokens": 2},
    ]
    for body in bodies:
        answer = await one.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"]


async def test_models_lists_the_agent(one: Chain) -> None:
    body = (await one.client.get("/v1/models")).json()
    assert (body["object"], body["data"][0]["id"]) == ("list", "hermes-agent")


async def test_an_approval_is_passed_down(one: Chain) -> None:
    path = f"/sessions/{quote('a/b', safe='')}/approvals/appr-1"
    answer = await one.client.post(path, json={"choice": "deny", "reason": "no"})
    assert answer.status_code == 200
    assert one.agent.answers == [("a/b", "appr-1", "deny", "no")]
    assert (await one.client.post(path, json={})).status_code == 400


async def test_closing_a_session_stops_its_turns(one: Chain) -> None:
    running = asyncio.create_task(one.say("one wait:never"))
    await eventually(lambda: one.agent.waiting)
    waiting = asyncio.create_task(one.say("two"))
    await eventually_queued(one)
    await one.client.post("/sessions/close", json={"session_key": KEY})
    assert (await running).status_code == 409
    assert "closed" in (await waiting).json()["error"]["message"]
    assert (await one.client.get(f"/sessions/{KEY}/history")).status_code == 404


async def eventually_queued(one: Chain) -> None:
    """Return once a second turn was taken: a third, sent after it, is answered only then."""
    body = {"message": "x", "stream": True}
    async with (
        httpx.AsyncClient(headers=HEADERS) as client,
        client.stream("POST", f"{one.proxies[0]}/session/{KEY}/turn", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            if "accepted" in line:
                return


class StuckWorker:
    """A worker whose turns end when they are interrupted."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    async def run(self, request: AgentRequest) -> AsyncIterator[TurnEvent]:
        yield TextArrived(text=request.message)
        await self.stopped.wait()

    async def interrupt(self, session_key: str) -> None:
        self.stopped.set()


async def _ignore(session_key: str) -> None:
    """Nobody keeps account of where sessions are."""


async def test_a_turn_that_waits_when_its_service_stops_may_be_sent_again(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "conversations.db")
    await store.open()
    hosts = UpstreamHosts(())
    sessions = Sessions(store, StuckWorker(), None, UpstreamConfig(), hosts, _ignore)  # type: ignore[arg-type]
    running = await sessions.submit("s", TurnRequest(message="one"))
    await eventually(lambda: isinstance(running.events[-1], TextArrived))
    waiting = await sessions.submit("s", TurnRequest(message="two"))
    await sessions.stop(5.0)
    ends = [turn.events[-1] for turn in (waiting, running)]
    assert [getattr(end, "code", None) for end in ends] == [PROXY_UNAVAILABLE, INTERRUPTED]
    await store.close()


async def test_an_idle_session_is_released_and_its_history_stays(tmp_path: Path) -> None:
    async with chain(tmp_path, session_timeout_s=0.2) as one:
        await one.say("hello")
        await eventually(lambda: one.agent.closed == [KEY])

        async def freed() -> bool:
            return not (await one.client.get(f"{one.router}/health")).json()["active_sessions"]

        await eventually(freed)
        assert len(await one.history()) == 2
        await one.say("again")
        assert len(one.agent.seen[1].history) == 2


async def test_the_router_counts_the_sessions_that_there_are(one: Chain) -> None:
    async def active() -> int:
        health = (await one.client.get(f"{one.router}/health")).json()
        return int(health["active_sessions"])

    for user in "abcdef":
        await one.say("hello", user=user)
    assert await active() == 6
    body = {"messages": [{"role": "user", "content": "hello wait:gate"}]}
    for_one_turn = asyncio.create_task(one.client.post("/v1/chat/completions", json=body))
    await eventually(lambda: one.agent.waiting)
    assert await active() == 7
    one.agent.open("gate")
    assert (await for_one_turn).status_code == 200

    async def only_those_that_go_on() -> bool:
        return await active() == 6

    await eventually(only_those_that_go_on)
    await one.client.post("/sessions/close", json={"session_key": "agent:m:a"})
    assert await active() == 5


async def test_sessions_spread_over_pairs_and_stay_there(tmp_path: Path) -> None:
    async with chain(tmp_path, pairs=2) as two:
        for _ in range(2):
            for user in "abcd":
                assert (await two.say("hi", user=user)).status_code == 200
        served = [{request.session_key for request in agent.seen} for agent in two.agents]
        assert [len(keys) for keys in served] == [2, 2]
        assert not served[0] & served[1]
        rows = (await two.client.get("/sessions")).json()["data"]
        assert {row["session_key"] for row in rows} == {f"agent:m:{user}" for user in "abcd"}


async def test_the_data_proxy_answers_as_json_too(one: Chain) -> None:
    async with httpx.AsyncClient(headers=HEADERS) as client:
        url = f"{one.proxies[0]}/session/k/turn"
        answer = await client.post(url, json={"message": "a tool:t", "stream": False})
        body = answer.json()
        assert body["summary"] == "a"
        assert [event["type"] for event in body["events"]] == ["delta", "tool_call", "tool_result"]
        failed = await client.post(url, json={"message": "fail:x", "stream": False})
        assert failed.status_code == 502
    assert ADMIN_KEY not in failed.text
