"""Learning with real processes: a store, an orchestrator, and a learner that may die any time."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.learner_process import ADMIN_KEY, LearnerProcess
from fakes.tiny_model import make_tiny_model
from safetensors import safe_open

from hermes_tui_common.errors import ServiceError
from hermes_tui_common.serving import ServeConfig
from hermes_tui_training.api.config import (
    LoraConfig,
    ModelConfig,
    RewardConfig,
    StepConfig,
    TrainerRole,
    TrainingConfig,
)
from hermes_tui_training.api.types import CompletionOutcome
from hermes_tui_training.store import checkpoint
from hermes_tui_training.store.store import Store
from hermes_tui_training.trainer.orchestrator import Orchestrator

DEADLINE_S = 60.0
UNIFORM = -4.11
"""About what a random model of 61 tokens gives each of them, nats."""

TRAINING = TrainingConfig(
    lora=LoraConfig(rank=4, alpha=8),
    # Half a nat is more than one direction can do to a random model of 32 dimensions.
    step=StepConfig(nats_per_unit=0.2),
    reward=RewardConfig(grace_s=0.0, baseline_decay=0.9),
)
_numbers = itertools.count()


class CheckingEngine:
    """Serves nothing, but opens every checkpoint it is given."""

    def __init__(self) -> None:
        self.policy_version = 0

    async def swap(self, path: Path, policy_version: int) -> None:
        with safe_open(path / "adapter_model.safetensors", framework="numpy") as weights:
            assert list(weights.keys())
        self.policy_version = policy_version


class Trainer:
    """The trainer's part: store and orchestrator, over one run directory."""

    def __init__(self, root: Path, learner: LearnerProcess) -> None:
        self.store = Store(root / "trajectories.db")
        self.engine = CheckingEngine()
        self._config = TrainerRole(
            serve=ServeConfig(name="trainer"),
            admin_key=ADMIN_KEY,
            model=ModelConfig(path=learner.model),
            training=TRAINING,
            database=root / "trajectories.db",
            checkpoints=learner.checkpoints,
            learner_run_file=learner.run_file,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Orchestrator]:
        orchestrator = Orchestrator(
            store=self.store,
            engine=self.engine,  # type: ignore[arg-type]
            config=self._config,
        )
        await orchestrator.start()
        try:
            yield orchestrator
        finally:
            await orchestrator.stop()
            self.store.close()

    def score(
        self, reward: float, sampled: tuple[int, ...] = (8, 8, 8), session_id: str | None = None
    ) -> str:
        """Record a completion and judge it; return its episode's id."""
        number = next(_numbers)
        session_id = session_id or self.session(f"group-{number}")
        completion_id = f"chatcmpl-{number}"
        episode_id, _ = self.store.completions.begin(
            completion_id=completion_id,
            session_id=session_id,
            prompt_token_ids=(5, 6, 7),
            sampling={"temperature": 1.0},
            request_messages=[],
            tools=[],
            prefix={},
        )
        self.store.completions.finish(
            CompletionOutcome(
                completion_id=completion_id,
                token_ids=sampled,
                logprobs=(UNIFORM,) * len(sampled),
                policy_versions=(self.engine.policy_version,) * len(sampled),
                finish_reason="stop",
                message={"role": "assistant", "content": "x"},
                latency={},
                trainable=True,
                untrainable_reason=None,
            )
        )
        self.store.rewards.set(episode_id, reward)
        return episode_id

    def session(self, group_id: str) -> str:
        """Start a session; return its id."""
        return self.store.sessions.create(
            key_hash=str(next(_numbers)), task_id="t", group_id=group_id
        ).session_id


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def learner(tmp_path: Path, model_dir: Path) -> Iterator[LearnerProcess]:
    process = LearnerProcess(tmp_path, model_dir, TRAINING)
    yield process
    process.kill()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[LearnerProcess]:
    """Return one learner for all tests that let it live; each goes on from the newest version."""
    process = LearnerProcess(tmp_path_factory.mktemp("shared"), model_dir, TRAINING)
    process.start()
    yield process
    process.kill()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # any condition, told by nobody
            await asyncio.sleep(0.005)


