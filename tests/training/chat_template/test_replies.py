"""Replies taken apart: by value, and the same however they arrive."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.engine import END, byte_tokenizer, encode
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_tui_training.chat_template.renderer import Chat, Prompt
from hermes_tui_training.chat_template.reply_parser import held_length, parse_reply

TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = '<tool_call>{"name": "f", "arguments": {"b":1,  "a":2}}</tool_call>'


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(byte_tokenizer())


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls"),
    [
        ("Hello", "Hello", None, []),
        ("", "", None, []),
        (" \n", " \n", None, []),
        ("<think>hm\n</think>\n\nHi ", "Hi ", "hm\n", []),
        ("\n<think>hm</think>Hi", "Hi", "hm", []),
        ("<think></think>Hi", "Hi", "", []),
        ("Hi <think>no</think>", "Hi <think>no</think>", None, []),
        (CALL, "", None, [("f", {"b": 1, "a": 2})]),
        (f"\n{CALL}\n{CALL}\n", "", None, [("f", {"b": 1, "a": 2})] * 2),
        (f"Let me see.\n{CALL}", "Let me see.\n", None, [("f", {"b": 1, "a": 2})]),
        (f"{CALL} and more", " and more", None, [("f", {"b": 1, "a": 2})]),
        (f"<think>{CALL}</think>x", "x", CALL, []),
        (CALL.removesuffix("</tool_call>"), "", None, [("f", {"b": 1, "a": 2})]),
        ('<tool_call>{"name": "f"}</tool_call>', "", None, [("f", {})]),
        (
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            "",
            None,
            [("f", {"a": 1})],
        ),
    ],
)
def test_a_reply_is_taken_apart(
    text: str, content: str, reasoning: str | None, calls: list[Any]
) -> None:
    reply = parse_reply(text, tools=True)
    assert (reply.content, reply.reasoning) == (content, reasoning)
    assert [(c.name, json.loads(c.arguments)) for c in reply.tool_calls] == calls


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>not json</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>[{"name": "f"}]</tool_call>',
        "<tool_call>" + "[" * 20_000 + "</tool_call>",
        "</tool_call>",
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    reply = parse_reply(text, tools=True)
    assert (reply.content, reply.tool_calls) == (text, ())


def test_without_tools_a_tag_is_text() -> None:
    assert parse_reply(CALL, tools=False).content == CALL


def test_reasoning_that_is_not_closed() -> None:
    reply = parse_reply("<think>hm", tools=True)
    assert (reply.content, reply.reasoning, reply.reasoning_open) == ("", "hm", True)
    opened = parse_reply("hm</think>Hi", tools=True, reasoning_open=True)
    assert (opened.content, opened.reasoning) == ("Hi", "hm")


@pytest.mark.parametrize(
    ("text", "markers", "held"),
    [("ab<", ["<x>"], 1), ("ab<x", ["<x>"], 2), ("ab", ["<x>"], 0), ("aaa", ["aab"], 2)],
)
def test_what_may_become_a_marker_is_held(text: str, markers: list[str], held: int) -> None:
    assert held_length(text, markers) == held


def streamed(chat: Chat, token_ids: list[int], **kwargs: Any) -> tuple[dict[str, Any], Any]:
    """Stream tokens one by one; return what the deltas add up to, and the final message."""
    prompt = Prompt(token_ids=(1,), prefix={})
    stream = chat.reply_stream(prompt, **kwargs)
    deltas = [stream.push([token_id])[0] for token_id in token_ids]
    final = stream.finish()
    joined: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in (*deltas, final.delta):
        for key, value in delta.items():
            joined[key] += value
    return joined, final.message


PIECES = st.sampled_from(
    ["Hello", " ", "\n", "<", "<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "é😀"]
)


@settings(deadline=None, max_examples=150)
@given(pieces=st.lists(PIECES, max_size=8), tools=st.booleans())
def test_deltas_add_up_to_the_message(pieces: list[str], tools: bool) -> None:
    chat = Chat(byte_tokenizer())
    text = "".join(pieces)
    joined, message = streamed(chat, [*encode(text), END], tools=TOOLS if tools else ())
    assert joined["content"] == (message["content"] or "")
    assert joined["reasoning_content"] == message.get("reasoning_content", "")
    calls = [{k: v for k, v in call.items() if k != "index"} for call in joined["tool_calls"]]
    assert calls == message.get("tool_calls", [])
    assert [call["index"] for call in joined["tool_calls"]] == list(range(len(calls)))


def test_half_a_character_at_the_end_is_shown_as_broken(chat: Chat) -> None:
    joined, message = streamed(chat, encode("a😀")[:-1])
    assert joined["content"] == message["content"] == "a\ufffd"


def test_stop_strings_never_show(chat: Chat) -> None:
    prompt = Prompt(token_ids=(1,), prefix={})
    stream = chat.reply_stream(prompt, stop=["END", "E!"])
    shown = "".join(stream.push([i])[0].get("content", "") for i in encode("one EN two END"))
    final = stream.finish("END")
    assert shown + final.delta.get("content", "") == final.message["content"] == "one EN two "
