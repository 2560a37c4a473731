"""The loop that turns scored episodes into served weights. Runs in the trainer; free of torch.

One turn of the loop: put right what a crash left behind, publish what is not served yet, claim
scored episodes, have the learner do a step, publish and record it.

Who is right after a crash: a finished checkpoint (``lineage``). A step counts from the moment its
checkpoint is complete, which names the episodes that it consumed. The store records it in one
transaction, before or after a crash; episodes that were claimed for a step without a checkpoint go
back to ``scored``. So every episode is in exactly one step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from hermes_tui_common.disk import RESERVE_BYTES, DiskFullError, require_room
from hermes_tui_common.errors import HermesTuiError, ServiceError, TrainingError
from hermes_tui_common.serving import report_notices
from hermes_tui_training.algorithm.groups import waiting_text
from hermes_tui_training.algorithm.metrics import PublishTimes, batch_facts, rollback_row, step_row
from hermes_tui_training.algorithm.step_batch import make_step_batch
from hermes_tui_training.api.config import TrainerRole
from hermes_tui_training.api.learner import (
    NonFiniteError,
    NothingMovedError,
    RollbackRequest,
    RollbackResult,
    StepRequest,
    StepResult,
    VersionExistsError,
)
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import LineageId
from hermes_tui_training.engine.base import Engine
from hermes_tui_training.store.checkpoint_check import DamagedCheckpointError
from hermes_tui_training.store.store import Store
from hermes_tui_training.trainer.learner_client import LearnerClient, LearnerGoneError
from hermes_tui_training.trainer.lineage import Lineage
from hermes_tui_training.trainer.metrics_log import MetricsLog
from hermes_tui_training.trainer.publisher import Publisher
from hermes_tui_training.trainer.step_watch import watch_step

logger = logging.getLogger(__name__)

State = Literal["starting", "waiting", "training", "publishing", "paused", "stopped"]
"""waiting: ``reason`` says for what · paused: until somebody resumes."""

MAX_ATTEMPTS = 5
"""Failed steps in a row after which training pauses: a person has to look."""

MAX_CLAIM = 64
"""Groups and lone episodes that one step takes at most. It takes all that are ready: what waited
for another step would only grow older. More would take longer than anybody waits."""

_BACKOFF_S = (0.25, 0.5, 1.0, 2.0, 4.0)
_BUSY_POLL_S = 0.5
_HELD_SLACK_S = 0.02
_MAX_HELD_S = 60.0
"""After so long the clock is read again: somebody may have set it."""

_LOOKED_AFTER = frozenset(
    (EventKind.EPISODE_SCORED, EventKind.EPISODE_ENDED, EventKind.SESSION_ENDED)
)
"""Events after which there may be something to claim: a group waits for siblings that are open."""

_PAUSED = "paused_reason"


class UnknownVersionError(TrainingError):
    """A policy version has no checkpoint; the text names those that have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rollback:
    """What somebody waits for."""

    version: int
    row: asyncio.Future[dict[str, Any]]


