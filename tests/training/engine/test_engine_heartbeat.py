"""What the engine's thread reports: a step that never ends is found, a long prompt is no hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.beats import heartbeat_of_the_test
from fakes.tiny_decoders import make_decoder

from hermes_tui_training.api.config import ModelConfig, TrainingConfig
from hermes_tui_training.engine import SamplingParams
from hermes_tui_training.engine.torch_engine import TorchEngine

DEADLINE_S = 30.0


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[TorchEngine]:
    model = make_decoder(tmp_path / "model")
    engine = TorchEngine(TrainingConfig(), ModelConfig(path=str(model)), model)
    await engine.start()
    yield engine
    await engine.stop()


async def sample(engine: TorchEngine, num_prompt_tokens: int) -> int:
    """Return how many tokens a prompt of some length was answered with."""
    prompt = [token % 200 for token in range(num_prompt_tokens)]
    outputs = engine.generate(prompt, SamplingParams(max_tokens=4, seed=1))
    return sum([len(output.token_ids) async for output in outputs])


async def test_a_step_that_does_not_end_is_reported(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    forward = engine._decoder.forward  # type: ignore[union-attr]

    def stuck(chunks: Any) -> Any:
        entered.set()
        assert go_on.wait(DEADLINE_S)
        return forward(chunks)

    monkeypatch.setattr(engine._decoder, "forward", stuck)
    with heartbeat_of_the_test() as heartbeat:
        answer = asyncio.create_task(sample(engine, 3))
        await asyncio.to_thread(entered.wait, DEADLINE_S)
        silences = [[task.silent_s for task in heartbeat.beat().tasks] for _ in range(4)]
        assert silences == [[], [2.0], [3.0], [4.0]]
        assert heartbeat.beat().tasks[0].task == "one step of the engine"
        go_on.set()
        assert await answer == 4
        async with asyncio.timeout(DEADLINE_S):
            while heartbeat.beat().tasks:  # noqa: ASYNC110  # the thread is about to end the step
                await asyncio.sleep(0.005)


async def test_each_chunk_of_a_long_prompt_is_progress(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every chunk takes as long as two beats; none of them is reported for longer."""
    monkeypatch.setattr("hermes_tui_training.engine.scheduler._CHUNK_TOKENS", 16)
    forward = engine._decoder.forward  # type: ignore[union-attr]
    silences: list[float] = []
    with heartbeat_of_the_test() as heartbeat:

        def slow(chunks: Any) -> Any:
            for _ in range(2):
                silences.extend(task.silent_s for task in heartbeat.beat().tasks)
            return forward(chunks)

        monkeypatch.setattr(engine._decoder, "forward", slow)
        assert await sample(engine, 400) == 4
    assert len(silences) >= 400 / 16
    assert max(silences) == 2.0
