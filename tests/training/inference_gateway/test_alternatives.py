"""The likeliest tokens are recorded for the token view, whatever a request asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.engine import says
from fakes.inference import running_gateway

from hermes_tui_training.api.config import InferenceGatewayConfig, TrainingConfig


@pytest.mark.parametrize(("configured", "recorded"), [(0, 0), (4, 4)])
@pytest.mark.parametrize("asked", [0, 2])
async def test_what_is_recorded_and_what_is_answered(
    tmp_path: Path, configured: int, recorded: int, asked: int
) -> None:
    training = TrainingConfig(gateway=InferenceGatewayConfig(top_logprobs=configured))
    fields = {"logprobs": True, "top_logprobs": asked} if asked else {}
    async with running_gateway(tmp_path, training=training) as gateway:
        gateway.engine.scripts = [says("ab")]
        session_id, key = await gateway.session()
        answer = (await gateway.chat(key, "Hi", **fields)).json()["choices"][0]
        (completion,) = (await gateway.episode(session_id))["completions"]
    num_tokens = len(completion["token_ids"])
    kept = max(recorded, asked)
    assert [len(top) for top in completion["top_logprobs"]] == [kept] * (num_tokens if kept else 0)
    if not asked:
        assert not answer.get("logprobs")
        return
    entries = answer["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [asked] * num_tokens
    likeliest = [top[0]["token"] for top in completion["top_logprobs"]]
    assert [entry["top_logprobs"][0]["token"] for entry in entries] == likeliest
