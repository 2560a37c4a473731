"""Models of which only the chat template is known: continued where that can be proven."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from fakes.engine import END, byte_tokenizer, encode
from fakes.families import family_tokenizer

from hermes_tui_training.chat_template.family_parser import FamilyParser
from hermes_tui_training.chat_template.prefix_match import Recorded, canonical
from hermes_tui_training.chat_template.prompt import Prompt
from hermes_tui_training.chat_template.renderer import Chat

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALLS = (
    "{% for c in m['tool_calls'] or [] %}\n<tool_call>{{ c['function']['arguments'] | tojson }}"
    "</tool_call>{% endfor %}"
)
REASONING = "m['content'].split('</think>')[-1]"

HEADERS = (
    "{{ '<s>' }}{% for m in messages %}[{{ m['role'] }}]\n\n{{ m['content'] | trim }}"
    f"{CALLS}<|im_end|>{{% endfor %}}"
    "{% if add_generation_prompt %}[assistant]\n\n{% endif %}"
)
"""Llama 3's shape: headers, trimmed contents, nothing between turns."""

STRIPPING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    f"{{% if m['role'] == 'assistant' %}}{{{{ {REASONING} | trim }}}}{CALLS}"
    "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen3's way: reasoning of earlier turns is left out of the history."""


def chat_of(template: str) -> Chat:
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = template
    return Chat(tokenizer, renderer="default")


def answered(
    chat: Chat, messages: list[dict[str, Any]], sampled: str, *, closed: bool = True, **kwargs: Any
) -> tuple[Recorded, dict[str, Any]]:
    """Record a reply; return it and its message as Hermes replays it."""
    prompt = chat.prompt(messages, **kwargs)
    token_ids = [*encode(sampled), *([END] if closed else [])]
    stream = chat.reply_stream(prompt, tools=kwargs.get("tools", ()))
    stream.push(token_ids)
    message = stream.finish().message
    recorded = Recorded(
        completion_id=f"c{len(kwargs.get('parents', ()))}",
        token_ids=prompt.token_ids + tuple(token_ids),
        num_prompt_tokens=len(prompt.token_ids),
        request=prompt.request,
        answer=canonical([message]),
        context=prompt.context,
        messages=messages,
    )
    replayed = {key: value for key, value in message.items() if key != "reasoning_content"}
    return recorded, {**replayed, "content": (message["content"] or "").strip()}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def added(chat: Chat, prompt: Prompt, recorded: Recorded) -> str:
    """Return the text that a prompt adds to a record, all of whose tokens it begins with."""
    known = len(recorded.token_ids)
    assert prompt.token_ids[:known] == recorded.token_ids
    assert prompt.prefix == {
        "parent_completion_id": recorded.completion_id,
        "shared_token_count": known,
        "first_difference": None,
    }
    return str(chat.tokenizer.decode(list(prompt.token_ids[known:])))


