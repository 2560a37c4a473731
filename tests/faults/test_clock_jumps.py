"""The machine's clock is set back or forward: nothing waits for a time that was or is to come."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fakes.training_bench import Bench, until

from hermes_tui_training.store.store import Store

JUMP_S = 86_400.0


@pytest.mark.parametrize("jump_s", [JUMP_S, -JUMP_S])
async def test_a_reward_is_trained_whatever_the_clock_says(tmp_path: Path, jump_s: float) -> None:
    """The reward is given, the clock is set back by a day, or forward, and training goes on."""
    bench = Bench(tmp_path)
    bench.store.close()
    bench.store = Store(tmp_path / "trajectories.db", now=lambda: time.time() + jump_s)
    first = bench.episode(1.0)
    bench.store.close()
    bench.store = Store(tmp_path / "trajectories.db")
    async with bench.running() as orchestrator:
        await until(lambda: bench.state(first) == "trained")
        second = bench.episode(-1.0, version=1)
        await until(lambda: orchestrator.status()["policy_version"] == 2)
        assert bench.state(second) == "trained"


async def test_the_clock_may_jump_while_the_trainer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    bench.store.close()
    bench.store = Store(tmp_path / "trajectories.db", now=lambda: time.time())
    real = time.time
    async with bench.running() as orchestrator:
        for number, jump_s in enumerate((0.0, -JUMP_S, JUMP_S, 0.0)):
            before = bench.episode(1.0 if number % 2 else -1.0, version=number)
            monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
            await until(lambda e=before: bench.state(e) == "trained")
        await until(lambda: orchestrator.status()["policy_version"] == 4)
        assert [row["step"] for row in bench.store.steps.rows()] == [1, 2, 3, 4]
