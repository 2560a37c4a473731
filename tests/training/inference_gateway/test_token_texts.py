"""Tokens read the same while they arrive and once they are recorded, down to the screen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import END, Script, encode, says
from fakes.inference import Gateway
from pydantic import TypeAdapter

from hermes_tui.core.models import EpisodeDetail, Token, sampled_tokens
from hermes_tui.tui.widgets.token_layout import TokenLayout, trajectory
from hermes_tui_training.api.config import ModelConfig
from hermes_tui_training.api.wire import EpisodeRecord, SampledTokens
from hermes_tui_training.chat_template.prompt import Prompt
from hermes_tui_training.chat_template.renderer import Chat
from hermes_tui_training.models.prepare import EMBEDDED_MODEL, prepare_model

HALF_A_CHARACTER = encode("a😀")[:-1]


async def listened(gateway: Gateway, key: str) -> list[dict[str, Any]]:
    """Ask for a completion; return the events with its tokens."""
    seen: list[dict[str, Any]] = []
    with gateway.store.events.subscribe() as subscription:
        assert (await gateway.chat(key, "né 😀?")).status_code == 200
        while not any(event["done"] for event in seen):
            events, _ = await subscription.batch()
            seen += [
                {**event.payload, "done": event.kind == "completion.finished"} for event in events
            ]
    return [event for event in seen if "token_ids" in event and "texts" in event]


def lines_of(detail: EpisodeDetail, live: dict[str, list[Token]]) -> list[str]:
    """Return the text that the token view draws, line by line."""
    layout = TokenLayout(width=24)
    layout.extend(trajectory(detail, live))
    return ["".join(run.text for run in line.runs) for line in layout.lines]


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        (says("é😀"), ["", "é", "", "", "", "😀", "<|im_end|>"]),
        (says("日本"), ["", "", "日", "", "", "本", "<|im_end|>"]),
        (Script(token_ids=HALF_A_CHARACTER, finish_reason="length"), ["a", "", "", "\ufffd"]),
        (Script(token_ids=[*HALF_A_CHARACTER, END]), ["a", "", "", "", "\ufffd<|im_end|>"]),
        (Script(token_ids=[1, *encode("é"), END]), ["<|im_start|>", "", "é", "<|im_end|>"]),
    ],
    ids=["emoji", "cjk", "cut", "broken", "control token"],
)
async def test_live_and_recorded_tokens_read_the_same(
    gateway: Gateway, script: Script, texts: list[str]
) -> None:
    gateway.engine.scripts = [script]
    session_id, key = await gateway.session()
    events = await listened(gateway, key)
    episode = await gateway.episode(session_id)
    (completion,) = episode["completions"]
    assert [text for event in events for text in event["texts"]] == completion["texts"] == texts
    assert "".join(completion["prompt_texts"]) == (
        "<|im_start|>user\nné 😀?<|im_end|>\n<|im_start|>assistant\n"
    )

    heard = {completion["completion_id"]: _tokens(events)}
    recorded = lines_of(EpisodeDetail.of(EpisodeRecord.model_validate(episode)), {})
    before = {**episode, "completions": [{**completion, "token_ids": [], "texts": []}]}
    assert lines_of(EpisodeDetail.of(EpisodeRecord.model_validate(before)), heard) == recorded


def _tokens(events: Iterable[dict[str, Any]]) -> list[Token]:
    return [
        token for event in events for token in sampled_tokens(SampledTokens.model_validate(event))
    ]


@pytest.mark.embedded
@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", ["Hi 😀!", "日本語と你好", "👩‍👩‍👧‍👦"])
def test_the_embedded_model_s_tokens_read_the_same(text: str) -> None:
    directory: Path = prepare_model(EMBEDDED_MODEL, lambda _line: None)
    chat = Chat.load(directory, ModelConfig())
    token_ids = TypeAdapter(list[int]).validate_python(
        [*chat.tokenizer.encode(text), chat.stop_token_ids[0]]
    )
    stream = chat.reply_stream(Prompt(token_ids=(1,), prefix={}))
    live = [text for token_id in token_ids for text in stream.push([token_id])[1]]
    assert live == chat.token_texts.in_sequence(token_ids)
    assert "".join(live) == f"{text}<|im_end|>"
    assert stream.finish().message["content"] == text
    assert "" in live, "no character is split, so that nothing is tested"