@pytest.mark.parametrize(
    ("template", "suffix"),
    [
        (HEADERS, "[user]\n\nb<|im_end|>[assistant]\n\n"),
        (STRIPPING, "\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_the_turns_suffix_is_derived_from_the_template(template: str, suffix: str) -> None:
    chat = chat_of(template)
    messages = [user("a")]
    parents: list[Recorded] = []
    for sampled in ("<think>hm</think>\n\n yes  ", " no", "<think>x</think>ok\n"):
        recorded, replayed = answered(chat, messages, sampled, parents=parents)
        parents.append(recorded)
        messages = [*messages, replayed, user("b")]
        assert added(chat, chat.prompt(messages, parents=parents), recorded) == suffix


def test_a_tools_result_follows_its_call() -> None:
    chat = chat_of(HEADERS)
    sampled = (
        'I look.\n<tool_call>{"name": "f",  "arguments": {"b":1, "a":"<|im_end|>"}}</tool_call>'
    )
    token_ids = list(chat.tokenizer.encode(sampled, split_special_tokens=True))
    prompt = chat.prompt([user("a")], tools=[TOOL])
    stream = chat.reply_stream(prompt, tools=[TOOL])
    stream.push([*token_ids, END])
    message = stream.finish().message
    recorded = Recorded(
        completion_id="c",
        token_ids=(*prompt.token_ids, *token_ids, END),
        num_prompt_tokens=len(prompt.token_ids),
        request=prompt.request,
        answer=canonical([message]),
        context=prompt.context,
    )
    messages = [user("a"), message, {"role": "tool", "tool_call_id": "c", "content": "3"}]
    following = chat.prompt(messages, tools=[TOOL], parents=[recorded])
    assert added(chat, following, recorded) == "[tool]\n\n3<|im_end|>[assistant]\n\n"


def test_a_reply_that_was_cut_is_closed_first() -> None:
    chat = chat_of(STRIPPING)
    recorded, replayed = answered(chat, [user("a")], "half a", closed=False)
    prompt = chat.prompt([user("a"), replayed, user("b")], parents=[recorded])
    assert added(chat, prompt, recorded).startswith("<|im_end|>\n<|im_start|>user\n")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (
            "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}",
            "the chat template writes no stop token after a reply",
        ),
        (
            "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}[assistant]<think>{% endif %}",
            "the chat template begins an earlier reply differently from a new one",
        ),
        (
            "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | trim }}<|im_end|>"
            "{{ m['content'] | length }}{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}",
            "what the chat template writes after a reply depends on the reply",
        ),
        (
            "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<|endoftext|>{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}",
            "the chat template writes no stop token after a reply",
        ),
    ],
)
def test_what_cannot_be_proven_is_a_labelled_break(template: str, why: str) -> None:
    chat = chat_of(template)
    recorded, _ = answered(chat, [user("a")], " b ")
    messages = [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    prompt = chat.prompt(messages, parents=[recorded])
    difference = prompt.prefix["first_difference"]
    position = difference["index"]
    assert difference["why"] == why
    assert prompt.token_ids[:position] == recorded.token_ids[:position]
    assert prompt.token_ids[position] == difference["token_id"]
    assert recorded.token_ids[position] == difference["recorded_token_id"]


@pytest.mark.parametrize(
    ("messages", "tools", "why"),
    [
        (
            [user("a"), {"role": "assistant", "content": "c"}, user("d")],
            [],
            "message 2 (assistant) is not the reply that was sampled",
        ),
        (
            [user("A"), {"role": "assistant", "content": "b"}, user("d")],
            [],
            "message 1 (user) is not what was recorded",
        ),
        (
            [user("a"), {"role": "assistant", "content": "b"}, user("d")],
            [TOOL],
            "other tools or template settings were sent than before",
        ),
        (
            [
                user("a"),
                {"role": "assistant", "content": "b"},
                user("x"),
                {"role": "assistant", "content": "y"},
                user("d"),
            ],
            [],
            None,
        ),
        (
            [user("a"), *[{"role": "assistant", "content": "b"}] * 2],
            [],
            "it ends within a reply that was not sampled so",
        ),
    ],
    ids=["reply", "question", "tools", "unknown turn", "nothing new"],
)
def test_a_break_says_why(messages: list[Any], tools: list[Any], why: str | None) -> None:
    chat = Chat(byte_tokenizer())
    recorded, _ = answered(chat, [user("a")], "  b")
    prompt = chat.prompt(messages, tools=tools, parents=[recorded])
    difference = prompt.prefix["first_difference"]
    assert difference["why"] == (why or "message 3 (user) was not recorded in this session")


def test_a_parser_that_begins_anew_does_not_run_for_every_token() -> None:
    """A reply of n tokens costs a family's parser some 64 n, not n squared."""
    chat = Chat(family_tokenizer("qwen3.5")[0], renderer="qwen3.5")
    template = {"enable_thinking": False}
    stream = chat.reply_stream(chat.prompt([user("a")], template=template), template=template)
    assert isinstance(stream._parser, FamilyParser)
    parse, parsed = stream._parser._renderer.parse_response, []

    class Counting:
        @staticmethod
        def parse_response(token_ids: list[int], **kwargs: Any) -> Any:
            parsed.append(len(token_ids))
            return parse(token_ids, **kwargs)

    stream._parser._renderer = Counting  # type: ignore[assignment]
    text = ("word " * 800).strip()
    deltas = [stream.push([token_id])[0] for token_id in encode(text)]
    final = stream.finish()
    shown = "".join(delta.get("content", "") for delta in [*deltas, final.delta])
    assert shown == final.message["content"] == text
    assert sum(parsed) < 80 * len(text)
    assert parsed[:64] == list(range(1, 65))


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("qwen3", "a tool call is not JSON: Expecting value: line 1 column 10 (char 9)"),
        ("qwen3.5", "a tool call cannot be made: malformed_structure"),
    ],
)
def test_a_familys_malformed_call_is_text_with_a_reason(family: str, reason: str) -> None:
    chat = Chat(family_tokenizer(family)[0], renderer=family)
    template = {"enable_thinking": False}
    prompt = chat.prompt([user("a")], tools=[TOOL], template=template)
    stream = chat.reply_stream(prompt, tools=[TOOL], template=template)
    stream.push(chat.tokenizer.encode('Hm <tool_call>{"name": </tool_call><|im_end|>'))
    message = stream.finish().message
    assert message["content"].startswith("Hm")
    assert '<tool_call>{"name": </tool_call>' in message["content"]
    assert message["malformed_tool_calls"] == [reason]
    assert "tool_calls" not in message
