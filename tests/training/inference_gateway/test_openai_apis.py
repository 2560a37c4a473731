"""OpenAI's APIs through its official client, and what gets recorded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from fakes.apis import CALL, SCHEMA, error_of, recorded
from fakes.engine import END, Script, byte_tokenizer, encode, says
from fakes.inference import Gateway, sse_data

from hermes_tui_training.chat_template.reply_parser import write_call

ARGUMENTS = '{"b": 1, "a": "é"}'
RESPONSES_TOOL: Any = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
TEXT_PART = {"type": "input_text", "text": "x"}
USER_HI = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
async def client(gateway: Gateway, session: tuple[str, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=session[1], max_retries=0
    ) as client:
        yield client


# -- /v1/chat/completions ----------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_chat_with_tools_is_replayed_from_the_record(
    gateway: Gateway, session: tuple[str, str], client: openai.AsyncOpenAI, streamed: bool
) -> None:
    """The official client: what it was answered goes back as the client itself writes it."""
    call = write_call("look", ARGUMENTS)
    gateway.engine.scripts = [says(f"I look.\n{call}\n{call}"), says("It is red.")]
    function = {"name": "look", "parameters": SCHEMA, "strict": True}
    tool: Any = {"type": "function", "function": function}
    conversation: list[Any] = [{"role": "user", "content": "Hi"}]
    if streamed:
        async with client.chat.completions.stream(
            model="policy", messages=conversation, tools=[tool]
        ) as stream:
            kinds = [event.type async for event in stream]
            answer: Any = await stream.get_final_completion()
        assert "tool_calls.function.arguments.done" in kinds
    else:
        answer = await client.chat.completions.create(
            model="policy", messages=conversation, tools=[tool]
        )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content.strip() == "I look."
    calls = choice.message.tool_calls
    assert [call.function.arguments for call in calls] == [ARGUMENTS, ARGUMENTS]
    assert len({call.id for call in calls}) == 2
    replayed = choice.message.model_dump(mode="json")
    for call in replayed["tool_calls"]:
        call["function"].pop("parsed_arguments", None)
    conversation += [{k: v for k, v in replayed.items() if k != "parsed"}]
    conversation += [{"role": "tool", "tool_call_id": call.id, "content": "red"} for call in calls]
    second = await client.chat.completions.create(
        model="policy", messages=conversation, tools=[tool], logprobs=True, top_logprobs=1
    )
    assert second.choices[0].message.content == "It is red."
    assert second.choices[0].logprobs is not None
    first, last = await recorded(gateway, session)
    before = first["prompt_token_ids"] + first["token_ids"]
    assert last["prompt_token_ids"][: len(before)] == before
    assert last["prefix"]["first_difference"] is None


# -- /v1/completions ---------------------------------------------------------------------------


@pytest.mark.parametrize("as_ids", [False, True])
async def test_a_raw_prompt_reaches_the_engine_as_it_is(
    gateway: Gateway, session: tuple[str, str], client: openai.AsyncOpenAI, as_ids: bool
) -> None:
    gateway.engine.scripts = [says(" Paris<think>")]
    text = "The capital of France is<|im_end|>"
    ids = encode(text)
    assert ids[-1] == END, "a control token in a raw prompt is one"
    answer = await client.completions.create(
        model="policy", prompt=ids if as_ids else text, max_tokens=50, logprobs=2
    )
    assert gateway.engine.requests[0][0] == ids
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == (" Paris<think>", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), 14)
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.tokens[:2] == [" ", "P"]
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[:3] == [0, 1, 2]
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] == -0.5
    assert logprobs.top_logprobs is not None
    assert len(logprobs.top_logprobs[0]) == 2
    [completion] = await recorded(gateway, session)
    assert completion["completion_id"] == answer.id
    assert answer.id.startswith("cmpl-")
    assert completion["prompt_token_ids"] == ids
    assert completion["token_ids"] == [*encode(" Paris<think>"), END]
    assert completion["request_messages"] == []
    assert completion["message"] == {"role": "assistant", "content": " Paris<think>"}
    assert completion["trainable"]


async def test_a_text_completion_streams(
    gateway: Gateway, session: tuple[str, str], client: openai.AsyncOpenAI
) -> None:
    gateway.engine.scripts = [says("Hé you", stop_text=None)]
    texts, last = [], None
    stream = await client.completions.create(
        model="policy",
        prompt="x",
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    ids: list[int] = []
    async for chunk in stream:
        for choice in chunk.choices:
            texts.append(choice.text)
            ids += (choice.model_extra or {}).get("token_ids") or []
            last = choice.finish_reason
        usage = chunk.usage
    assert "".join(texts) == "Hé you"
    assert last == "stop"
    assert ids == [*encode("Hé you"), END]
    assert usage is not None
    assert usage.completion_tokens == len(ids)
    assert (await recorded(gateway, session))[0]["token_ids"] == ids


async def test_a_token_prompt_that_continues_is_one_segment(
    gateway: Gateway, session: tuple[str, str], client: openai.AsyncOpenAI
) -> None:
    """A token-in, token-out agent: its next prompt begins with what was sampled."""
    gateway.engine.scripts = [says("one"), says("two")]
    first = await client.completions.create(
        model="p", prompt=encode("go"), extra_body={"return_token_ids": True}
    )
    sampled = (first.choices[0].model_extra or {})["token_ids"]
    await client.completions.create(model="p", prompt=[*encode("go"), *sampled, *encode("next")])
    await client.completions.create(model="p", prompt=encode("gone"))
    await gateway.call("POST", "/rl/set_reward", {"reward": 1.0}, key=session[1])
    completions = await recorded(gateway, session)
    known = len(encode("go")) + len(sampled)
    assert completions[1]["prefix"]["parent_completion_id"] == first.id
    assert completions[1]["prefix"]["shared_token_count"] == known
    assert completions[1]["prefix"]["first_difference"] is None
    assert completions[2]["prefix"]["first_difference"]["index"] == 2
    body = {"session_ids": [session[0]], "style": "concat"}
    rows = (await gateway.call("POST", "/export_trajectories", body)).json()["data"]
    assert [len(row["interaction_ids"]) for row in rows] == [2, 1]
    assert rows[0]["input_ids"] == completions[1]["prompt_token_ids"] + completions[1]["token_ids"]


async def test_a_raw_completion_is_no_parent_of_a_conversation(
    gateway: Gateway, session: tuple[str, str]
) -> None:
    gateway.engine.scripts = [says("hello"), says("again")]
    await gateway.call("POST", "/v1/completions", {"prompt": "Z"}, key=session[1])
    messages = [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "more"}]
    body = {"messages": messages}
    answer = await gateway.call("POST", "/v1/chat/completions", body, key=session[1])
    assert answer.is_success, answer.text
    assert gateway.engine.requests[1][0] == encode(
        "<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [999_999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "best_of": 2}, "best_of"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "n": 17}, "n"),
        ({"prompt": "x", "tools": []}, "tools"),
        ({"prompt": "x" * 5000}, "prompt"),
    ],
)
async def test_what_a_text_completion_cannot_honour_is_named(
    gateway: Gateway, session: tuple[str, str], fields: dict[str, Any], param: str
) -> None:
    answer = await gateway.call("POST", "/v1/completions", fields, key=session[1])
    assert error_of(answer)["param"] == param
    assert gateway.engine.requests == []


# -- /v1/responses -----------------------------------------------------------------------------


async def test_a_response_is_answered_and_recorded(
    gateway: Gateway, session: tuple[str, str], client: openai.AsyncOpenAI
) -> None:
    gateway.engine.scripts = [says("<think>Hm.</think>\n\nHello!")]
    response = await client.responses.create(
        model="policy",
        input="Hi",
        instructions="Be kind.",
        max_output_tokens=50,
        metadata={"who": "ada"},
        include=["message.output_text.logprobs"],
        top_logprobs=1,
    )
    assert response.status == "completed"
    assert response.output_text == "Hello!"
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.metadata == {"who": "ada"}
    assert response.usage is not None
    assert response.usage.output_tokens == len(encode("<think>Hm.</think>\n\nHello!")) + 1
    part: Any = response.output[1].content[0]  # type: ignore[union-attr]
    assert len(part.logprobs) == response.usage.output_tokens
    assert gateway.engine.requests[0][0] == encode(
        f"<|im_start|>system\nBe kind.<|im_end|>\n{USER_HI}"
    )
    [completion] = await recorded(gateway, session)
    assert completion["completion_id"] == response.id
    assert completion["message"]["reasoning_content"] == "Hm."
    reward = {"reward": 1.0, "interaction_id": response.id}
    assert (await gateway.call("POST", "/rl/set_reward", reward, key=session[1])).is_success


async def test_a_streamed_response_with_tools_is_replayed_from_the_record(
    gateway: Gateway, session: tuple[str, str], client: openai.AsyncOpenAI
) -> None:
    gateway.engine.scripts = [says(f"<think>so</think>\n\nI look.\n{CALL}"), says("It is red.")]
    conversation: list[Any] = [{"role": "user", "content": "Hi"}]
    kinds: list[str] = []
    async with client.responses.stream(
        model="policy", input=conversation, tools=[RESPONSES_TOOL], tool_choice="auto"
    ) as stream:
        async for event in stream:
            kinds.append(event.type)
        response = await stream.get_final_response()
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    for kind in ("reasoning_text", "output_text", "function_call_arguments"):
        assert kinds.count(f"response.{kind}.done") == 1
        assert kinds.index(f"response.{kind}.delta") < kinds.index(f"response.{kind}.done")
    call: Any = response.output[2]
    assert (call.name, call.arguments) == ("look", ARGUMENTS)
    conversation += [item.model_dump(exclude_none=True) for item in response.output]
    conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": "red"})
    second = await client.responses.create(
        model="policy", input=conversation, tools=[RESPONSES_TOOL]
    )
    assert second.output_text == "It is red."
    first, last = await recorded(gateway, session)
    before = first["prompt_token_ids"] + first["token_ids"]
    assert last["prompt_token_ids"][: len(before)] == before
    assert last["prefix"]["first_difference"] is None


async def test_the_events_of_a_response_add_up(gateway: Gateway, session: tuple[str, str]) -> None:
    gateway.engine.scripts = [says("Hé!")]
    body = {"input": "Hi", "stream": True, "return_token_ids": True}
    answer = await gateway.call("POST", "/v1/responses", body, key=session[1])
    events = [json.loads(data) for data in sse_data(answer.text)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    final = events[-1]["response"]
    assert text == final["output"][0]["content"][0]["text"] == "Hé!"
    assert final["token_ids"] == [*encode("Hé!"), END]
    assert final["output"][0]["status"] == "completed"
    added = next(e for e in events if e["type"] == "response.output_item.added")
    assert added["item"]["id"] == final["output"][0]["id"]
    assert added["item"]["content"] == []


async def test_a_cut_response_is_incomplete(
    gateway: Gateway, session: tuple[str, str], client: openai.AsyncOpenAI
) -> None:
    gateway.engine.scripts = [says("abcdef"), says("abcdef")]
    whole = await client.responses.create(model="p", input="Hi", max_output_tokens=3)
    assert (whole.status, whole.output_text) == ("incomplete", "abc")
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    stream = await client.responses.create(model="p", input="Hi", max_output_tokens=3, stream=True)
    assert [event.type async for event in stream][-1] == "response.incomplete"
    assert {c["untrainable_reason"] for c in await recorded(gateway, session)} == {"truncated"}


async def test_a_response_whose_engine_breaks_fails_with_the_cause(
    gateway: Gateway, session: tuple[str, str]
) -> None:
    gateway.engine.scripts = [Script(token_ids=encode("abc"), error_after=2)]
    body = {"input": "Hi", "stream": True}
    answer = await gateway.call("POST", "/v1/responses", body, key=session[1])
    last = json.loads(sse_data(answer.text)[-1])
    assert last["type"] == "response.failed"
    assert "the engine broke" in last["response"]["error"]["message"]


async def test_parallel_calls_are_one_message(gateway: Gateway, session: tuple[str, str]) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "red"},
        {"type": "function_call_output", "call_id": "2", "output": "blue"},
    ]
    body = {"input": items, "tools": [RESPONSES_TOOL]}
    assert (await gateway.call("POST", "/v1/responses", body, key=session[1])).is_success
    messages = (await recorded(gateway, session))[0]["request_messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["1", "2"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"text": {"format": {"type": "regex"}}}, "text.format.type"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": "x", "name": "ada"}]}, "input[0].name"),
        (
            {"input": [{"role": "user", "content": [TEXT_PART | {"mood": 1}]}]},
            "input[0].content[0].mood",
        ),
        ({"tools": [RESPONSES_TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"text": {"format": {"type": "text", "a": 1}}}, "text.format.a"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ({"colour": "red"}, "colour"),
        ({"input": "x" * 5000}, "input"),
    ],
)
async def test_what_a_response_cannot_honour_is_named(
    gateway: Gateway, session: tuple[str, str], fields: dict[str, Any], param: str
) -> None:
    answer = await gateway.call("POST", "/v1/responses", {"input": "Hi"} | fields, key=session[1])
    assert error_of(answer)["param"] == param
    assert gateway.engine.requests == []


# -- all of them -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["completions", "responses", "messages"])
async def test_every_api_needs_a_session_key(gateway: Gateway, path: str) -> None:
    assert (await gateway.call("POST", f"/v1/{path}", {}, key=None)).status_code == 401
    assert (await gateway.call("POST", f"/v1/{path}", {}, key="sk-sess-x")).status_code == 401
    assert (await gateway.call("POST", f"/v1/{path}", {})).status_code == 403


async def test_every_api_puts_the_same_conversation_into_the_same_tokens(
    gateway: Gateway, session: tuple[str, str]
) -> None:
    function = {"name": "look", "parameters": SCHEMA}
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    system, asked, said, seen, more = "Be kind.", "Hi", "I look.", "red", "So?"
    chat = {
        "tools": [{"type": "function", "function": function}],
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": asked},
            {"role": "assistant", "content": said, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": seen},
            {"role": "user", "content": more},
        ],
    }
    responses = {
        "tools": [{"type": "function", **function}],
        "instructions": system,
        "input": [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": [{"type": "output_text", "text": said}]},
            {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": seen},
            {"role": "user", "content": [{"type": "input_text", "text": more}]},
        ],
    }
    messages = {
        "max_tokens": 9,
        "tools": [{"name": "look", "input_schema": SCHEMA}],
        "system": system,
        "messages": [
            {"role": "user", "content": asked},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": said},
                    {"type": "tool_use", "id": "1", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": seen},
                    {"type": "text", "text": more},
                ],
            },
        ],
    }
    for path, body in (
        ("chat/completions", chat),
        ("responses", responses),
        ("messages", messages),
    ):
        answer = await gateway.call("POST", f"/v1/{path}", body, key=session[1])
        assert answer.is_success, answer.text
    prompts = [prompt for prompt, _ in gateway.engine.requests]
    assert prompts[0] == prompts[1] == prompts[2]
    assert "<tool_response>\nred" in byte_tokenizer().decode(prompts[0])
