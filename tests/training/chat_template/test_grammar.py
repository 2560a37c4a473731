"""Replies of a given form: what a grammar lets through is what the model's parser reads back."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fakes.engine import byte_tokenizer, qwen_tokenizer
from fakes.families import family_tokenizer
from llguidance import LLMatcher, LLTokenizer

from hermes_tui_common.errors import ApiError
from hermes_tui_training.chat_template.grammar import (
    ANY_OBJECT,
    NO_ARGUMENTS,
    CallableTool,
    ReplyRules,
)
from hermes_tui_training.chat_template.renderer import Chat

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Łódź"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
        "sky": {"type": "array", "items": {"$ref": "#/$defs/Sky"}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"Sky": {"type": "string", "enum": ["clear", "cloudy"]}},
}
WEATHER: dict[str, Any] = {"name": "weather", "parameters": PARAMETERS}
NOW: dict[str, Any] = {"name": "now", "parameters": NO_ARGUMENTS}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, NOW)]


def callable_tools(*, is_held: bool = True) -> tuple[CallableTool, ...]:
    return tuple(
        CallableTool(is_held=is_held, field=f"tools[{index}]", **function)
        for index, function in enumerate((WEATHER, NOW))
    )


def chat_of(family: str) -> Chat:
    if family == "chatml":
        return Chat(byte_tokenizer())
    if family == "qwen3":
        return Chat(qwen_tokenizer(), renderer="qwen3")
    return Chat(family_tokenizer(family)[0], renderer=family)


def matcher_of(chat: Chat, rules: ReplyRules, **template: Any) -> LLMatcher:
    prompt = chat.prompt([{"role": "user", "content": "Hi"}], tools=TOOLS, template=template)
    text = chat.tokenizer.backend_tokenizer.to_str()
    tokenizer = LLTokenizer(text, eos_token=list(chat.stop_token_ids))
    return LLMatcher(tokenizer, chat.grammar(rules, prompt, template=template))


def allows(chat: Chat, rules: ReplyRules, text: str, **template: Any) -> bool:
    """Return whether a reply may be a text and end there."""
    matcher = matcher_of(chat, rules, **template)
    token_ids = chat.tokenizer.encode(text, add_special_tokens=False)
    return all(map(matcher.consume_token, token_ids)) and matcher.is_accepting()


def wandering(matcher: LLMatcher, seed: int, stops: Sequence[int]) -> list[int]:
    """Return a reply drawn evenly from what the grammar allows."""
    source = random.Random(seed)
    token_ids: list[int] = []
    while not token_ids or token_ids[-1] not in stops:
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()
        token_ids.append(source.choice(allowed))
        assert matcher.consume_token(token_ids[-1]), matcher.get_error()
        assert len(token_ids) < 5000
    return token_ids


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
NOW_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
QWEN35_CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n"
    "</parameter>\n</function>\n</tool_call>"
)


@pytest.mark.parametrize("family", ["chatml", "qwen3", "qwen3.5"])
@pytest.mark.parametrize("seed", range(5))
def test_a_forced_call_is_read_back_whatever_is_sampled(family: str, seed: int) -> None:
    chat = chat_of(family)
    template = {} if family == "chatml" else {"enable_thinking": False}
    rules = ReplyRules(tools=callable_tools(), must_call=True)
    token_ids = wandering(matcher_of(chat, rules, **template), seed, chat.stop_token_ids)
    prompt = chat.prompt([{"role": "user", "content": "Hi"}], tools=TOOLS, template=template)
    stream = chat.reply_stream(prompt, tools=TOOLS, template=template)
    stream.push(token_ids)
    message = stream.finish().message
    assert "malformed_tool_calls" not in message
    assert message["tool_calls"]
    for call in message["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "now":
            assert arguments == {}
            continue
        assert arguments["city"] in ("Oslo", "Łódź")
        assert 1 <= arguments["days"] <= 99
        assert set(arguments) <= {"city", "days", "sky"}


@pytest.mark.parametrize(
    ("family", "text", "allowed"),
    [
        ("chatml", CALL, True),
        ("chatml", f"{CALL}\n{NOW_CALL}", True),
        ("chatml", f"I look. {CALL}", False),
        ("chatml", "I look.", False),
        ("chatml", "", False),
        ("chatml", CALL.replace("Oslo", "Rome"), False),
        ("chatml", CALL.replace(', "days": 3', ""), False),
        ("chatml", CALL.replace("weather", "whether"), False),
        ("chatml", f"<think>hm</think>\n\n{CALL}", False),
        ("qwen3", f"<think>a </b> c</think>\n\n{CALL}", True),
        ("qwen3", f"<think>never closed {CALL}", False),
        ("qwen3.5", f"so</think>\n\n{QWEN35_CALL}", True),
        ("qwen3.5", QWEN35_CALL, False),  # its prompt opened reasoning
        ("qwen3.5", f"so</think>\n\n{QWEN35_CALL.replace('3', 'three')}", False),
        ("qwen3.5", f"so</think>\n\n{QWEN35_CALL.replace('Oslo', 'Rome')}", False),
    ],
)
def test_a_forced_call(family: str, text: str, allowed: bool) -> None:
    rules = ReplyRules(tools=callable_tools(), must_call=True)
    assert allows(chat_of(family), rules, text) is allowed


@pytest.mark.parametrize(
    ("rules", "text", "allowed"),
    [
        (ReplyRules(tools=callable_tools(), must_call=True, max_calls=1), CALL, True),
        (
            ReplyRules(tools=callable_tools(), must_call=True, max_calls=1),
            CALL + "\n" + CALL,
            False,
        ),
        (ReplyRules(tools=callable_tools(), max_calls=1), f"I look. {CALL}", True),
        (ReplyRules(tools=callable_tools(), max_calls=1), f"{CALL} {NOW_CALL}", False),
        (ReplyRules(tools=callable_tools()), f"One: {CALL} two: {NOW_CALL} done", True),
        (ReplyRules(tools=callable_tools()), "no call", True),
        (ReplyRules(tools=callable_tools()), f"I look. {CALL.replace('3', '100')}", False),
        (ReplyRules(tools=callable_tools(is_held=False)), CALL.replace("3", "100"), True),
        (ReplyRules(tools=callable_tools(is_held=False)), CALL.replace("weather", "x"), False),
        (ReplyRules(schema=ANY_OBJECT), '{"a": [1, {"b": null}]}', True),
        (ReplyRules(schema=ANY_OBJECT), "[1]", False),
        (ReplyRules(schema=ANY_OBJECT), '{"a": 1', False),
        (ReplyRules(schema=PARAMETERS), '{"city": "Oslo", "days": 7, "sky": ["clear"]}', True),
        (ReplyRules(schema=PARAMETERS), '{"city": "Oslo", "days": 7, "wind": 1}', False),
        (ReplyRules(schema=PARAMETERS, tools=callable_tools()), CALL, True),
        (ReplyRules(schema=PARAMETERS, tools=callable_tools()), "I look.", False),
    ],
)
def test_calls_and_content(rules: ReplyRules, text: str, allowed: bool) -> None:
    assert allows(chat_of("chatml"), rules, text) is allowed


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (
            {"type": "object", "properties": {"a": {"properties": {"b": {"uniqueItems": True}}}}},
            "schema.properties.a.properties.b",
        ),
        ({"anyOf": [{"type": "integer"}, {"type": "strin"}]}, "schema.anyOf[1]"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"items": {"not": {}}}}}, "schema.$defs.A.items"),
        (
            {"type": "object", "additionalProperties": {"contains": {}}},
            "schema.additionalProperties",
        ),
        ({"$ref": "#/$defs/A"}, "schema"),
        ({"type": "string", "pattern": "(?=a)"}, "schema"),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_named(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(ApiError) as refused:
        matcher_of(chat_of("chatml"), ReplyRules(schema=schema, schema_field="schema"))
    assert (refused.value.status, refused.value.param) == (400, path)


def test_a_model_whose_calls_we_cannot_write_is_named() -> None:
    with pytest.raises(ApiError, match="glm-5"):
        matcher_of(chat_of("glm-5"), ReplyRules(tools=callable_tools(), must_call=True))
