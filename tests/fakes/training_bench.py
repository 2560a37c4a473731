"""An orchestrator over a real store and real checkpoints; learner and engine are scripted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hermes_tui_common.errors import ServiceError, TrainingError
from hermes_tui_common.serving import ServeConfig
from hermes_tui_training.api.config import (
    ModelConfig,
    RewardConfig,
    TrainerRole,
    TrainingConfig,
)
from hermes_tui_training.api.learner import (
    LearnerHealth,
    LearnerMetrics,
    LearnerSeconds,
    RollbackAnswer,
    RollbackRequest,
    RollbackResult,
    StepAnswer,
    StepRequest,
    StepResult,
    VersionExistsError,
)
from hermes_tui_training.api.types import CompletionOutcome, TrainedCompletion
from hermes_tui_training.store import checkpoint
from hermes_tui_training.store.store import Store
from hermes_tui_training.trainer.learner_client import LearnerGoneError
from hermes_tui_training.trainer.orchestrator import Orchestrator

GRACE_S = 0.05
DEADLINE_S = 20.0


class ScriptedLearner:
    """Does steps at once; ``script`` holds what goes wrong at the next ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests: list[StepRequest] = []
        self.script: list[Callable[[StepRequest], None]] = []
        self.rollbacks: list[RollbackRequest] = []
        self.dies_after_rollback = False
        self.gone = False
        self.busy_with: int | None = None
        self.leaves_behind = 0
        self.base: str | None = None
        """What its checkpoints say that they are trained from; None: they do not say."""

    async def health(self) -> LearnerHealth:
        if self.gone:
            raise LearnerGoneError("the learner is not running")
        return LearnerHealth(policy_version=0, busy_with=self.busy_with)

    async def step(self, request: StepRequest) -> StepAnswer:
        self.requests.append(request)
        if self.script:
            self.script.pop(0)(request)
        return StepAnswer(result=self.save(request), save_s=0.5)

    def save(self, request: StepRequest) -> StepResult:
        if checkpoint.is_complete(self.root, request.target_version):
            raise VersionExistsError("exists")
        result = StepResult(
            base_version=request.base_version,
            target_version=request.target_version,
            facts=request.facts,
            metrics=_metrics(),
            completions=tuple(
                TrainedCompletion(
                    completion_id=span.completion_id,
                    advantage=span.advantage,
                    proximal_logprobs=(-1.0,) * span.num_tokens,
                    after_logprobs=(-0.5,) * span.num_tokens,
                )
                for sample in request.samples
                for span in sample.spans
            ),
            stale_episode_ids=request.facts.episode_ids[: self.leaves_behind],
            base=self.base,
            parent=request.base_version,
        )
        with checkpoint.writing(
            self.root, request.target_version, base=self.base or "", parent=request.base_version
        ) as directory:
            (directory / checkpoint.STEP_FILE).write_text(result.model_dump_json())
        return result

    async def rollback(self, request: RollbackRequest) -> RollbackAnswer:
        self.rollbacks.append(request)
        result = RollbackResult(
            rolled_back_to=request.version,
            target_version=request.target_version,
            baselines=checkpoint.read_baselines(self.root, request.version),
        )
        with checkpoint.writing(self.root, request.target_version) as directory:
            (directory / checkpoint.STEP_FILE).write_text(result.model_dump_json())
        if self.dies_after_rollback:
            self.gone = True
            raise ServiceError("the connection to the learner was lost during a rollback")
        return RollbackAnswer(result=result, save_s=0.5)

    async def aclose(self) -> None:
        pass


class SwappingEngine:
    """Takes weights; nothing else of an engine is asked for here."""

    def __init__(self) -> None:
        self.policy_version = 0
        self.failures = 0
        self.refused: set[int] = set()
        self.swaps: list[int] = []

    async def swap(self, path: Path, policy_version: int) -> None:
        if self.failures or policy_version in self.refused:
            self.failures = max(0, self.failures - 1)
            raise TrainingError("the file is cut short")
        assert checkpoint.is_complete(path.parent, policy_version)
        self.policy_version = policy_version
        self.swaps.append(policy_version)


def _metrics() -> LearnerMetrics:
    given = {"seconds": LearnerSeconds(recompute=1.0, update=2.0), "num_trained_tokens": 2}
    required = [name for name, field in LearnerMetrics.model_fields.items() if field.is_required()]
    return LearnerMetrics(**{**dict.fromkeys(required, 0.25), **given})  # type: ignore[arg-type]


class Bench:
    """A store, a learner, an engine, and an orchestrator to start and stop."""

    def __init__(self, root: Path, *, model: str = "smollm2-135m", **training: Any) -> None:
        self.root = root
        self.store = Store(root / "trajectories.db")
        self.learner = ScriptedLearner(root / "checkpoints")
        self.engine = SwappingEngine()
        reward = RewardConfig(grace_s=GRACE_S, baseline_decay=0.9)
        values = {"reward": reward, **training}
        self.config = TrainerRole(
            serve=ServeConfig(name="trainer"),
            admin_key="k" * 32,
            model=ModelConfig(path=model),
            training=TrainingConfig(**values),
            database=root / "trajectories.db",
            checkpoints=root / "checkpoints",
            learner_run_file=root / "learner.json",
        )
        self.session = self.store.sessions.create(key_hash="h", task_id="t", group_id="g")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Orchestrator]:
        orchestrator = Orchestrator(
            store=self.store,
            engine=self.engine,  # type: ignore[arg-type]
            config=self.config,
            learner=self.learner,  # type: ignore[arg-type]
        )
        await orchestrator.start()
        try:
            yield orchestrator
        finally:
            await orchestrator.stop()

    def episode(
        self, reward: float | None, *, version: int = 0, task: str = "t", question: str = "q"
    ) -> str:
        """Record an episode of one completion; scored unless the reward is None."""
        number = time.monotonic_ns()
        session = self.store.sessions.create(
            key_hash=f"{number}", task_id=task, group_id=f"{number}"
        )
        completion_id = f"chatcmpl-{number}"
        episode_id, _ = self.store.completions.begin(
            completion_id=completion_id,
            session_id=session.session_id,
            prompt_token_ids=(1, 2, 3),
            sampling={"temperature": 1.0},
            request_messages=[{"role": "user", "content": question}],
            tools=[],
            prefix={},
        )
        self.store.completions.finish(
            CompletionOutcome(
                completion_id=completion_id,
                token_ids=(4, 5),
                logprobs=(-1.0, -1.0),
                policy_versions=(version, version),
                finish_reason="stop",
                message={"role": "assistant", "content": "x"},
                latency={},
                trainable=True,
                untrainable_reason=None,
            )
        )
        if reward is not None:
            self.store.rewards.set(episode_id, reward)
        return episode_id

    def state(self, episode_id: str) -> str:
        return self.store.episodes.get(episode_id).state

    def kinds(self) -> list[str]:
        return [str(event.kind) for event in self.store.events.stored()]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # any condition, told by nobody
            await asyncio.sleep(0.005)
