"""What is streamed adds up to the message, for every renderer and however the tokens arrive."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import pytest
from fakes.engine import END, byte_tokenizer
from fakes.families import FAMILIES, family_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_tui_training.chat_template.family_parser import FamilyParser
from hermes_tui_training.chat_template.renderer import Chat
from hermes_tui_training.chat_template.reply_parser import write_call

TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}},
    }
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
)

CALL = write_call("f", '{"a": 1}')
TEXTS = (
    *("Hello", " ", "\n\n", "<", "</", "{", "}", '"', "\\", "é😀", "日本"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<thi", "<tool_c"),
    CALL,
    CALL.replace("\n", ""),
    CALL[:-14],
    CALL.replace('"f"', '""'),
    write_call("f", json.dumps({"a": "</tool_call> <think> }"})),
    '<tool_call>{"name": "f", "arguments": "x\ny"}</tool_call>',
    f"<think>maybe {CALL} no</think>",
    "<function=f><parameter=a>v</parameter></function>",
    '{"name": "f", "parameters": {"a": 1}}',
)
"""Parts of adversarial replies; those of a family have its control tokens too."""

OUR_GRAMMAR = ("chatml", "default", "qwen3", "qwen3-vl")
CHANGES_ITS_MIND = ("gemma4", "inkling", "laguna-xs.2", "llama-3")
"""Families whose renderers drop content once a control token follows that never follows content."""


@cache
def chat_of(renderer: str) -> tuple[Chat, tuple[str, ...]]:
    """Return a chat and the control tokens of its family."""
    if renderer == "chatml":
        return Chat(byte_tokenizer()), ()
    if renderer == "default":
        tokenizer = copy.deepcopy(byte_tokenizer())
        tokenizer.chat_template = TEMPLATE
        return Chat(tokenizer, renderer="default"), ()
    tokenizer, added = family_tokenizer(renderer)
    return Chat(tokenizer, renderer=renderer), added


def replies(control: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Return texts of up to ten parts."""
    return st.lists(st.sampled_from([*TEXTS, *control]), max_size=10).map("".join)


def split(token_ids: list[int], sizes: list[int]) -> list[list[int]]:
    """Return tokens in parts of these sizes, again and again."""
    parts, start, turn = [], 0, 0
    while start < len(token_ids):
        size = sizes[turn % len(sizes)]
        parts.append(token_ids[start : start + size])
        start, turn = start + size, turn + 1
    return parts


def in_parts(
    chat: Chat, parts: list[list[int]], tools: Any, template: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Stream a reply; return what its deltas add up to, and its message."""
    messages = [{"role": "user", "content": "Hi"}]
    prompt = chat.prompt(messages, tools=tools, template=template)
    stream = chat.reply_stream(prompt, tools=tools, template=template)
    deltas = [stream.push(part)[0] for part in parts]
    final = stream.finish()
    joined: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in (*deltas, final.delta):
        assert all(delta.values()), "an empty delta says nothing"
        for key, value in delta.items():
            joined[key] += value
    assert [call.pop("index") for call in joined["tool_calls"]] == list(
        range(len(joined["tool_calls"]))
    )
    return joined, final.message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls}


@pytest.mark.parametrize("renderer", dict.fromkeys([*OUR_GRAMMAR, *FAMILIES]))
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_deltas_add_up_to_the_message(renderer: str, data: st.DataObject) -> None:
    chat, control = chat_of(renderer)
    token_ids = list(
        chat.tokenizer.encode(data.draw(replies(control), "text"), add_special_tokens=False)
    )
    if data.draw(st.booleans(), "cut"):
        token_ids = token_ids[:-1]  # perhaps within a character
    else:
        token_ids.append(chat.stop_token_ids[0])
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5), "sizes")
    tools = TOOLS if data.draw(st.booleans(), "tools") else ()
    joined, message = in_parts(chat, split(token_ids, sizes), tools, {})
    assert joined["content"] == (message["content"] or "")
    assert joined["reasoning_content"] == message.get("reasoning_content", "")
    assert joined["tool_calls"] == message.get("tool_calls", [])
    if renderer not in CHANGES_ITS_MIND:
        _, whole = in_parts(chat, [token_ids], tools, {})
        assert without_ids(message) == without_ids(whole), "it depends on how the tokens arrived"


@pytest.mark.parametrize("renderer", OUR_GRAMMAR)
@pytest.mark.parametrize("end", ["</think>plain", ""])
def test_a_call_within_reasoning_is_none(renderer: str, end: str) -> None:
    chat, _ = chat_of(renderer)
    text = f"<think>maybe {CALL} no{end}"
    token_ids = [*chat.tokenizer.encode(text, add_special_tokens=False), END]
    joined, message = in_parts(chat, [[token_id] for token_id in token_ids], TOOLS, {})
    assert joined["tool_calls"] == []
    assert "tool_calls" not in message
    assert message["reasoning_content"] == f"maybe {CALL} no"
    assert message["content"] == ("plain" if end else "")


def test_a_family_with_a_grammar_of_its_own_calls_too() -> None:
    """Its calls come with the last delta, since until then they may turn out to be reasoning."""
    chat, _ = chat_of("qwen3.5")
    template = {"enable_thinking": False}
    text = (
        "Hm. <tool_call>\n<function=f>\n<parameter=a>\né\n</parameter>\n</function>\n</tool_call>"
    )
    token_ids = list(chat.tokenizer.encode(text, add_special_tokens=False))
    prompt = chat.prompt([{"role": "user", "content": "Hi"}], tools=TOOLS, template=template)
    assert isinstance(
        chat.reply_stream(prompt, tools=TOOLS, template=template)._parser, FamilyParser
    )
    joined, message = in_parts(chat, [[i] for i in token_ids], TOOLS, template)
    assert joined["content"] == message["content"] == "Hm."
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": "é"}'}
    assert joined["tool_calls"] == [call]


def test_a_bare_call_of_llama_3_is_not_streamed_as_text() -> None:
    chat, _ = chat_of("llama-3")
    token_ids = list(chat.tokenizer.encode('{"name": "f", "parameters": {"a": 1}}'))
    joined, message = in_parts(chat, [[i] for i in token_ids], TOOLS, {})
    assert joined["content"] == ""
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_stop_texts_never_show_and_deltas_add_up(data: st.DataObject) -> None:
    """Whatever part of the reply the stop text ends, reasoning and calls included."""
    chat, _ = chat_of(data.draw(st.sampled_from(["chatml", "qwen3", "qwen3.5"]), "renderer"))
    before, stop = data.draw(replies(()), "before"), data.draw(st.sampled_from(["§§", "§"]), "stop")
    token_ids = list(chat.tokenizer.encode(before + stop, add_special_tokens=False))
    prompt = chat.prompt([{"role": "user", "content": "Hi"}], tools=TOOLS)
    stream = chat.reply_stream(prompt, tools=TOOLS, stop=["§§", "§"])
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5), "sizes")
    deltas = [stream.push(part)[0] for part in split(token_ids, sizes)]
    final = stream.finish(stop)
    deltas.append(final.delta)
    for key in ("content", "reasoning_content"):
        joined = "".join(delta.get(key, "") for delta in deltas)
        assert joined == (final.message.get(key) or "")
        assert "§" not in joined
