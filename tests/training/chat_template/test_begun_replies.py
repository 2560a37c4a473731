"""A conversation that ends with the assistant's text: the reply goes on from there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes.engine import END, byte_tokenizer, encode, qwen_tokenizer
from fakes.families import family_tokenizer

from hermes_tui_common.errors import ApiError
from hermes_tui_training.chat_template.prefix_match import Recorded, canonical, context_key
from hermes_tui_training.chat_template.renderer import Chat

USER = {"role": "user", "content": "Hi"}
BEGUN = {"role": "assistant", "content": "Sure, "}
CALLS = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}


@pytest.fixture
def chat() -> Chat:
    return Chat(byte_tokenizer())


def text_of(chat: Chat, token_ids: Any) -> str:
    return str(chat.tokenizer.decode(list(token_ids)))


def record(chat: Chat, messages: list[dict[str, Any]], said: str, *, ended: bool) -> Recorded:
    prompt = chat.prompt(messages)
    return Recorded(
        completion_id="c1",
        token_ids=(*prompt.token_ids, *encode(said), *([END] if ended else [])),
        num_prompt_tokens=len(prompt.token_ids),
        request=prompt.request,
        answer=canonical([{"role": "assistant", "content": said}]),
        context=context_key([], {}),
        messages=messages,
    )


def test_its_text_is_the_end_of_the_prompt(chat: Chat) -> None:
    prompt = chat.prompt([USER, BEGUN])
    plain = chat.prompt([USER])
    assert prompt.token_ids == (*plain.token_ids, *encode("Sure, "))
    assert prompt.is_begun
    stream = chat.reply_stream(prompt)
    stream.push([*encode(" here <think>"), END])
    assert stream.finish().message == {"role": "assistant", "content": " here <think>"}


@pytest.mark.parametrize("ended", [True, False])
def test_a_recorded_reply_goes_on_with_its_own_tokens(chat: Chat, ended: bool) -> None:
    parent = record(chat, [USER], "Sure, ", ended=ended)
    prompt = chat.prompt([USER, BEGUN], parents=[parent])
    known = parent.token_ids[:-1] if ended else parent.token_ids
    assert prompt.token_ids == known
    assert prompt.prefix["parent_completion_id"] == "c1"
    assert prompt.prefix["shared_token_count"] == len(known)
    assert prompt.continues_parent is not ended
    # Another text than the recorded one is rendered after the recorded turns before it.
    earlier = replace(parent, completion_id="c0")
    turn = [USER, BEGUN, {"role": "user", "content": "So?"}]
    other = chat.prompt([*turn, {"role": "assistant", "content": "Well"}], parents=[earlier])
    assert other.token_ids == (*chat.prompt(turn, parents=[earlier]).token_ids, *encode("Well"))
    assert other.prefix["parent_completion_id"] == "c0"


@pytest.mark.parametrize(
    ("message", "template", "ending"),
    [
        (BEGUN, {}, "<|im_start|>assistant\nSure, "),
        (
            {**BEGUN, "reasoning_content": "hm"},
            {},
            "<|im_start|>assistant\n<think>\nhm\n</think>\n\nSure, ",
        ),
    ],
)
def test_reasoning_comes_before_it(
    message: dict[str, Any], template: dict[str, Any], ending: str
) -> None:
    chat = Chat(qwen_tokenizer(), renderer="qwen3")
    prompt = chat.prompt([USER, message], template=template)
    assert text_of(chat, prompt.token_ids).endswith(ending)


def test_what_cannot_go_on_is_refused(chat: Chat) -> None:
    for refused in ([USER, CALLS], [USER, {**BEGUN, **CALLS}]):
        with pytest.raises(ApiError, match="results") as error:
            chat.prompt(refused)
        assert (error.value.status, error.value.param) == (400, "messages")
    other = Chat(family_tokenizer("glm-5")[0], renderer="glm-5")
    with pytest.raises(ApiError, match="glm-5"):
        other.prompt([USER, BEGUN])
