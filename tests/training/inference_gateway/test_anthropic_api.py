"""Anthropic's Messages through its official client, and what gets recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from fakes.apis import CALL, SCHEMA, error_of, recorded
from fakes.engine import Script, encode, says
from fakes.inference import Gateway

MESSAGES_TOOL: Any = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
TEXT = {"type": "text", "text": "x"}
USER_HI = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
async def claude(
    gateway: Gateway, session: tuple[str, str]
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key=session[1], max_retries=0
    ) as client:
        yield client


async def test_a_message_is_answered_and_recorded(
    gateway: Gateway, session: tuple[str, str], claude: anthropic.AsyncAnthropic
) -> None:
    gateway.engine.scripts = [says("<think>Hm.</think>\n\nHello!")]
    message = await claude.messages.create(
        model="policy",
        max_tokens=60,
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": "Hi"}],
    )
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[1].text == "Hello!"  # type: ignore[union-attr]
    assert message.stop_reason == "end_turn"
    prompt = encode(f"<|im_start|>system\nBe kind.<|im_end|>\n{USER_HI}")
    assert gateway.engine.requests[0][0] == prompt
    assert message.usage.input_tokens == len(prompt)
    [completion] = await recorded(gateway, session)
    assert completion["completion_id"] == message.id
    assert completion["trainable"]
    assert message.usage.output_tokens == len(completion["token_ids"])


async def test_a_streamed_message_with_tools_is_replayed_from_the_record(
    gateway: Gateway, session: tuple[str, str], claude: anthropic.AsyncAnthropic
) -> None:
    gateway.engine.scripts = [says(f"<think>so</think>\n\nI look.\n{CALL}"), says("It is red.")]
    conversation: list[Any] = [{"role": "user", "content": "Hi"}]
    async with claude.messages.stream(
        model="policy", max_tokens=200, messages=conversation, tools=[MESSAGES_TOOL]
    ) as stream:
        texts = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert "".join(texts).strip() == "I look."
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.stop_reason == "tool_use"
    use: Any = message.content[2]
    assert (use.name, use.input) == ("look", {"b": 1, "a": "é"})
    conversation += [
        {"role": "assistant", "content": [b.model_dump(mode="json") for b in message.content]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": use.id, "content": "red", "is_error": True},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    second = await claude.messages.create(
        model="policy", max_tokens=200, messages=conversation, tools=[MESSAGES_TOOL]
    )
    assert second.content[0].text == "It is red."  # type: ignore[union-attr]
    first, last = await recorded(gateway, session)
    before = first["prompt_token_ids"] + first["token_ids"]
    assert last["prompt_token_ids"][: len(before)] == before
    assert [m["role"] for m in last["request_messages"][2:]] == ["tool", "user"]
    assert last["request_messages"][2]["content"] == "Error: red"


async def test_a_message_says_why_it_ended(
    gateway: Gateway, claude: anthropic.AsyncAnthropic
) -> None:
    stopped = Script(token_ids=encode("aXb"), stop_text="X")
    gateway.engine.scripts = [stopped, says("abcdef"), stopped]
    ask: Any = {"model": "p", "messages": [{"role": "user", "content": "Hi"}]}
    message = await claude.messages.create(max_tokens=9, stop_sequences=["X"], **ask)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "X")
    assert message.content[0].text == "a"  # type: ignore[union-attr]
    cut = await claude.messages.create(max_tokens=2, **ask)
    assert cut.stop_reason == "max_tokens"
    async with claude.messages.stream(max_tokens=9, stop_sequences=["X"], **ask) as stream:
        streamed = await stream.get_final_message()
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "X")
    assert streamed.content[0].text == "a"  # type: ignore[union-attr]


async def test_a_message_whose_engine_breaks_says_so(
    gateway: Gateway, claude: anthropic.AsyncAnthropic
) -> None:
    broken = Script(token_ids=encode("abc"), error_after=2)
    gateway.engine.scripts = [broken, broken]
    ask: Any = {"model": "p", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    with pytest.raises(anthropic.APIStatusError, match="the engine broke"):
        await claude.messages.create(**ask)
    with pytest.raises(anthropic.APIError, match="the engine broke"):
        async with claude.messages.stream(**ask) as stream:
            await stream.get_final_message()


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
async def test_either_header_carries_the_key_of_messages(
    gateway: Gateway, session: tuple[str, str], header: str
) -> None:
    ask = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    value = session[1] if header == "x-api-key" else f"Bearer {session[1]}"
    answer = await gateway.http.post("/v1/messages", json=ask, headers={header: value})
    assert answer.status_code == 200
    wrong = await gateway.http.post("/v1/messages", json=ask, headers={header: f"{value}x"})
    assert error_of(wrong, 401)["type"] == "authentication_error"
    assert wrong.json()["type"] == "error"


async def test_a_key_header_of_messages_is_none_elsewhere(
    gateway: Gateway, session: tuple[str, str]
) -> None:
    answer = await gateway.http.get("/rl/sessions", headers={"x-api-key": session[1]})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"colour": "red"}, "colour"),
        ({"messages": [{"role": "user", "content": "x", "name": "ada"}]}, "messages[0].name"),
        (
            {"messages": [{"role": "user", "content": [TEXT | {"citations": {"enabled": True}}]}]},
            "messages[0].content[0].citations",
        ),
        ({"system": [TEXT | {"mood": 1}]}, "system[0].mood"),
        ({"tool_choice": {"type": "auto", "mode": "x"}}, "tool_choice.mode"),
        ({"system": "x" * 5000}, "messages"),
    ],
)
async def test_what_a_message_cannot_honour_is_named(
    gateway: Gateway, session: tuple[str, str], fields: dict[str, Any], param: str
) -> None:
    ask = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]} | fields
    answer = await gateway.call("POST", "/v1/messages", ask, key=session[1])
    assert error_of(answer)["param"] == param
    assert answer.json()["type"] == "error"
    assert gateway.engine.requests == []


async def test_tokens_are_counted_as_the_message_will_have_them(
    gateway: Gateway, session: tuple[str, str], claude: anthropic.AsyncAnthropic
) -> None:
    asked: Any = {
        "model": "policy",
        "system": "Be kind.",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [MESSAGES_TOOL],
    }
    counted = await claude.messages.count_tokens(**asked)
    assert gateway.engine.requests == []
    gateway.engine.scripts = [says("Hello!")]
    message = await claude.messages.create(max_tokens=20, **asked)
    assert counted.input_tokens == message.usage.input_tokens == len(gateway.engine.requests[0][0])
    assert len(await recorded(gateway, session)) == 1
    with pytest.raises(anthropic.BadRequestError) as refused:
        await claude.messages.count_tokens(model="m", messages=[{"role": "x", "content": "Hi"}])  # type: ignore[typeddict-item]
    assert refused.value.body["type"] == "error"  # type: ignore[index]


async def test_the_model_is_read_in_the_shape_of_each_api(
    gateway: Gateway, session: tuple[str, str], claude: anthropic.AsyncAnthropic
) -> None:
    [listed] = [model async for model in claude.models.list()]
    read = await claude.models.retrieve(listed.id)
    assert (read.type, read.id, read.display_name) == ("model", "tiny", "tiny")
    with pytest.raises(anthropic.NotFoundError) as missing:
        await claude.models.retrieve("other")
    assert missing.value.body["type"] == "error"  # type: ignore[index]
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=session[1], max_retries=0
    ) as client:
        model = await client.models.retrieve("tiny")
        assert (model.object, model.id) == ("model", "tiny")
        with pytest.raises(openai.NotFoundError, match="'tiny' is"):
            await client.models.retrieve("org/other")


async def test_a_temperature_near_0_is_greedy_and_one_that_overflows_is_refused(
    gateway: Gateway, session: tuple[str, str], claude: anthropic.AsyncAnthropic
) -> None:
    said: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    with pytest.raises(anthropic.BadRequestError, match="'temperature' = 1e-300 is too small"):
        await claude.messages.create(extra_body={"temperature": 1e-300}, **said)
    gateway.engine.scripts = [says("A"), says("B")]
    for temperature in (0.001, 0.01):
        await claude.messages.create(extra_body={"temperature": temperature}, **said)
    low, high = await recorded(gateway, session)
    assert (low["sampling"]["temperature"], low["untrainable_reason"]) == (0, "sampling_mismatch")
    assert (high["sampling"]["temperature"], high["trainable"]) == (0.01, True)