async def test_rewards_move_tokens_and_a_restart_goes_on(
    tmp_path: Path, learner: LearnerProcess
) -> None:
    trainer = Trainer(tmp_path, learner)
    async with trainer.running() as orchestrator:
        await until(lambda: orchestrator.status()["reason"] == "the learner has not started yet")
        await asyncio.to_thread(learner.start)
        up = trainer.score(1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 1)
        down = trainer.score(-1.0, (20, 21, 22))
        await until(lambda: orchestrator.status()["policy_version"] == 2)
        rows = trainer.store.steps.rows()
        baselines = trainer.store.meta.get("baselines")
    assert [row["episode_ids"] for row in rows] == [[up], [down]]
    assert rows[0]["logprob_after"] > rows[0]["logprob_before"] + 0.05
    assert rows[1]["logprob_after"] < rows[1]["logprob_before"] - 0.05
    assert all(row["grad_norm"] > 0 and row["gap_max"] < 1.0 for row in rows)
    assert rows[1]["baseline"] == pytest.approx(0.1)

    assert await asyncio.to_thread(learner.close_lifeline) in (0, -signal.SIGTERM)
    await asyncio.to_thread(learner.start)
    assert learner.health().json() == {"status": "ok", "policy_version": 2, "busy_with": None}
    trainer = Trainer(tmp_path, learner)
    async with trainer.running() as orchestrator:
        assert trainer.engine.policy_version == 2
        assert trainer.store.meta.get("baselines") == baselines
        trainer.score(1.0, (20, 21, 22))
        await until(lambda: orchestrator.status()["policy_version"] == 3)
        row = trainer.store.steps.rows()[-1]
    assert row["baseline"] == pytest.approx(baselines["t"])
    # The same tokens as in step 2: what was learned is still there.
    assert row["logprob_before"] == pytest.approx(rows[1]["logprob_after"], abs=1e-4)


async def test_an_episode_is_in_exactly_one_step_whenever_the_learner_dies(
    tmp_path: Path, learner: LearnerProcess
) -> None:
    trainer = Trainer(tmp_path, learner)
    await asyncio.to_thread(learner.start)
    scored = []
    async with trainer.running() as orchestrator:
        for delay_s in (0.0, 0.04):  # before and about when the checkpoint is written
            episode_id = trainer.score(1.0 if not scored else -1.0)
            await until(lambda e=episode_id: trainer.store.episodes.get(e).state != "scored")
            await asyncio.sleep(delay_s)
            await asyncio.to_thread(learner.kill)
            scored.append(episode_id)
            await asyncio.to_thread(learner.start)
            await until(lambda: orchestrator.status()["policy_version"] == len(scored))
        rows = trainer.store.steps.rows()
    assert [row["episode_ids"] for row in rows] == [[episode_id] for episode_id in scored]
    assert checkpoint.complete_versions(learner.checkpoints) == [1, 2]


async def test_the_trainer_may_die_while_the_learner_saves(shared: LearnerProcess) -> None:
    trainer = Trainer(shared.root, shared)
    async with trainer.running() as orchestrator:
        version = orchestrator.status()["policy_version"] + 1
        first = trainer.score(1.0)
        await until(
            lambda: (
                shared.health().json()["busy_with"] == version
                or checkpoint.is_complete(shared.checkpoints, version)
            )
        )
    await until(lambda: checkpoint.is_complete(shared.checkpoints, version))
    trainer = Trainer(shared.root, shared)
    async with trainer.running() as orchestrator:
        await until(lambda: orchestrator.status()["policy_version"] == version)
        assert trainer.store.episodes.get(first).state == "trained"
        assert [row["episode_ids"] for row in trainer.store.steps.rows()][-1] == [first]
        assert trainer.store.steps.rows()[-1]["step"] == version


