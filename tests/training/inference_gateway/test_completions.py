"""Completions over a real socket: answers, streams, records."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fakes.engine import END, FakeEngine, Script, byte_tokenizer, encode, says
from fakes.inference import Gateway, running_gateway, sse_data, until

from hermes_tui_training.api.config import TrainingConfig

TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "look",  "arguments": {"b":1, "a": "é"}}\n</tool_call>'


def deltas(text: str, key: str = "content") -> list[str]:
    chunks = [json.loads(data) for data in sse_data(text) if data != "[DONE]"]
    found = [c["choices"][0]["delta"].get(key) for c in chunks if c.get("choices")]
    return [delta for delta in found if delta]


async def test_a_completion_is_answered_and_recorded(gateway: Gateway) -> None:
    gateway.engine.scripts = [says("Hé!")]
    session_id, key = await gateway.session()
    answer = await gateway.chat(
        key, "Hi", logprobs=True, top_logprobs=2, return_token_ids=True, max_tokens=9, seed=3
    )
    assert answer.status_code == 200
    body = answer.json()
    choice = body["choices"][0]
    expected = [*encode("Hé!"), END]
    assert choice["message"] == {"role": "assistant", "content": "Hé!"}
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == expected
    assert body["usage"]["completion_tokens"] == len(expected) == len(choice["logprobs"]["content"])
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["logprob"], first["bytes"]) == ("H", -0.5, [72])
    assert len(first["top_logprobs"]) == 2
    prompt = byte_tokenizer().decode(body["prompt_token_ids"])
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    episode = await gateway.episode(session_id)
    (completion,) = episode["completions"]
    assert completion["completion_id"] == body["id"]
    assert completion["token_ids"] == expected
    assert completion["prompt_token_ids"] == body["prompt_token_ids"]
    assert completion["usage"] == body["usage"]
    assert completion["texts"] == ["H", "", "é", "!", "<|im_end|>"]
    assert completion["trainable"]
    assert completion["sampling"] == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 3,
        "max_tokens": 9,
    }
    assert completion["latency"]["total_s"] >= completion["latency"]["ttft_s"] > 0


async def test_a_stream_is_live_and_whole(gateway: Gateway) -> None:
    gateway.engine.scripts = [says("Hello 😀 you", hold_after=5)]
    session_id, key = await gateway.session()
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    lines: list[str] = []
    async with gateway.http.stream(
        "POST", "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}
    ) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                lines.append(line)
                if "".join(deltas("\n".join(lines))) == "Hello":
                    gateway.engine.release.set()
    text = "\n".join(lines)
    assert "".join(deltas(text)) == "Hello 😀 you"
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(data) for data in sse_data(text)[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(encode("Hello 😀 you")) + 1
    episode = await gateway.episode(session_id)
    assert episode["completions"][0]["message"]["content"] == "Hello 😀 you"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_client_works(gateway: Gateway, stream: bool) -> None:
    gateway.engine.scripts = [says("Let me see. " + CALL)]
    _, key = await gateway.session()
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key) as client:
        arguments: dict[str, Any] = {
            "model": "policy",
            "messages": [{"role": "user", "content": "look"}],
            "tools": [TOOL],
            "logprobs": True,
        }
        if not stream:
            answer = await client.chat.completions.create(**arguments)
            message = answer.choices[0].message
            content, calls = message.content, message.tool_calls
            reason = answer.choices[0].finish_reason
            num_logprobs = len(answer.choices[0].logprobs.content)
        else:
            content, calls, reason, num_logprobs = "", [], None, 0
            async for chunk in await client.chat.completions.create(**arguments, stream=True):
                choice = chunk.choices[0]
                content += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
                reason = choice.finish_reason or reason
                num_logprobs += len(choice.logprobs.content) if choice.logprobs else 0
    assert content == "Let me see. "
    assert reason == "tool_calls"
    assert [call.function.name for call in calls] == ["look"]
    assert json.loads(calls[0].function.arguments) == {"b": 1, "a": "é"}
    assert num_logprobs == len(encode("Let me see. " + CALL)) + 1


async def test_a_streamed_tool_call_keeps_every_count(gateway: Gateway) -> None:
    gateway.engine.scripts = [says(CALL)]
    session_id, key = await gateway.session()
    fields = {"tools": [TOOL], "stream": True, "logprobs": True, "return_token_ids": True}
    text = (await gateway.chat(key, "look", **fields)).text
    chunks = [json.loads(data) for data in sse_data(text)[:-1]]
    token_ids = [i for c in chunks for i in c["choices"][0].get("token_ids") or ()]
    entries = [e for c in chunks for e in (c["choices"][0]["logprobs"] or {}).get("content", ())]
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert token_ids == completion["token_ids"] == [*encode(CALL), END]
    assert [entry["logprob"] for entry in entries] == completion["logprobs"]
    assert len(completion["policy_versions"]) == completion["usage"]["completion_tokens"]
    assert byte_tokenizer().decode(token_ids, skip_special_tokens=True) == CALL
    assert chunks[0]["prompt_token_ids"] == completion["prompt_token_ids"]
    assert "".join(deltas(text)) == ""


async def test_a_tag_without_tools_is_text(gateway: Gateway) -> None:
    gateway.engine.scripts = [says(CALL), says(CALL)]
    _, key = await gateway.session()
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        message = (await gateway.chat(key, **fields)).json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": CALL}


async def test_stop_strings_are_left_out(gateway: Gateway) -> None:
    ids = encode("one two END")
    gateway.engine.scripts = [Script(token_ids=ids, stop_text="END")] * 2
    session_id, key = await gateway.session()
    assert (await gateway.chat(key, stop="END")).json()["choices"][0]["message"]["content"] == (
        "one two "
    )
    assert "".join(deltas((await gateway.chat(key, stop=["END"], stream=True)).text)) == "one two "
    assert gateway.engine.requests[0][1].stop == ("END",)
    assert (await gateway.episode(session_id))["completions"][0]["token_ids"] == ids


async def test_the_next_prompt_begins_with_the_recorded_tokens(gateway: Gateway) -> None:
    odd = "<think>hm</think>  Sure.\n\n" + CALL
    gateway.engine.scripts = [says(odd), says("Done."), says("x")]
    session_id, key = await gateway.session()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "look"}]
    body = {"messages": messages, "tools": [TOOL]}
    first = (await gateway.call("POST", "/chat/completions", body, key=key)).json()
    call = first["choices"][0]["message"]["tool_calls"][0]
    # Hermes strips content, drops reasoning and sorts the arguments' keys.
    call["function"]["arguments"] = '{"a":"é","b":1}'
    messages += [
        {"role": "assistant", "content": "Sure.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "3"},
    ]
    await gateway.call("POST", "/chat/completions", body, key=key)
    messages += [
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    await gateway.call("POST", "/chat/completions", body, key=key)
    completions = (await gateway.episode(session_id))["completions"]
    for before, after in itertools.pairwise(completions):
        known = before["prompt_token_ids"] + before["token_ids"]
        assert after["prompt_token_ids"][: len(known)] == known
        assert after["prefix"] == {
            "parent_completion_id": before["completion_id"],
            "shared_token_count": len(known),
            "first_difference": None,
        }


async def test_a_changed_history_is_labelled(gateway: Gateway) -> None:
    gateway.engine.scripts = [says("blue"), says("ok")]
    session_id, key = await gateway.session()
    await gateway.chat(key, "Colour?")
    messages = [
        {"role": "user", "content": "Colour?"},
        {"role": "assistant", "content": "black"},
        {"role": "user", "content": "Why?"},
    ]
    await gateway.call("POST", "/v1/chat/completions", {"messages": messages}, key=key)
    first, second = (await gateway.episode(session_id))["completions"]
    difference = second["prefix"]["first_difference"]
    assert second["prefix"]["shared_token_count"] == len(first["prompt_token_ids"]) + 2
    assert (difference["recorded_text"], difference["text"]) == ("u", "a")


async def test_a_restarted_gateway_still_continues_the_recorded_tokens(tmp_path: Path) -> None:
    odd = "<think>hm</think> Hi"
    async with running_gateway(tmp_path, engine=FakeEngine(says(odd))) as gateway:
        session_id, key = await gateway.session()
        await gateway.chat(key, "Hello")
    async with running_gateway(tmp_path) as gateway:
        messages = [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": "More"},
        ]
        body = {"messages": messages}
        assert (await gateway.call("POST", "/v1/chat/completions", body, key=key)).is_success
        first, second = (await gateway.episode(session_id))["completions"]
    assert second["prefix"]["parent_completion_id"] == first["completion_id"]
    assert second["prefix"]["first_difference"] is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_completion(gateway: Gateway, stream: bool) -> None:
    gateway.engine.scripts = [says("a long story", hold_after=3)]
    session_id, key = await gateway.session()
    asking = asyncio.create_task(gateway.chat(key, stream=stream))
    await until(lambda: gateway.engine.requests)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: gateway.engine.num_running == 0, 1.0)
    assert gateway.engine.num_closed_early == 1
    await until(lambda: gateway.store.episodes.find()[0].completions[0].status == "finished")
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert completion["untrainable_reason"] == "client_left"
    assert not completion["trainable"]
    assert completion["finish_reason"] is None
    assert completion["token_ids"] == encode("a l")
    assert (await gateway.chat(key)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_breaks_at_once_is_a_502(gateway: Gateway, stream: bool) -> None:
    gateway.engine.scripts = [says("never", error_after=0)]
    session_id, key = await gateway.session()
    answer = await gateway.chat(key, stream=stream)
    assert answer.status_code == 502
    assert "the engine broke" in answer.json()["error"]["message"]
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert completion["untrainable_reason"] == "engine_error"
    assert "the engine broke" in completion["error"]


async def test_an_engine_that_breaks_mid_stream_is_an_error_event(gateway: Gateway) -> None:
    gateway.engine.scripts = [says("hello", error_after=2), says("hello", error_after=2)]
    _, key = await gateway.session()
    data = sse_data((await gateway.chat(key, stream=True)).text)
    assert "the engine broke" in json.loads(data[-2])["error"]["message"]
    assert data[-1] == "[DONE]"
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=key, max_retries=0
    ) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )
        with pytest.raises(openai.APIError, match="the engine broke"):
            async for _ in stream:
                pass


@pytest.mark.parametrize("bad", [math.nan, -math.inf, None, "x"])
async def test_logprobs_that_are_no_numbers_are_refused(gateway: Gateway, bad: Any) -> None:
    gateway.engine.scripts = [says("abc", logprob=lambda position: bad if position == 2 else -0.5)]
    session_id, key = await gateway.session()
    assert (await gateway.chat(key)).status_code == 502
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert completion["untrainable_reason"] == "engine_error"
    assert completion["logprobs"] == [-0.5, -0.5]
    assert len(completion["token_ids"]) == 2


async def test_replies_that_were_cut_are_not_trained(gateway: Gateway) -> None:
    gateway.engine.scripts = [says("a long story")]
    session_id, key = await gateway.session()
    answer = (await gateway.chat(key, max_tokens=4)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert (completion["trainable"], completion["untrainable_reason"]) == (False, "truncated")


async def test_replies_that_were_cut_can_be_trained(tmp_path: Path) -> None:
    training = TrainingConfig(train_truncated=True)
    engine = FakeEngine(says("a long story"))
    async with running_gateway(tmp_path, training=training, engine=engine) as gateway:
        session_id, key = await gateway.session()
        await gateway.chat(key, max_tokens=4)
        assert (await gateway.episode(session_id))["completions"][0]["trainable"]


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_k": 5}, {"temperature": 0}])
async def test_sampling_that_cannot_be_recomputed_is_not_trained(
    gateway: Gateway, fields: dict[str, Any]
) -> None:
    session_id, key = await gateway.session()
    await gateway.chat(key, **fields)
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert completion["untrainable_reason"] == "sampling_mismatch"


@pytest.mark.parametrize(
    "text",
    [
        "You've reached the maximum number of tool-calling iterations allowed. Please …",
        "[System: Your previous response was truncated by the output length limit. …]",
    ],
)
async def test_what_the_harness_asks_is_aux(gateway: Gateway, text: str) -> None:
    session_id, key = await gateway.session()
    await gateway.chat(key, text)
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert (completion["kind"], completion["untrainable_reason"]) == ("aux", "aux_call")


async def test_an_empty_reply_that_is_asked_again_is_aux(gateway: Gateway) -> None:
    gateway.engine.scripts = [says(""), says("there")]
    session_id, key = await gateway.session()
    await gateway.chat(key)
    await gateway.chat(key)
    first, second = (await gateway.episode(session_id))["completions"]
    assert (first["kind"], first["trainable"]) == ("aux", False)
    assert (second["kind"], second["trainable"]) == ("turn", True)


async def test_too_many_waiting_requests_are_told_to_come_back(gateway: Gateway) -> None:
    _, key = await gateway.session()
    gateway.engine.num_waiting = 256
    answer = await gateway.chat(key)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_slow_reader_does_not_hold_up_the_record(gateway: Gateway) -> None:
    gateway.engine.scripts = [says("x" * 3000)]
    session_id, key = await gateway.session()
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "logprobs": True}
    async with gateway.http.stream(
        "POST", "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}
    ) as answer:
        assert answer.status_code == 200
        await until(lambda: gateway.store.episodes.find()[0].completions[0].status == "finished")
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert completion["finish_reason"] == "stop"


async def test_sessions_at_once_do_not_mix(gateway: Gateway) -> None:
    gateway.engine.token_s = 0.001
    sessions = [await gateway.session() for _ in range(12)]

    async def talk(number: int, key: str) -> None:
        for turn in range(3):
            answer = await gateway.chat(key, f"{number} {turn}")
            assert answer.status_code == 200

    await asyncio.gather(*(talk(n, key) for n, (_, key) in enumerate(sessions)))
    for number, (session_id, _) in enumerate(sessions):
        completions = (await gateway.episode(session_id))["completions"]
        said = [c["request_messages"][0]["content"] for c in completions]
        assert said == [f"{number} {turn}" for turn in range(3)]


async def test_views_see_tokens_while_they_are_sampled(gateway: Gateway) -> None:
    gateway.engine.scripts = [says("Hé you", hold_after=3)]
    session_id, key = await gateway.session()
    seen: list[dict[str, Any]] = []
    with gateway.store.events.subscribe() as subscription:
        asking = asyncio.create_task(gateway.chat(key))
        async with asyncio.timeout(5):
            while not seen:
                events, _ = await subscription.batch()
                seen += [e.payload for e in events if e.kind == "completion.tokens"]
            gateway.engine.release.set()
            answer = (await asking).json()
            while sum(len(payload["token_ids"]) for payload in seen) < len(encode("Hé you")) + 1:
                events, _ = await subscription.batch()
                seen += [e.payload for e in events if e.kind == "completion.tokens"]
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert {payload["completion_id"] for payload in seen} == {answer["id"]}
    assert [i for p in seen for i in p["token_ids"]] == completion["token_ids"]
    assert "".join(t for p in seen for t in p["texts"]) == "Hé you<|im_end|>"
    assert [x for p in seen for x in p["logprobs"]] == completion["logprobs"]
    starts = [payload["start"] for payload in seen]
    assert starts == sorted(starts)
    assert starts[0] == 0


async def test_a_closed_connection_while_the_record_is_written(gateway: Gateway) -> None:
    """A client that closes right after the last token still leaves a whole record."""
    session_id, key = await gateway.session()
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as http:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        async with http.stream(
            "POST", "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}
        ) as answer:
            async for _ in answer.aiter_bytes():
                break
    await until(lambda: gateway.store.episodes.find()[0].completions[0].status == "finished")
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert len(completion["token_ids"]) == len(completion["logprobs"])


async def test_a_completion_that_runs_when_the_process_stops_is_recorded(tmp_path: Path) -> None:
    engine = FakeEngine(says("a long story", hold_after=3))
    async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
        async with running_gateway(tmp_path, engine=engine, port=0) as gateway:
            session_id, key = await gateway.session()
            asking = asyncio.create_task(replace(gateway, http=http).chat(key, stream=True))
            http.base_url = httpx.URL(gateway.url)
            await until(lambda: engine.requests)
        with pytest.raises(httpx.HTTPError):
            await asking
    async with running_gateway(tmp_path) as gateway:
        (completion,) = (await gateway.episode(session_id))["completions"]
    assert (completion["status"], completion["untrainable_reason"]) == ("finished", "engine_error")
    assert completion["error"] == "the trainer was stopped"
    assert completion["token_ids"] == encode("a l")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_cannot_be_recorded_is_not_given(
    gateway: Gateway, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("the disk is full")

    _, key = await gateway.session()
    monkeypatch.setattr(gateway.store.completions, "finish", full)
    answer = await gateway.chat(key, stream=stream)
    if stream:
        data = sse_data(answer.text)
        assert "the disk is full" in json.loads(data[-2])["error"]["message"]
        assert 'finish_reason": "stop' not in answer.text
    else:
        assert answer.status_code == 500
        assert "the disk is full" in answer.json()["error"]["message"]
