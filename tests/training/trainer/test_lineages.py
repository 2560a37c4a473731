"""Each base model has versions of its own in a run directory: a head, and what waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.training_bench import Bench, until

from hermes_tui_training.api.config import CheckpointConfig
from hermes_tui_training.api.types import LineageId
from hermes_tui_training.store import checkpoint
from hermes_tui_training.trainer.orchestrator import Orchestrator, UnknownVersionError


def bench_of(root: Path, base: str, **training: Any) -> Bench:
    bench = Bench(root, model=base, **training)
    bench.learner.base = base
    return bench


async def train(bench: Bench, orchestrator: Orchestrator, reward: float, version: int) -> str:
    episode_id = bench.episode(reward, version=orchestrator.status()["policy_version"])
    await until(lambda: orchestrator.status()["policy_version"] == version)
    return episode_id


async def test_another_model_begins_at_0_and_the_first_goes_on_from_its_head(
    tmp_path: Path,
) -> None:
    one = bench_of(tmp_path, "one")
    async with one.running() as orchestrator:
        await train(one, orchestrator, 1.0, 1)
        await train(one, orchestrator, 0.5, 2)
    waiting = one.episode(-1.0, version=2)
    baselines = one.store.meta.get("baselines")
    one.store.close()

    two = bench_of(tmp_path, "two")
    async with two.running() as orchestrator:
        status = orchestrator.status()
        assert (status["policy_version"], status["served_version"]) == (0, 0)
        assert status["kept_versions"] == [0]
        assert "what one sampled and is not trained yet waits for it" in status["notices"][0]
        await train(two, orchestrator, 1.0, 3)
        assert two.learner.requests[0].base_version == 0
        assert two.engine.swaps == [3]
        with pytest.raises(UnknownVersionError):
            await orchestrator.rollback(2)
        assert two.state(waiting) == "scored"
        (row,) = [r for r in two.store.episodes.summaries() if r.episode_id == waiting]
        assert (row.will_train, row.reason) == (False, "other_model")
    assert two.store.heads.others() == {LineageId(base="one"): 2}
    two.store.close()

    again = bench_of(tmp_path, "one")
    assert again.store.meta.get("baselines") != baselines
    async with again.running() as orchestrator:
        await until(lambda: orchestrator.status()["policy_version"] == 4)
        assert again.learner.requests[0].base_version == 2
        assert again.state(waiting) == "trained"
        await until(lambda: orchestrator.status()["kept_versions"] == [0, 1, 2, 4])
    rows = again.store.steps.rows()
    assert [(row["step"], row["base"], row["parent"]) for row in rows] == [
        (1, "one", 0),
        (2, "one", 1),
        (3, "two", 0),
        (4, "one", 2),
    ]
    assert again.store.heads.others() == {LineageId(base="two"): 3}


async def test_a_step_that_a_crash_left_behind_is_adopted_by_its_own_model(tmp_path: Path) -> None:
    one = bench_of(tmp_path, "one")
    async with one.running() as orchestrator:
        await train(one, orchestrator, 1.0, 1)
    left = {"base_version": 1, "target_version": 2}
    one.learner.save(one.learner.requests[0].model_copy(update=left))
    one.store.close()

    two = bench_of(tmp_path, "two")
    async with two.running() as orchestrator:
        assert orchestrator.status()["policy_version"] == 0
        assert two.store.heads.others() == {LineageId(base="one"): 2}
        assert two.engine.swaps == []
    two.store.close()

    again = bench_of(tmp_path, "one")
    async with again.running() as orchestrator:
        assert orchestrator.status()["policy_version"] == 2
        assert again.engine.swaps == [2]


async def test_sessions_of_the_model_that_is_left_end(tmp_path: Path) -> None:
    one = bench_of(tmp_path, "one")
    async with one.running():
        opened = one.episode(None)
    one.store.close()
    two = bench_of(tmp_path, "two")
    async with two.running():
        assert two.state(opened) == "ended", "it can still be judged"
        assert two.store.sessions.num_running() == 0


async def test_the_other_heads_are_never_thinned_out(tmp_path: Path) -> None:
    one = bench_of(tmp_path, "one")
    async with one.running() as orchestrator:
        await train(one, orchestrator, 1.0, 1)
    one.store.close()
    two = bench_of(tmp_path, "two", checkpoint=CheckpointConfig(keep_last=1, keep_all_s=0.0))
    async with two.running() as orchestrator:
        for version in (2, 3, 4):
            await train(two, orchestrator, 1.0, version)
        kept = [1, 4]
        await until(lambda: checkpoint.complete_versions(two.config.checkpoints) == kept)


@pytest.mark.parametrize(
    ("base", "state", "found"),
    [
        ("m", None, LineageId(base="m")),
        ("", '{"model": "old"}', LineageId(base="old")),
        ("", None, None),
        ("", "{", None),
    ],
)
def test_what_a_checkpoint_says_that_it_is_of(
    tmp_path: Path, base: str, state: str | None, found: LineageId | None
) -> None:
    with checkpoint.writing(tmp_path, 1, base=base) as directory:
        if state is not None:
            (directory / "training_state.json").write_text(state)
    assert checkpoint.lineage_of(tmp_path, 1) == found
    for lineage in (LineageId(base="m"), LineageId(base="old")):
        own = [1] if found in (None, lineage) else []
        assert checkpoint.versions_of(tmp_path, lineage) == own
    assert checkpoint.lineage_of(tmp_path, 2) is None
