"""Tokens that wait travel together, and still add up to what is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.apis import CALL, recorded
from fakes.engine import FakeEngine, Script, says
from fakes.inference import Gateway, running_gateway, sse_data

from hermes_tui_training.inference_gateway.completion_run import CompletionDelta

TEXT = f"<think>Hm é.</think>Well, look: {CALL}"


class HastyEngine(FakeEngine):
    """Gives all tokens before anybody can take the first."""

    async def _pace(self, script: Script, position: int) -> None:
        """Wait for nothing."""


def delta(**message_delta: Any) -> CompletionDelta:
    return CompletionDelta(
        message_delta=message_delta, token_ids=(1,), logprobs=(-0.5,), top_logprobs=(((1, -0.5),),)
    )


def test_texts_of_one_kind_are_joined_and_nothing_else() -> None:
    both = delta(content="a").joined(delta(content="b"))
    assert both is not None
    assert both.message_delta == {"content": "ab"}
    assert (both.token_ids, both.logprobs, both.top_logprobs) == (
        (1, 1),
        (-0.5, -0.5),
        (((1, -0.5),), ((1, -0.5),)),
    )
    silent = delta().joined(delta(reasoning_content="hm"))
    assert silent is not None
    assert silent.message_delta == {"reasoning_content": "hm"}
    assert delta(content="a").joined(delta(reasoning_content="b")) is None
    assert delta(content="a").joined(delta(tool_calls=[{}])) is None
    assert delta(tool_calls=[{}]).joined(delta(tool_calls=[{}])) is None


@pytest.fixture
def hasty() -> HastyEngine:
    return HastyEngine(says(TEXT))


async def test_what_waits_is_one_chunk_and_adds_up(tmp_path: Path, hasty: HastyEngine) -> None:
    async with running_gateway(tmp_path, engine=hasty) as gateway:
        session = await gateway.session()
        asked = {"logprobs": True, "return_token_ids": True, "stream": True}
        chunks = await streamed(gateway, session[1], **asked)
        (completion,) = await recorded(gateway, session)
        choices = [chunk["choices"][0] for chunk in chunks]
        ids = [token for choice in choices for token in choice.get("token_ids", ())]
        assert ids == completion["token_ids"]
        logprobs = [
            entry["logprob"]
            for choice in choices
            for entry in (choice["logprobs"] or {"content": []})["content"]
        ]
        assert logprobs == completion["logprobs"]
        said = "".join(choice["delta"].get("content", "") for choice in choices)
        assert said == completion["message"]["content"]
        assert len(chunks) < len(ids) / 2


async def streamed(gateway: Gateway, key: str, **fields: Any) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
    answer = await gateway.chat(key, tools=tools, **fields)
    assert answer.status_code == 200, answer.text
    return [json.loads(data) for data in sse_data(answer.text) if data != "[DONE]"]


async def test_with_many_streams_a_chunk_holds_several_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(says("x" * 40))
    engine.token_s = 0.001
    streaming = "hermes_tui_training.inference_gateway.streaming"
    monkeypatch.setattr(f"{streaming}._FEW", 0)
    monkeypatch.setattr(f"{streaming}._PAUSE_S", 0.02)
    async with running_gateway(tmp_path, engine=engine) as gateway:
        session = await gateway.session()
        chunks = await streamed(gateway, session[1], stream=True)
        said = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(said) == "x" * 40
        assert max(map(len, said)) > 1