class Orchestrator:
    """Owns the way from a reward to new weights."""

    def __init__(
        self,
        *,
        store: Store,
        engine: Engine,
        config: TrainerRole,
        learner: LearnerClient | None = None,
    ) -> None:
        """
        Args:
            store: sessions, episodes, steps; shared with the gateway.
            engine: started; serves the gateway.
            config: where the learner and the checkpoints are, and how to train.
            learner: how to reach the learner; None follows the configuration.
        """
        self._store = store
        self._config = config
        self._publisher = Publisher(store, engine, config)
        self._lineage = Lineage(
            store,
            config.checkpoints,
            LineageId(base=config.model.path),
            partial(report_notices, config.serve),
        )
        self._metrics = MetricsLog(config.database.parent, config.training.metrics)
        self._learner = learner or LearnerClient(
            config.learner_run_file, config.admin_key.get_secret_value()
        )
        self._state: State = "starting"
        self._reason = ""
        self._version = 0
        self._next_version = 1
        self._problem: str | None = None
        self._needed_bytes = RESERVE_BYTES
        self._settled = False
        self._paused_reason: str | None = None
        self._rollback: _Rollback | None = None
        self._attempts = 0
        self._failures = 0
        self._idle_since = time.monotonic()
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # -- what the gateway calls ---------------------------------------------------------------

    async def start(self) -> None:
        """Record a step that a crash left unrecorded, serve the current version, begin the loop."""
        self._version = await asyncio.to_thread(self._lineage.enter)
        self._paused_reason = await asyncio.to_thread(self._store.meta.get, _PAUSED)
        try:
            await self._adopt()
            await self._settle()
        except TrainingError as error:
            # Serving goes on without it; the loop tries again and shows the reason.
            logger.error("the current version could not be established: %s", error)
        rows = await asyncio.to_thread(self._store.steps.rows, limit=-1)
        await asyncio.to_thread(self._metrics.catch_up, rows)
        await self._publisher.look()
        await self._publish()
        self._idle_since = time.monotonic()
        self._tasks = [
            asyncio.create_task(self._run(), name="orchestrator"),
            asyncio.create_task(self._follow_scores(), name="orchestrator-scores"),
        ]

    async def stop(self) -> None:
        """End the loop; a step that the learner is doing is recorded at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._refuse_rollback(TrainingError("the trainer was stopped"))
        await self._learner.aclose()
        self._say("stopped", "")

    def wake(self) -> None:
        """Look at once whether there is something to do."""
        self._woken.set()

    async def pause(self, reason: str = "paused by hand") -> None:
        """Begin no further step, also after a restart; the one that runs is finished."""
        self._paused_reason = reason
        await asyncio.to_thread(self._store.meta.set, _PAUSED, reason)
        await asyncio.to_thread(
            self._store.events.add, EventKind.TRAINER_PAUSED, {"reason": reason}
        )
        logger.warning("training paused reason=%s", reason)
        self.wake()

    async def resume(self) -> None:
        """Begin steps again."""
        if self._paused_reason is None:
            return
        self._paused_reason = None
        self._attempts = 0
        await asyncio.to_thread(self._store.meta.set, _PAUSED, None)
        await asyncio.to_thread(self._store.events.add, EventKind.TRAINER_RESUMED, {})
        self.wake()

    async def checkpoint(self) -> dict[str, Any]:
        """Keep the current version for good; return its ``policy_version`` and ``path``.

        Raises: TrainingError: version 0 is the model itself and has no checkpoint.
        """
        version = self._version
        if version == 0:
            raise TrainingError("version 0 is the model itself: there is nothing to keep yet")
        return {"policy_version": version, "path": await self._publisher.pin(version)}

    async def rollback(self, version: int) -> dict[str, Any]:
        """Make an earlier version current: its weights and its baselines.

        They are published as a new version, so that a recorded token's version goes on to name one
        set of weights. Waits for the step that runs; works while training is paused.

        Args:
            version: one with a checkpoint, or 0 for the model that training started from.
        Returns: the new version's row.
        Raises:
            UnknownVersionError: the version has no checkpoint.
            TrainingError: it is the current version, or another rollback waits.
            ServiceError: the learner is not there, or could not do it.
        """
        if version == self._version:
            raise TrainingError(f"version {version} is the current one already")
        await self._publisher.look()
        self._require_kept(version)
        if self._rollback is not None:
            raise TrainingError(f"a rollback to version {self._rollback.version} is under way")
        self._rollback = _Rollback(version=version, row=asyncio.get_running_loop().create_future())
        self.wake()
        return await self._rollback.row

    def status(self) -> dict[str, Any]:
        """Return what the trainer is doing, and why it is not when it is not."""
        paused = self._paused_reason is not None and self._state not in ("training", "publishing")
        return {
            "state": "paused" if paused else self._state,
            "reason": self._paused_reason if paused else self._reason,
            "paused": self._paused_reason is not None,
            "pause_reason": self._paused_reason,
            "policy_version": self._version,
            "served_version": self._publisher.served,
            "kept_versions": [0, *self._publisher.kept],
            "publish_error": self._publisher.error,
            "problem": self._problem or self._publisher.error,
            "failed_attempts": self._attempts,
            "notices": self._lineage.notices,
        }

    # -- the loop -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                delay_s = await self._turn()
            except HermesTuiError as error:
                self._refuse_rollback(error)
                await self._back_off(error)
            except Exception as error:
                # The loop outlives whatever a turn meets: the next one starts with a clean look.
                logger.exception("a turn of the training loop failed")
                self._refuse_rollback(TrainingError(f"the trainer failed: {error}"))
                await self._back_off(error)
            else:
                self._failures, self._problem = 0, None
                await self._sleep(delay_s)

    async def _turn(self) -> float | None:
        """Do the next thing; return for how long to sleep at most, None for until woken."""
        busy = await self._recover()
        if busy:
            return _BUSY_POLL_S
        if self._rollback is not None:
            await self._roll_back(self._rollback)
            return 0.0  # look anew: a learner that died may have finished it
        if not await self._publish():
            raise TrainingError(f"version {self._version} is not served: {self._publisher.error}")
        if self._paused_reason is not None:
            self._say("paused", self._paused_reason)
            return None
        return await self._begin_step()

    async def _begin_step(self) -> float | None:
        """Do a step if there is enough for one; return for how long to sleep, as ``_turn``."""
        training = self._config.training
        grace_s, timeout_s = training.reward.grace_s, training.group.timeout_s
        groups = await asyncio.to_thread(self._store.steps.sibling_groups)
        now, ready = time.time(), sorted(group.ready_at(grace_s, timeout_s) for group in groups)
        enough = len(ready) >= training.batch_size
        held_s = ready[training.batch_size - 1] - now if enough else None
        if held_s is not None and held_s <= 0:
            # Before anything is claimed: on a full disk nothing is recorded that changes nothing.
            await asyncio.to_thread(require_room, self._config.checkpoints, self._needed_bytes)
            await self._step(scored_before=now - grace_s, group_scored_before=now - timeout_s)
            return 0.0
        said = waiting_text(
            groups, batch_size=training.batch_size, grace_s=grace_s, timeout_s=timeout_s, now=now
        )
        self._say("waiting", said)
        return None if held_s is None else min(held_s, _MAX_HELD_S) + _HELD_SLACK_S

    async def _back_off(self, error: Exception) -> None:
        """Say why nothing happens, and wait a little; not woken: claims just given back would."""
        if str(error) != self._reason:  # said once, not at every try
            usual = isinstance(error, LearnerGoneError)  # at every start, until it is up
            logger.log(logging.INFO if usual else logging.WARNING, "training waits: %s", error)
        self._say("waiting", str(error))
        self._problem = str(error)
        await asyncio.sleep(_BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)])
        self._failures += 1

    async def _sleep(self, delay_s: float | None) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _follow_scores(self) -> None:
        """Wake the loop when an episode is scored or a sibling ends, by whomever."""
        with self._store.events.subscribe() as subscription:
            while True:
                events, lost = await subscription.batch()
                if lost or any(event.kind in _LOOKED_AFTER for event in events):
                    self.wake()

    # -- after a crash ------------------------------------------------------------------------

    async def _recover(self) -> bool:
        """Put right what a lost learner or a restart left; return whether a step still runs.

        Raises: ServiceError: the learner cannot be reached.
        """
        try:
            busy_with = (await self._learner.health()).busy_with
        except LearnerGoneError:
            # Nobody works on a step: what is complete counts, the rest goes back.
            await self._adopt()
            await self._release()
            raise
        if busy_with is not None:
            self._say("training", f"the learner is finishing version {busy_with}")
            return True
        # Idle was asked first, so a step that ended since then is on the disk by now.
        await self._adopt()
        if not self._settled:
            await self._settle()
        await self._release()
        return False

    async def _adopt(self) -> None:
        """Record the steps of finished checkpoints that the store does not know."""
        found = await asyncio.to_thread(self._lineage.unrecorded)
        own = [result for result in found if self._lineage.owns(result)]
        for result in found:
            logger.info("adopted checkpoint version=%s", result.target_version)
            is_newest = bool(own) and result is own[-1]
            await self._record(result, save_s=0.0, adopted=True, publish=is_newest)

    async def _settle(self) -> None:
        """Find the version to go on from, and the number of the next one."""
        self._settled = False
        self._version = await asyncio.to_thread(self._lineage.settle)
        self._next_version = await asyncio.to_thread(self._lineage.next_version)
        await self._publisher.look()
        self._settled = True

    async def _condemn(self, error: DamagedCheckpointError) -> None:
        """Set a checkpoint aside that the learner cannot load, and go on without it."""
        await asyncio.to_thread(self._lineage.condemn, error)
        await self._settle()

    async def _release(self) -> None:
        if (await asyncio.to_thread(self._store.episodes.num_by_state)).get("claimed"):
            await asyncio.to_thread(self._store.steps.release_claims)

    # -- one step -----------------------------------------------------------------------------

    async def _step(self, *, scored_before: float, group_scored_before: float) -> None:
        """Claim what was scored before given times, as ``Steps.claim``, and train."""
        claimed_at = time.monotonic()
        training, version = self._config.training, self._version
        groups = await asyncio.to_thread(
            self._store.steps.claim,
            step=self._next_version,
            limit=max(MAX_CLAIM, training.batch_size),
            min_count=training.batch_size,
            scored_before=scored_before,
            group_scored_before=group_scored_before,
            min_policy_version=version - training.max_staleness,
        )
        if not groups:
            return  # some were dropped by the claim: there are too few now
        baselines = await asyncio.to_thread(self._store.meta.get, "baselines", {})
        batch = make_step_batch(groups, baselines, training)
        if batch.unlearnable:
            await asyncio.to_thread(self._store.steps.drop, batch.unlearnable, "zero_advantage")
        if not batch.samples:
            return
        ids = [episode.episode_id for episode in batch.episodes]
        episodes = "1 episode" if len(ids) == 1 else f"{len(ids)} episodes"
        self._say("training", f"version {self._next_version} from {episodes}")
        await asyncio.to_thread(
            self._store.events.add,
            EventKind.STEP_STARTED,
            {"step": self._next_version, "episode_ids": ids},
        )
        facts = batch_facts(
            batch.episodes,
            batch.advantages,
            batch.samples,
            baselines=batch.baselines,
            num_groups=batch.num_groups,
            base_version=version,
            wait_s=max(0.0, claimed_at - self._idle_since),
            claim_s=time.monotonic() - claimed_at,
        )
        request = StepRequest(
            base_version=version,
            target_version=self._next_version,
            samples=tuple(batch.samples),
            facts=facts,
        )
        await self._train(request)

    async def _train(self, request: StepRequest) -> None:
        """Have the learner do a step, publish and record it."""
        try:
            answer = await self._learner.step(request)
        except NonFiniteError as error:
            await asyncio.to_thread(self._store.steps.drop, error.episode_ids, "non_finite")
            await asyncio.to_thread(self._store.steps.release_claims)
            await self._say_failed(request, str(error))
        except NothingMovedError as error:
            await self._say_unmoved(request, error)
        except VersionExistsError:
            logger.info("version %s exists already", request.target_version)  # adopted next turn
        except DamagedCheckpointError as error:
            await self._condemn(error)
        except DiskFullError as error:
            self._needed_bytes = error.needed_bytes
            raise
        except ServiceError as error:
            # Not released here: the learner may still be at it. The next turn asks.
            await self._say_failed(request, str(error))
            self._attempts += 1
            if self._attempts >= MAX_ATTEMPTS:
                await self.pause(f"{self._attempts} steps in a row failed: {error}")
            raise
        else:
            self._attempts = 0
            await self._record(answer.result, save_s=answer.save_s)
            self._idle_since = time.monotonic()

    async def _say_unmoved(self, request: StepRequest, error: NothingMovedError) -> None:
        """Drop the episodes of a step that would have changed nothing, and say why."""
        ids = list(request.facts.episode_ids)
        logger.info("step moved nothing step=%s: %s", request.target_version, error)
        await asyncio.to_thread(self._store.steps.drop, ids, error.reason)
        payload = {"episode_ids": ids, "reason": error.reason, "message": str(error)}
        await asyncio.to_thread(self._store.events.add, EventKind.STEP_UNMOVED, payload)

    async def _say_failed(self, request: StepRequest, reason: str) -> None:
        logger.warning("step failed step=%s: %s", request.target_version, reason)
        await asyncio.to_thread(
            self._store.events.add,
            EventKind.STEP_FAILED,
            {
                "step": request.target_version,
                "episode_ids": list(request.facts.episode_ids),
                "reason": reason,
            },
        )

    async def _record(
        self,
        result: StepResult | RollbackResult,
        *,
        save_s: float,
        adopted: bool = False,
        publish: bool = True,
    ) -> dict[str, Any]:
        """Publish a finished checkpoint, record what made it, and return its row.

        Published first, so that the row can say how long it took; a crash in between is harmless,
        since the checkpoint is complete and gets recorded at the next start.
        """
        self._say("publishing", f"version {result.target_version}")
        started = time.monotonic()
        new_warnings: Sequence[str] = ()
        published = publish and await self._publisher.swap(result.target_version)
        times = PublishTimes(
            save_s=save_s, publish_s=time.monotonic() - started, published=published
        )
        if isinstance(result, RollbackResult):
            row = rollback_row(result, times)
        else:
            row = step_row(result, times)
            new_warnings = await asyncio.to_thread(watch_step, self._store, row)
        # Episodes that were too stale are dropped after it: a crash in between measures them again.
        await asyncio.to_thread(self._lineage.commit, result, row, adopted=adopted)
        if new_warnings and self._config.training.watch.action == "hold":
            await self.pause("; ".join(new_warnings))
        self._next_version = max(self._next_version, result.target_version + 1)
        await asyncio.to_thread(self._metrics.write, row)
        if self._lineage.owns(result):
            self._version = result.target_version
        if published:
            await self._publisher.announce(self._version, row["seconds"]["publish"])
        return row

    # -- rollback -----------------------------------------------------------------------------

    async def _roll_back(self, asked: _Rollback) -> None:
        """Do what somebody waits for, and answer; the loop goes on whatever comes of it."""
        self._say("training", f"going back to version {asked.version}")
        try:
            self._require_kept(asked.version)  # a step may have ended since it was asked for
            answer = await self._learner.rollback(
                RollbackRequest(version=asked.version, target_version=self._next_version)
            )
            row = await self._record(answer.result, save_s=answer.save_s)
        except DamagedCheckpointError as error:
            self._refuse_rollback(error)
            await self._condemn(error)
        except HermesTuiError as error:
            self._refuse_rollback(error)
        else:
            self._rollback = None
            self._attempts = 0
            if not asked.row.done():  # whoever asked may have left
                asked.row.set_result(row)

    def _refuse_rollback(self, error: HermesTuiError) -> None:
        asked, self._rollback = self._rollback, None
        if asked is not None and not asked.row.done():
            logger.warning("rollback refused version=%s: %s", asked.version, error)
            asked.row.set_exception(error)

    def _require_kept(self, version: int) -> None:
        kept = [v for v in (0, *self._publisher.kept) if v != self._version]
        if version not in kept:
            names = ", ".join(map(str, kept))
            raise UnknownVersionError(f"version {version} has no checkpoint: one can go to {names}")

    async def _publish(self) -> bool:
        """Have the engine serve the current version; return whether it does."""
        if self._publisher.served != self._version:
            self._say("publishing", f"version {self._version}")
        return await self._publisher.publish(self._version)

    def _say(self, state: State, reason: str) -> None:
        self._state, self._reason = state, reason
