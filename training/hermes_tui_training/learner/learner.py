"""Steps and rollbacks: from one checkpoint to the next.

Stateless beyond its checkpoints: asked to start from a version that it does not hold, it loads it.
Blocking and not thread-safe; the app calls it from one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import ValidationError

from hermes_tui_common.disk import RESERVE_BYTES, DiskFullError, require_room
from hermes_tui_common.errors import ConfigError, TrainingError
from hermes_tui_common.heartbeat import advance
from hermes_tui_training.api.config import (
    ModelConfig,
    TrainingConfig,
    settings_without_effect,
)
from hermes_tui_training.api.learner import (
    LearnerMetrics,
    LearnerSeconds,
    NonFiniteError,
    RollbackAnswer,
    RollbackRequest,
    RollbackResult,
    StepAnswer,
    StepRequest,
    StepResult,
    VersionExistsError,
)
from hermes_tui_training.api.types import LineageId, TrainedCompletion, TrainingSample
from hermes_tui_training.learner.batches import Batch, make_batches
from hermes_tui_training.learner.model import PolicyModel
from hermes_tui_training.learner.reference import ReferenceText
from hermes_tui_training.learner.state import TrainingState, read_state, write_state
from hermes_tui_training.learner.update import Update, Updater
from hermes_tui_training.store import checkpoint

logger = logging.getLogger(__name__)


class Learner:
    """Holds the weights, what the next step needs beside them, and the version that they are."""

    def __init__(
        self,
        directory: Path,
        model: ModelConfig,
        training: TrainingConfig,
        checkpoints: Path,
        reference_ids: Sequence[int] = (),
    ) -> None:
        """Load the model and the newest checkpoint.

        Args:
            directory: the model, in Hugging Face layout.
            model: dtype, and the path that checkpoints must have been trained from.
            training: step, loss, adapters.
            checkpoints: directory of the ``policy_version_<N>`` directories.
            reference_ids: the reference text's tokens; with fewer than two nothing bounds what a
                step does beside the judged replies.
        Raises:
            ConfigError: the model cannot be trained, or the checkpoints were made with settings
                that do not fit.
        """
        self._model_name = model.path
        self._config = training
        self._checkpoints = checkpoints
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._policy = PolicyModel(
            directory,
            training.lora,
            device=self._device,
            dtype=_dtype(model.dtype, self._device),
            with_reference=training.loss.kl_coef > 0,
        )
        for name in settings_without_effect(training):
            logger.warning("%s has no effect: how far a step goes is searched", name)
        # Before any checkpoint is loaded: this is how the model read the text before training.
        reference = ReferenceText(self._policy, reference_ids) if len(reference_ids) > 1 else None
        self._updater = Updater(self._policy, reference, training)
        self._num_updates = 0
        self.version = 0
        checkpoint.remove_unfinished(checkpoints)
        self._load_newest()
        logger.info(
            "loaded model=%s kind=%s version=%s trained_weights=%s device=%s threads=%s",
            model.path,
            self._policy.kind,
            self.version,
            sum(p.numel() for p in self._policy.parameters()),
            self._device,
            torch.get_num_threads(),
        )

    def _load_newest(self) -> None:
        """Take the newest of our checkpoints that can be loaded; the trainer says which counts."""
        lineage = LineageId(base=self._model_name)
        for version in reversed(checkpoint.versions_of(self._checkpoints, lineage)):
            try:
                self.load(version)
            except TrainingError as error:
                logger.error("skipped version=%s: %s", version, error)
            else:
                return
        if self.version != 0:  # an attempt may have left half of what it loaded
            self.load(0)

    def load(self, version: int) -> None:
        """Take weights and state of a version; 0 is the model without any checkpoint.

        Raises:
            ConfigError: it was made with settings that do not fit.
            DamagedCheckpointError: its files are not what was written, or it is gone.
            TrainingError: it cannot be read now.
        """
        started = time.monotonic()
        advance(f"loading version {version}")
        # Nothing may pass for the new version while only some of it has been loaded.
        self.version = -1
        self._num_updates = 0
        self._updater.linearity = 1.0
        if version == 0:
            self._policy.load(None)
        else:
            path = checkpoint.checkpoint_path(self._checkpoints, version)
            with checkpoint.reading(self._checkpoints, version):
                state = read_state(path)
                self._require_same_settings(path, state)
                self._policy.load(path)
            self._updater.linearity = state.linearity
            self._num_updates = state.num_updates
        self._updater.weights_changed()
        self.version = version
        logger.info("loaded version=%s seconds=%.2f", version, time.monotonic() - started)

    def step(self, request: StepRequest) -> StepAnswer:
        """Do one step and save it as a checkpoint.

        Raises:
            VersionExistsError: target_version has a finished checkpoint.
            NonFiniteError: the numbers are not finite; nothing of the step is kept.
            NothingMovedError: it would not have changed the policy; no version is made.
            TrainingError: the base version cannot be loaded, or the checkpoint not be written.
        """
        self._begin(request.base_version, request.target_version)
        try:
            result = self._update(request)
        except BaseException:
            # The checkpoint of the base version is the copy that one goes back to.
            self.version = -1
            raise
        return StepAnswer(result=result, save_s=self._save(result))

    def rollback(self, request: RollbackRequest) -> RollbackAnswer:
        """Save an earlier version once more, as a new one.

        Raises:
            VersionExistsError: target_version has a finished checkpoint.
            TrainingError: the earlier version cannot be loaded, or the checkpoint not be written.
        """
        self._begin(request.version, request.target_version)
        result = RollbackResult(
            rolled_back_to=request.version,
            target_version=request.target_version,
            baselines=checkpoint.read_baselines(self._checkpoints, request.version),
            base=self._model_name,
            parent=request.version,
        )
        return RollbackAnswer(result=result, save_s=self._save(result))

    def _begin(self, base_version: int, target_version: int) -> None:
        if checkpoint.is_complete(self._checkpoints, target_version):
            raise VersionExistsError(f"version {target_version} exists already")
        require_room(self._checkpoints, self._needed_bytes())
        if self.version != base_version:
            self.load(base_version)

    def _update(self, request: StepRequest) -> StepResult:
        started = time.monotonic()
        batches = make_batches(request.samples, self._config.micro_batch_tokens, self._device)
        update = self._updater.update(batches)
        self._num_updates += 1
        try:
            metrics = _metrics(batches, update, seconds=time.monotonic() - started)
        except ValidationError as error:  # it takes finite numbers only
            ids = list(request.facts.episode_ids)
            raise NonFiniteError("the step's metrics are not finite", ids) from error
        return StepResult(
            base_version=request.base_version,
            target_version=request.target_version,
            facts=request.facts,
            metrics=metrics,
            completions=tuple(_trained_completions(batches, update)),
            stale_episode_ids=update.stale_episode_ids,
            base=self._model_name,
            parent=request.base_version,
        )

    def _save(self, result: StepResult | RollbackResult) -> float:
        """Write what is held as a checkpoint; return the seconds that it took."""
        started = time.monotonic()
        advance("saving")
        self.version = -1  # until it is certain that there is a checkpoint of what is held
        try:
            self._write(result)
        except Exception as error:
            full = DiskFullError.of(error, self._checkpoints, self._needed_bytes())
            if full is None:
                raise
            raise full from error
        self.version = result.target_version
        return time.monotonic() - started

    def _needed_bytes(self) -> int:
        """Return how much room a checkpoint takes, and what is left free beside it."""
        weights = sum(p.numel() * p.element_size() for p in self._policy.parameters())
        return weights + RESERVE_BYTES

    def _write(self, result: StepResult | RollbackResult) -> None:
        with checkpoint.writing(
            self._checkpoints,
            result.target_version,
            base=self._model_name,
            parent=checkpoint.parent_of(result),
        ) as directory:
            self._policy.save(directory)
            advance()
            write_state(
                directory,
                TrainingState(
                    model=self._model_name,
                    kind=self._policy.kind,
                    rank=self._config.lora.rank,
                    alpha=self._config.lora.alpha,
                    num_updates=self._num_updates,
                    linearity=self._updater.linearity,
                ),
            )
            (directory / checkpoint.STEP_FILE).write_text(
                result.model_dump_json(), encoding="utf-8"
            )

    def _require_same_settings(self, path: Path, state: TrainingState) -> None:
        lora = self._config.lora
        here = {
            "model.path": self._model_name,
            "training.lora.rank": lora.rank,
            "training.lora.alpha": lora.alpha if lora.rank else state.alpha,
        }
        there = {
            "model.path": state.model,
            "training.lora.rank": state.rank,
            "training.lora.alpha": state.alpha,
        }
        for key, value in here.items():
            if there[key] != value:
                raise ConfigError(
                    f"{key} is {value!r}, but {path} was trained with {there[key]!r}; "
                    "set it back, or set run.dir to another directory"
                )


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def _metrics(batches: Sequence[Batch], update: Update, *, seconds: float) -> LearnerMetrics:
    """Return a step's numbers. Raises: ValidationError: one is not finite."""
    before, after, trial = update.before, update.after, update.length.trial
    assert trial is not None
    behavior_S = torch.cat([batch.behavior_logprobs_N for batch in batches])
    mismatch_S = (before.logprobs_S - behavior_S).abs()
    reference = update.reference
    return LearnerMetrics(
        loss=float(update.outputs.loss),
        grad_norm=update.grad_norm,
        learning_rate=trial.length,
        step_frac=trial.moved / update.target_nats,
        target_nats=update.target_nats,
        moved_nats=trial.moved,
        limit=update.limit,
        num_trials=update.length.num_trials,
        num_certain=update.num_certain,
        reference_logprob=reference.logprob if reference else None,
        reference_drift=reference.drift if reference else None,
        reference_kl=reference.kl if reference else None,
        ratio_mean=update.moved.ratio_mean,
        ratio_max=update.moved.ratio_max,
        clip_frac=update.moved.clip_frac,
        rejected_frac=update.outputs.rejected_frac,
        kl_behavior=update.outputs.kl_behavior,
        kl_reference=update.outputs.kl_reference,
        kl_step=update.kl_step,
        entropy=float(before.entropy_S.mean()),
        num_trained_tokens=len(behavior_S),
        gap_mean=float(mismatch_S.mean()),
        gap_max=float(mismatch_S.max()),
        logprob_before=float(before.logprobs_S.mean()),
        logprob_after=float(after.logprobs_S.mean()),
        seconds=LearnerSeconds(
            recompute=update.search_s, update=max(0.0, seconds - update.search_s)
        ),
    )


def _trained_completions(batches: Sequence[Batch], update: Update) -> list[TrainedCompletion]:
    found = []
    for index, batch in enumerate(batches):
        old = batch.split(update.before.logprobs[index])
        new = batch.split(update.after.logprobs[index])
        for sample, old_n, new_n in zip(batch.samples, old, new, strict=True):
            found += _by_completion(sample, old_n.tolist(), new_n.tolist())
    return found


def _by_completion(
    sample: TrainingSample, before: list[float], after: list[float]
) -> list[TrainedCompletion]:
    found, start = [], 0
    for span in sample.spans:
        stop = start + span.num_tokens
        found.append(
            TrainedCompletion(
                completion_id=span.completion_id,
                advantage=span.advantage,
                proximal_logprobs=tuple(before[start:stop]),
                after_logprobs=tuple(after[start:stop]),
            )
        )
        start = stop
    return found
