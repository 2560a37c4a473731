"""Replies taken apart: by value, and the same however they arrive."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.engine import byte_tokenizer, encode

from hermes_tui_training.chat_template.prompt import Prompt
from hermes_tui_training.chat_template.renderer import Chat
from hermes_tui_training.chat_template.reply_parser import (
    held_length,
    parse_reply,
    write_call,
)

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


@pytest.mark.parametrize(
    "cut",
    [
        "<tool_call>",
        '<tool_call>{"name": "f", "argum',
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "\\',
        '<tool_call>{"name": "f", "arguments": {}',
    ],
)
def test_a_call_that_is_cut_is_neither_call_nor_text(cut: str) -> None:
    reply = parse_reply(f"Let me see. {cut}", tools=True)
    assert (reply.content, reply.tool_calls) == ("Let me see. ", ())
    assert reply.malformed == ("a tool call is not complete",)


@pytest.mark.parametrize("text", ["</tool_call>", "<tool_call>", "</think>", '\\"}', "<think>{["])
def test_a_string_of_a_call_may_contain_tags(text: str) -> None:
    call = write_call("f", json.dumps({"a": text}))
    reply = parse_reply(f"{call}{call}", tools=True)
    assert [json.loads(c.arguments) for c in reply.tool_calls] == [{"a": text}] * 2
    assert (reply.content, reply.malformed) == ("", ())


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "num_calls"),
    [
        (f"<think>maybe {CALL} no</think>plain", "plain", f"maybe {CALL} no", 0),
        (f"<think>maybe {CALL} no", "", f"maybe {CALL} no", 0),
        (f"<think>a</think>{CALL}<think>b</think>", "<think>b</think>", "a", 1),
        (f"<tool_call>oops {CALL}", f"<tool_call>oops {CALL}", None, 0),
        (f"<tool_call>oops</tool_call>{CALL}", "<tool_call>oops</tool_call>", None, 1),
        ("<tool_call>never closed", "<tool_call>never closed", None, 0),
        (f"{CALL[:-12]} junk</tool_call>", f"{CALL[:-12]} junk</tool_call>", None, 0),
        (f"{CALL[:-12]}</tool_", "", None, 1),
    ],
)
def test_tags_where_they_do_not_belong(
    text: str, content: str, reasoning: str | None, num_calls: int
) -> None:
    reply = parse_reply(text, tools=True)
    assert (reply.content, reply.reasoning) == (content, reasoning)
    assert len(reply.tool_calls) == num_calls


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
    stream = chat.reply_stream(Prompt(token_ids=(1,), prefix={}), **kwargs)
    deltas = [stream.push([token_id])[0] for token_id in token_ids]
    final = stream.finish()
    joined: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in (*deltas, final.delta):
        for key, value in delta.items():
            joined[key] += value
    return joined, final.message


def test_half_a_character_at_the_end_is_shown_as_broken(chat: Chat) -> None:
    joined, message = streamed(chat, encode("a😀")[:-1])
    assert joined["content"] == message["content"] == "a\ufffd"


def test_stop_strings_never_show(chat: Chat) -> None:
    prompt = Prompt(token_ids=(1,), prefix={})
    stream = chat.reply_stream(prompt, stop=["END", "E!"])
    shown = "".join(stream.push([i])[0].get("content", "") for i in encode("one EN two END"))
    final = stream.finish("END")
    assert shown + final.delta.get("content", "") == final.message["content"] == "one EN two "
