"""One optimizer step: recompute, loss, gradient, update, recompute, save.

Stateless beyond its checkpoints: asked to start from a version that it does not hold, it loads it.
Blocking and not thread-safe; the app calls it from one thread.

Shape legend: N trained tokens of a batch, S trained tokens of the step, K rows kept, V vocabulary.
"""

from __future__ import annotations

import functools
import logging
import math
import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from hermes_tui_common.errors import ConfigError, TrainingError
from hermes_tui_training.algorithm.losses import LossInputs, LossOutputs, policy_gradient_loss
from hermes_tui_training.algorithm.samples import TrainingSample
from hermes_tui_training.api.config import ModelConfig, TrainingConfig
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
from hermes_tui_training.api.types import TrainedCompletion
from hermes_tui_training.learner.batches import Batch, make_batches
from hermes_tui_training.learner.model import PolicyModel
from hermes_tui_training.learner.state import TrainingState, read_state, write_state
from hermes_tui_training.store import checkpoint

logger = logging.getLogger(__name__)

KL_TOKENS = 128
"""Trained tokens, evenly spread, at which the KL of the update is computed over the whole
vocabulary; 25 MB at a vocabulary of 49,152."""

MAX_HALVINGS = 4
"""How often an update that went too far is halved: down to a sixteenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """The whole step's trained tokens under one set of weights, batch after batch."""

    logprobs: list[Tensor]
    """Per batch [N] float32."""
    entropy_S: Tensor
    """[S] nats."""
    kept_KV: Tensor
    """[K, V] log-probabilities at the rows that the step's KL is computed at."""

    @property
    def logprobs_S(self) -> Tensor:
        """[S] float32."""
        return torch.cat(self.logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update:
    """What changing the weights came with."""

    outputs: LossOutputs
    """Of the whole step, at the weights before."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    """Warm-up included."""
    weights_before: list[Tensor]
    """The weights as they were, in the policy's order, in main memory."""


class Learner:
    """Holds the weights, the optimizer, and the version that they are."""

    def __init__(
        self, directory: Path, model: ModelConfig, training: TrainingConfig, checkpoints: Path
    ) -> None:
        """Load the model and the newest checkpoint.

        Args:
            directory: the model, in Hugging Face layout.
            model: dtype, and the path that checkpoints must have been trained from.
            training: learning rate, loss, adapters.
            checkpoints: directory of the ``policy_version_<N>`` directories.
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
        self._optimizer = self._new_optimizer()
        self._num_updates = 0
        self.version = 0
        checkpoint.remove_unfinished(checkpoints)
        versions = checkpoint.complete_versions(checkpoints)
        if versions:
            self.load(versions[-1])
        logger.info(
            "loaded model=%s kind=%s version=%s trained_weights=%s device=%s threads=%s",
            model.path,
            self._policy.kind,
            self.version,
            sum(p.numel() for p in self._policy.parameters()),
            self._device,
            torch.get_num_threads(),
        )

    def load(self, version: int) -> None:
        """Take weights and optimizer of a version; 0 is the model without any checkpoint.

        Raises:
            ConfigError: it was made with settings that do not fit.
            TrainingError: it does not exist or is damaged.
        """
        started = time.monotonic()
        # Nothing may pass for the new version while only some of it has been loaded.
        self.version = -1
        self._optimizer = self._new_optimizer()
        self._num_updates = 0
        if version == 0:
            self._policy.load(None)
        else:
            path = checkpoint.checkpoint_path(self._checkpoints, version)
            if not checkpoint.is_complete(self._checkpoints, version):
                raise TrainingError(f"there is no finished checkpoint {path}")
            state = read_state(path, self._device)
            self._require_same_settings(path, state)
            self._policy.load(path)
            self._optimizer.load_state_dict(state.optimizer)
            for group in self._optimizer.param_groups:  # the present settings count
                group.update(self._settings())
            self._num_updates = state.num_updates
            torch.set_rng_state(state.rng)
        self.version = version
        logger.info("loaded version=%s seconds=%.2f", version, time.monotonic() - started)

    def step(self, request: StepRequest) -> StepAnswer:
        """Do one optimizer step and save it as a checkpoint.

        Raises:
            VersionExistsError: target_version has a finished checkpoint.
            NonFiniteError: the numbers are not finite; weights and optimizer are as before.
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
        )
        return RollbackAnswer(result=result, save_s=self._save(result))

    def _begin(self, base_version: int, target_version: int) -> None:
        if checkpoint.is_complete(self._checkpoints, target_version):
            raise VersionExistsError(f"version {target_version} exists already")
        if self.version != base_version:
            self.load(base_version)

    def _update(self, request: StepRequest) -> StepResult:
        batches = make_batches(request.samples, self._config.micro_batch_tokens, self._device)
        times = [time.monotonic()]
        before = self._score(batches)
        self._require_finite(before, batches, "log-probabilities before the update")
        times.append(time.monotonic())
        update = self._train(batches, before)
        times.append(time.monotonic())
        after, step_frac = self._shorten(batches, before, update.weights_before)
        times.append(time.monotonic())
        seconds = LearnerSeconds(
            recompute=times[1] - times[0] + times[3] - times[2], update=times[2] - times[1]
        )
        try:
            metrics = self._metrics(batches, before, after, update, step_frac, seconds)
        except ValidationError as error:  # it takes finite numbers only
            raise NonFiniteError("the step's metrics are not finite", _ids(batches)) from error
        return StepResult(
            base_version=request.base_version,
            target_version=request.target_version,
            facts=request.facts,
            metrics=metrics,
            completions=tuple(_trained_completions(batches, before, after)),
        )

    def _metrics(
        self,
        batches: Sequence[Batch],
        before: _Scores,
        after: _Scores,
        update: _Update,
        step_frac: float,
        seconds: LearnerSeconds,
    ) -> LearnerMetrics:
        moved = self._loss_at(batches, after.logprobs, before)
        behavior_S = torch.cat([batch.behavior_logprobs_N for batch in batches])
        mismatch_S = (before.logprobs_S - behavior_S).abs()
        return LearnerMetrics(
            loss=float(update.outputs.loss),
            grad_norm=update.grad_norm,
            learning_rate=update.learning_rate,
            step_frac=step_frac,
            ratio_mean=moved.ratio_mean,
            ratio_max=moved.ratio_max,
            clip_frac=moved.clip_frac,
            rejected_frac=update.outputs.rejected_frac,
            kl_behavior=update.outputs.kl_behavior,
            kl_reference=update.outputs.kl_reference,
            kl_step=_exact_kl(before, after),
            entropy=float(before.entropy_S.mean()),
            num_trained_tokens=_num_trained_tokens(batches),
            gap_mean=float(mismatch_S.mean()),
            gap_max=float(mismatch_S.max()),
            logprob_before=float(before.logprobs_S.mean()),
            logprob_after=float(after.logprobs_S.mean()),
            seconds=seconds,
        )

    def _train(self, batches: Sequence[Batch], before: _Scores) -> _Update:
        """Update the weights."""
        optimizer, config = self._optimizer, self._config.optimizer
        optimizer.zero_grad(set_to_none=True)
        parts = []
        for index, batch in enumerate(batches):
            part = self._loss_of(batches, index, self._policy.logprobs(batch), before)
            if not torch.isfinite(part.loss):
                raise NonFiniteError("the loss is not finite", _ids([batch]))
            torch.autograd.backward(part.loss)
            parts.append(part.detached())
        parameters = self._policy.parameters()
        grad_norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm))
        if not math.isfinite(grad_norm):
            optimizer.zero_grad(set_to_none=True)
            raise NonFiniteError("the gradient is not finite", _ids(batches))
        self._num_updates += 1
        warm = min(1.0, self._num_updates / max(1, config.warmup_steps))
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * warm
        # In main memory: beside weights, gradients and moments a GPU may have no room for it.
        weights = [p.detach().to("cpu", copy=True) for p in parameters]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return _Update(
            outputs=functools.reduce(operator.add, parts),
            grad_norm=grad_norm,
            learning_rate=config.learning_rate * warm,
            weights_before=weights,
        )

    def _shorten(
        self, batches: Sequence[Batch], before: _Scores, weights_before: Sequence[Tensor]
    ) -> tuple[_Scores, float]:
        """Halve an update that went too far; return the scores after it, and its share taken.

        Too far: numbers that are not finite, more than ``max_step_kl`` away, or past the point
        where the judged tokens moved the way they were judged. The first step after a start has
        no history to scale it, and a judgement of few tokens is all the optimizer sees.
        """
        limit = self._config.loss.max_step_kl
        for halvings in range(MAX_HALVINGS + 1):
            after = self._score(batches)
            finite = bool(torch.isfinite(after.logprobs_S).all())
            within = finite and _exact_kl(before, after) <= limit
            if (within and _gain(batches, before, after) >= 0) or halvings == MAX_HALVINGS:
                break
            for weight, old in zip(self._policy.parameters(), weights_before, strict=True):
                weight.data.lerp_(old.to(weight.device), 0.5)
        self._require_finite(after, batches, "log-probabilities after the update")
        return after, 0.5**halvings

    def _loss_at(
        self, batches: Sequence[Batch], policy_logprobs: Sequence[Tensor], before: _Scores
    ) -> LossOutputs:
        """Return the loss of the whole step at given policy log-probabilities."""
        parts = (
            self._loss_of(batches, index, policy_N, before)
            for index, policy_N in enumerate(policy_logprobs)
        )
        return functools.reduce(operator.add, parts)

    def _loss_of(
        self, batches: Sequence[Batch], index: int, policy_N: Tensor, before: _Scores
    ) -> LossOutputs:
        batch = batches[index]
        with_reference = self._config.loss.kl_coef > 0
        return policy_gradient_loss(
            LossInputs(
                policy_logprobs_T=policy_N,
                proximal_logprobs_T=before.logprobs[index],
                behavior_logprobs_T=batch.behavior_logprobs_N,
                advantages_T=batch.advantages_N,
                loss_mask_T=torch.ones_like(batch.advantages_N, dtype=torch.bool),
                reference_logprobs_T=(
                    self._policy.reference_logprobs(batch) if with_reference else None
                ),
                num_trainable_tokens=_num_trained_tokens(batches),
            ),
            self._config.loss,
        )

    def _score(self, batches: Sequence[Batch]) -> _Scores:
        total = _num_trained_tokens(batches)
        rows_K = torch.linspace(0, total - 1, min(total, KL_TOKENS)).round().long()
        scores, start = [], 0
        for batch in batches:
            stop = start + len(batch.targets_N)
            inside = rows_K[(rows_K >= start) & (rows_K < stop)] - start
            scores.append(self._policy.score(batch, inside))
            start = stop
        return _Scores(
            logprobs=[score.logprobs_N for score in scores],
            entropy_S=torch.cat([score.entropy_N for score in scores]),
            kept_KV=torch.cat([score.kept_KV for score in scores]),
        )

    def _require_finite(self, scores: _Scores, batches: Sequence[Batch], what: str) -> None:
        bad = [
            sample.episode_id
            for batch, logprobs_N in zip(batches, scores.logprobs, strict=True)
            for sample, part in zip(batch.samples, batch.split(logprobs_N), strict=True)
            if not torch.isfinite(part).all()
        ]
        if bad:
            raise NonFiniteError(f"{what} are not finite", list(dict.fromkeys(bad)))

    def _save(self, result: StepResult | RollbackResult) -> float:
        """Write what is held as a checkpoint; return the seconds that it took."""
        started = time.monotonic()
        self.version = -1  # until it is certain that there is a checkpoint of what is held
        with checkpoint.writing(self._checkpoints, result.target_version) as directory:
            self._policy.save(directory)
            write_state(
                directory,
                TrainingState(
                    model=self._model_name,
                    kind=self._policy.kind,
                    rank=self._config.lora.rank,
                    alpha=self._config.lora.alpha,
                    num_updates=self._num_updates,
                    optimizer=self._optimizer.state_dict(),
                    rng=torch.get_rng_state(),
                ),
            )
            (directory / checkpoint.STEP_FILE).write_text(
                result.model_dump_json(), encoding="utf-8"
            )
        self.version = result.target_version
        return time.monotonic() - started

    def _new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self._policy.parameters(), **self._settings())

    def _settings(self) -> dict[str, Any]:
        config = self._config.optimizer
        return {
            "lr": config.learning_rate,
            "betas": config.betas,
            "weight_decay": config.weight_decay,
        }

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


def _num_trained_tokens(batches: Sequence[Batch]) -> int:
    return sum(len(batch.targets_N) for batch in batches)


def _ids(batches: Sequence[Batch]) -> list[str]:
    return list(dict.fromkeys(s.episode_id for batch in batches for s in batch.samples))


def _exact_kl(before: _Scores, after: _Scores) -> float:
    """Return the mean KL(before, after) over the kept rows, nats a token."""
    kl_K = (before.kept_KV.exp() * (before.kept_KV - after.kept_KV)).sum(-1)
    return max(0.0, float(kl_K.mean()))


def _gain(batches: Sequence[Batch], before: _Scores, after: _Scores) -> float:
    """Return how far the tokens moved the way they were judged: the sum of advantage x change."""
    advantages_S = torch.cat([batch.advantages_N for batch in batches])
    return float((advantages_S * (after.logprobs_S - before.logprobs_S)).sum())


def _trained_completions(
    batches: Sequence[Batch], before: _Scores, after: _Scores
) -> list[TrainedCompletion]:
    found = []
    for index, batch in enumerate(batches):
        old = batch.split(before.logprobs[index])
        new = batch.split(after.logprobs[index])
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