async def test_a_rollback_brings_back_weights_and_baselines(
    tmp_path: Path, learner: LearnerProcess
) -> None:
    trainer = Trainer(tmp_path, learner)
    await asyncio.to_thread(learner.start)
    async with trainer.running() as orchestrator:
        for version in (1, 2):
            trainer.score(1.0)
            await until(lambda v=version: orchestrator.status()["policy_version"] == v)
        asked = asyncio.create_task(orchestrator.rollback(1))
        await until(lambda: asked.done() or learner.health().json()["busy_with"] is not None)
        await asyncio.to_thread(learner.kill)  # whatever was reached: done once, or not at all
        await asyncio.to_thread(learner.start)
        outcome = (await asyncio.gather(asked, return_exceptions=True))[0]
        await until(lambda: orchestrator.status()["state"] == "waiting")
        if orchestrator.status()["policy_version"] == 2:
            assert isinstance(outcome, ServiceError)
            await orchestrator.rollback(1)
        assert orchestrator.status()["served_version"] == 3
        trainer.score(1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 4)
        rows = trainer.store.steps.rows()
    assert [row["rolled_back_to"] for row in rows] == [None, None, 1, None]
    # The step from version 1 is done a second time, from the same weights and optimizer.
    for name in ("logprob_before", "logprob_after", "baseline", "learning_rate"):
        assert rows[3][name] == pytest.approx(rows[1][name], abs=1e-5), name


async def test_siblings_move_apart_and_a_group_without_a_verdict_moves_nothing(
    shared: LearnerProcess,
) -> None:
    trainer = Trainer(shared.root, shared)
    replies = {(8, 9, 10): 1.0, (20, 21, 22): 0.5, (30, 31, 32): 0.0}
    async with trainer.running() as orchestrator:
        base = orchestrator.status()["policy_version"]
        for version in (base + 1, base + 2):
            siblings = {trainer.session(f"round {version}"): reply for reply in replies}
            ids = [trainer.score(replies[r], r, session_id=s) for s, r in siblings.items()]
            await until(lambda v=version: orchestrator.status()["policy_version"] == v)
        row = trainer.store.steps.rows(after=base)[0]
        changes = [
            sum(c.after_logprobs) - sum(c.proximal_logprobs)
            for episode_id in row["episode_ids"]
            for c in trainer.store.episodes.get(episode_id).completions
        ]
        neutral = [trainer.session("neutral") for _ in range(2)]
        ids = [trainer.score(0.0, session_id=session_id) for session_id in neutral]
        await until(lambda: {trainer.store.episodes.get(i).state for i in ids} == {"dropped"})
        assert orchestrator.status()["policy_version"] == base + 2
    assert row["num_groups"] == 1
    assert len(row["episode_ids"]) == 3
    assert row["advantage_mean"] == pytest.approx(0.0)
    assert changes[0] > 0.1
    assert changes[2] < -0.1
    assert changes[2] < changes[1] < changes[0]


def test_only_health_answers_without_the_key(shared: LearnerProcess) -> None:
    assert shared.health().status_code == 200
    assert httpx.post(f"{shared.url}/step", json={}).status_code == 401
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    refused = httpx.post(f"{shared.url}/step", json={"base_version": 0}, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "target_version"
    assert ADMIN_KEY not in shared.log.read_text()


def test_a_model_that_is_not_there_is_one_line_and_exit_2(tmp_path: Path) -> None:
    learner = LearnerProcess(tmp_path, tmp_path / "nowhere", TRAINING)
    process = learner.spawn()
    deadline = time.monotonic() + DEADLINE_S
    while process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    learner.kill()
    lines = learner.log.read_text().splitlines()
    errors = [line for line in lines if line.startswith("error: learner: ")]
    assert process.returncode == 2
    assert len(errors) == 1
    assert "nowhere" in errors[0]
    assert "Traceback" not in learner.log.read_text()
