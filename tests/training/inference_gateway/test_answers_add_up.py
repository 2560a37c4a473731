"""What a client has in the end is what was recorded: for every API, streamed or not."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from fakes.apis import CALL, SCHEMA, recorded
from fakes.engine import FakeEngine, Script, byte_tokenizer
from fakes.families import family_tokenizer
from fakes.inference import Gateway, running_gateway
from openai.lib.streaming.chat import ChatCompletionStreamState

from hermes_tui_training.chat_template.renderer import Chat

REPLIES = (
    ("Hé 😀, all is well. ", 0),
    (f"I look.\n{CALL}\n{CALL}", 0),
    (f"<think>maybe {CALL} no</think>plain", 0),
    (f"<think>maybe {CALL} no", 0),
    (CALL.replace('"é"', '"</tool_call> <think>"'), 0),
    ('Hm <tool_call>{"name": </tool_call> so', 0),
    (f"Cut: {CALL}", 20),
    ("half a character 😀", 2),
)
"""What the model says, and how many tokens at the end are cut off."""

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
)

Answer = dict[str, Any]
"""``content``, ``reasoning``, ``calls`` (name, arguments), ``reason``, ``usage`` (two counts)."""


Ask = Callable[[Gateway, str, int, bool], Awaitable[Answer]]


def chat_of(renderer: str) -> Chat:
    if renderer.startswith("qwen"):
        return Chat(family_tokenizer(renderer)[0], renderer=renderer)
    tokenizer = copy.deepcopy(byte_tokenizer())
    if renderer == "default":
        tokenizer.chat_template = TEMPLATE
    return Chat(tokenizer, renderer=renderer)


async def by_chat(gateway: Gateway, key: str, max_tokens: int, streamed: bool) -> Answer:
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    fields: Any = {
        "model": "policy",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [tool],
        "max_tokens": max_tokens,
    }
    client = openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, http_client=gateway.http
    )
    if streamed:
        state = ChatCompletionStreamState()
        stream = await client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **fields
        )
        async for chunk in stream:
            state.handle_chunk(chunk)
        answer: Any = state.current_completion_snapshot
    else:
        answer = await client.chat.completions.create(**fields)
    (choice,) = answer.choices
    text, calls = choice.message.content, choice.message.tool_calls
    assert (text is None) == (bool(calls) and not text), "null where there are calls alone"
    return {
        "content": text or "",
        "reasoning": (choice.message.model_extra or {}).get("reasoning_content") or "",
        "calls": [
            (call.function.name, json.loads(call.function.arguments)) for call in calls or ()
        ],
        "reason": choice.finish_reason,
        "usage": (answer.usage.prompt_tokens, answer.usage.completion_tokens),
    }


async def by_responses(gateway: Gateway, key: str, max_tokens: int, streamed: bool) -> Answer:
    tool: Any = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
    fields: Any = {
        "model": "policy",
        "input": "Hi",
        "tools": [tool],
        "max_output_tokens": max_tokens,
    }
    client = openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, http_client=gateway.http
    )
    if streamed:
        deltas: dict[str, str] = {}
        final: Any = None
        async for event in await client.responses.create(stream=True, **fields):
            if event.type.endswith(".delta"):
                deltas[event.type] = deltas.get(event.type, "") + event.delta  # type: ignore[union-attr]
            final = getattr(event, "response", final)
        assert deltas.get("response.output_text.delta", "") == final.output_text
    else:
        final = await client.responses.create(**fields)
    items = final.output
    calls = [item for item in items if item.type == "function_call"]
    reasoning = [part.text for i in items if i.type == "reasoning" for part in i.content or ()]
    cut = final.status == "incomplete"
    return {
        "content": final.output_text,
        "reasoning": "".join(reasoning),
        "calls": [(call.name, json.loads(call.arguments)) for call in calls],
        "reason": "length" if cut else "tool_calls" if calls else "stop",
        "usage": (final.usage.input_tokens, final.usage.output_tokens),
    }


async def by_messages(gateway: Gateway, key: str, max_tokens: int, streamed: bool) -> Answer:
    fields: Any = {
        "model": "policy",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "look", "input_schema": SCHEMA}],
        "max_tokens": max_tokens,
    }
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key=key, max_retries=0
    ) as client:  # it does not take a client of httpx, which would be faster to make
        if streamed:
            async with client.messages.stream(**fields) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await client.messages.create(**fields)
    blocks = answer.content
    reasons = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
    return {
        "content": "".join(block.text for block in blocks if block.type == "text"),
        "reasoning": "".join(block.thinking for block in blocks if block.type == "thinking"),
        "calls": [(block.name, block.input) for block in blocks if block.type == "tool_use"],
        "reason": reasons[answer.stop_reason],
        "usage": (answer.usage.input_tokens, answer.usage.output_tokens),
    }


def as_recorded(completion: dict[str, Any]) -> Answer:
    message, usage = completion["message"], completion["usage"]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [(f["name"], json.loads(f["arguments"])) for f in functions],
        "reason": completion["finish_reason"],
        "usage": (usage["prompt_tokens"], usage["completion_tokens"]),
    }


@pytest.mark.parametrize("renderer", ["chatml", "default", "qwen3", "qwen3.5"])
@pytest.mark.parametrize("ask", [by_chat, by_responses, by_messages])
async def test_an_answer_is_what_was_recorded(tmp_path: Path, renderer: str, ask: Ask) -> None:
    chat = chat_of(renderer)
    async with running_gateway(tmp_path, engine=FakeEngine(), chat=chat, port=0) as gateway:
        for text, cut in REPLIES:
            token_ids = [*chat.tokenizer.encode(text, add_special_tokens=False)]
            token_ids.append(chat.stop_token_ids[0])
            one, other = [
                await answered(gateway, ask, token_ids, len(token_ids) - cut, streamed)
                for streamed in (False, True)
            ]
            assert one == other, text
            assert (one["reason"] == "length") == bool(cut), text


async def answered(
    gateway: Gateway,
    ask: Ask,
    token_ids: list[int],
    max_tokens: int,
    streamed: bool,
) -> Answer:
    """Return what a client has of a reply, which must be what was recorded of it."""
    session = await gateway.session()
    gateway.engine.scripts = [Script(token_ids=token_ids)]
    answer = await ask(gateway, session[1], max_tokens, streamed)
    (completion,) = await recorded(gateway, session)
    assert answer == as_recorded(completion)
    return answer
