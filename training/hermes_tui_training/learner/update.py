"""One update of the weights: gradient, direction, and the length that does what was said.

Shape legend: N trained tokens of a batch, S trained tokens of the step, C completions of the step,
K rows kept, V vocabulary.
"""

from __future__ import annotations

import functools
import math
import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hermes_tui_common.heartbeat import advance
from hermes_tui_training.algorithm.losses import (
    LossInputs,
    LossOutputs,
    kl_k3,
    policy_gradient_loss,
)
from hermes_tui_training.algorithm.step_length import (
    TOLERANCE,
    StepLength,
    Trial,
    find_step_length,
)
from hermes_tui_training.api.config import TrainingConfig
from hermes_tui_training.api.learner import Limit, NonFiniteError, NothingMovedError
from hermes_tui_training.learner.batches import Batch
from hermes_tui_training.learner.direction import turn_into_direction
from hermes_tui_training.learner.model import PolicyModel, TokenScores
from hermes_tui_training.learner.reference import ReferenceScores, ReferenceText, mean_kl

KL_TOKENS = 128
"""Trained tokens, evenly spread, at which the KL of the update is computed over the whole
vocabulary; 25 MB at a vocabulary of 49,152."""

HEADROOM = 0.5
"""Share of the way to certainty that praise may take in one step. A reply with a mean
log-probability of -0.4 rises to -0.2 at most, whatever its score: further up, what is forced is the
rest of the model."""

CERTAIN_NATS = 0.05
"""A reply whose tokens' mean log-probability is above minus this (0.95 a token) is near certain:
praise leaves it as it is."""

ANCHOR_FROM = 0.25
"""Share of ``max_reference_drift`` from which on a step must not lower the reference text, to first
order. Below, the anchor would cost a backward pass for nothing."""

_LINEARITY = (0.1, 4.0)
"""Bounds of what one step may tell the next about how far from linear it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
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
class Update:
    """What an update measured."""

    before: Scores
    """At the weights before."""
    after: Scores
    """At the weights after."""
    outputs: LossOutputs
    """Of the whole step, at the weights before."""
    moved: LossOutputs
    """The same loss at the weights after: its ratios say how far tokens moved."""
    grad_norm: float
    """Of the whole gradient of the loss."""
    length: StepLength
    """What the search came to; its trial is the one that was taken."""
    target_nats: float
    """Wanted move."""
    limit: Limit | None
    """Why it moved less than the scores ask for."""
    kl_step: float
    """KL(before, after), nats a token."""
    num_certain: int
    """Completions whose praise was cut or left out, since they are near certain."""
    reference: ReferenceScores | None
    """The reference text after the update; None without one."""
    stale_episode_ids: tuple[str, ...]
    """Episodes left out since the policy has changed too much since they were sampled."""
    search_s: float
    """Seconds that the trials took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The step's completions before the update, and what they are worth."""

    scores: Scores
    outputs: LossOutputs
    advantages_C: Tensor
    """What counts of each advantage: 0.0 where the completion is stale or near certain."""
    num_certain: int
    stale_episode_ids: tuple[str, ...]


class Updater:
    """Changes a policy's weights so that judged replies become as much likelier as was said."""

    def __init__(
        self, policy: PolicyModel, reference: ReferenceText | None, config: TrainingConfig
    ) -> None:
        """
        Args:
            policy: what is trained.
            reference: bounds what else changes; None without a text.
            config: step, loss, max_divergence.
        """
        self._policy = policy
        self._reference = reference
        self._config = config
        self.linearity = 1.0
        """Length that the last step needed, over the one that a linear policy would have needed."""
        self._drift = 0.0
        self._trials: dict[float, tuple[Scores, float, ReferenceScores | None]] = {}

    def weights_changed(self) -> None:
        """Look at the reference text anew: other weights were loaded."""
        self._drift = self._reference.measure().drift if self._reference else 0.0

    def update(self, batches: Sequence[Batch]) -> Update:
        """Change the weights; after an error they are neither the old nor the new ones.

        Raises:
            NonFiniteError: the numbers before the update are not finite.
            NothingMovedError: no step would do what the scores ask for.
        """
        self._clear_gradients()
        anchor = self._anchor()
        judged = self._judge(batches)
        grad_norm = self._grad_norm(batches)
        advantages_C = judged.advantages_C
        size = float(advantages_C.abs().sum())
        # From here on the gradient is that of the mean move in the judged direction.
        for parameter in self._policy.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(len(advantages_C) / size)
        target = self._config.step.nats_per_unit * float(advantages_C.square().sum()) / size
        slope = turn_into_direction(self._policy.parameters(), anchor)
        if not slope > 0:
            raise NothingMovedError("the gradient is zero", "no_gradient")
        started = time.monotonic()
        found = self._search(batches, judged, target=target, slope=slope)
        search_s = time.monotonic() - started
        assert found.trial is not None
        after, kl_step, reference = self._trials[found.trial.length]
        self._drift = reference.drift if reference else 0.0
        self._trials.clear()
        low, high = _LINEARITY
        linear = found.trial.moved / slope
        self.linearity = min(high, max(low, found.trial.length / linear))
        self._clear_gradients()
        certain: Limit | None = "certain" if judged.num_certain else None
        return Update(
            before=judged.scores,
            after=after,
            outputs=judged.outputs,
            moved=self._loss_at(batches, after.logprobs, judged),
            grad_norm=grad_norm,
            length=found,
            target_nats=target,
            limit=found.limit or certain,
            kl_step=kl_step,
            num_certain=judged.num_certain,
            reference=reference,
            stale_episode_ids=judged.stale_episode_ids,
            search_s=search_s,
        )

    # -- gradient -----------------------------------------------------------------------------

    def _judge(self, batches: Sequence[Batch]) -> _Judged:
        """Leave the gradient of the loss in the weights; return what it was made from."""
        num_completions = sum(len(batch.advantages_C) for batch in batches)
        scores, parts, counted = [], [], []
        num_certain = 0
        stale: set[str] = set()
        fresh: set[str] = set()
        for number, (batch, rows) in enumerate(zip(batches, _kept_rows(batches), strict=True), 1):
            advance(f"batch {number} of {len(batches)}")
            score = self._policy.score_for_gradient(batch, rows)
            before_N = score.logprobs_N.detach()
            _require_finite([before_N], [batch], "log-probabilities before the update")
            diverged = self._diverged(batch, before_N)
            for sample, is_stale in zip(batch.samples, diverged, strict=True):
                (stale if is_stale else fresh).add(sample.episode_id)
            advantages_C, certain = self._counted(batch, before_N, diverged)
            loss = self._loss(batch, advantages_C, num_completions, score.logprobs_N, before_N)
            if not torch.isfinite(loss.loss):
                raise NonFiniteError("the loss is not finite", _ids([batch]))
            torch.autograd.backward(loss.loss)
            scores.append(score)
            parts.append(loss.detached())
            counted.append(advantages_C)
            num_certain += certain
        judged = _Judged(
            scores=_joined(scores),
            outputs=functools.reduce(operator.add, parts),
            advantages_C=torch.cat(counted),
            num_certain=num_certain,
            stale_episode_ids=tuple(sorted(stale - fresh)),
        )
        self._require_something(judged)
        return judged

    def _diverged(self, batch: Batch, before_N: Tensor) -> list[bool]:
        """Return of each sample whether the policy is too far from the one that sampled it."""
        kl_N = kl_k3(batch.behavior_logprobs_N, before_N)
        return [float(kl.mean()) > self._config.max_divergence for kl in batch.split(kl_N)]

    def _counted(
        self, batch: Batch, before_N: Tensor, diverged: Sequence[bool]
    ) -> tuple[Tensor, int]:
        """Return what counts of each completion's advantage, [C], and how many were cut."""
        step = self._config.step
        left_C = -batch.per_completion(before_N)
        bound_C = torch.where(left_C > CERTAIN_NATS, HEADROOM * left_C, 0.0)
        bound_C = bound_C / step.nats_per_unit if step.nats_per_unit else bound_C
        advantages_C = torch.minimum(batch.advantages_C, bound_C)
        praise_C = batch.advantages_C.clamp(min=0)
        num_cut = int((advantages_C.clamp(min=0) < (1 - TOLERANCE) * praise_C).sum())
        fresh = [
            0.0 if is_stale else 1.0
            for sample, is_stale in zip(batch.samples, diverged, strict=True)
            for _ in sample.spans
        ]
        return advantages_C * torch.tensor(fresh, device=advantages_C.device), num_cut

    def _require_something(self, judged: _Judged) -> None:
        """Raise NothingMovedError when no completion asks for a change."""
        if not self._config.step.nats_per_unit:
            raise NothingMovedError("training.step.nats_per_unit is 0", "no_gradient")
        if judged.advantages_C.abs().sum() > 0:
            if judged.outputs.rejected_frac < 1:
                return
            raise NothingMovedError("sampler and learner disagree on every token", "stale")
        if judged.num_certain:
            raise NothingMovedError("the model says this nearly always by now", "certain")
        if judged.stale_episode_ids:
            raise NothingMovedError("the policy has changed too much since", "stale")
        raise NothingMovedError("every score is 0", "no_gradient")

    def _anchor(self) -> list[Tensor] | None:
        """Return the gradient of the reference text's drift, when a step must not follow it."""
        bound = self._config.step.max_reference_drift
        if self._reference is None or self._drift < ANCHOR_FROM * bound:
            return None
        torch.autograd.backward(self._reference.drift_for_gradient())
        parameters = self._policy.parameters()
        anchor = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self._clear_gradients()
        return anchor

    def _grad_norm(self, batches: Sequence[Batch]) -> float:
        gradients = [p.grad for p in self._policy.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            raise NonFiniteError("the gradient is not finite", _ids(batches))
        return norm

    def _clear_gradients(self) -> None:
        for parameter in self._policy.parameters():
            parameter.grad = None

    # -- length -------------------------------------------------------------------------------

    def _search(
        self, batches: Sequence[Batch], judged: _Judged, *, target: float, slope: float
    ) -> StepLength:
        """Leave the weights at the length that moves the judged tokens as far as wanted.

        Raises: NothingMovedError: no length does, within the bounds.
        """
        parameters = self._policy.parameters()
        # In main memory: beside weights, gradients and their squares a GPU may have no room.
        start = [p.detach().to("cpu", copy=True) for p in parameters]
        at = 0.0

        def go_to(length: float) -> None:
            nonlocal at
            at = length
            for parameter, weight in zip(parameters, start, strict=True):
                assert parameter.grad is not None
                parameter.data.copy_(weight).add_(parameter.grad, alpha=length)

        def attempt(length: float) -> Trial:
            go_to(length)
            return self._try(batches, judged, length)

        first = self.linearity * target / slope
        found = find_step_length(attempt, target=target, first=first)
        if found.trial is None:
            raise _nothing_found(found)
        if at != found.trial.length:
            go_to(found.trial.length)
        return found

    def _try(self, batches: Sequence[Batch], judged: _Judged, length: float) -> Trial:
        """Measure the weights as they are."""
        scores = self._score(batches)
        change_C = torch.cat(
            [
                batch.per_completion(after_N - before_N)
                for batch, after_N, before_N in zip(
                    batches, scores.logprobs, judged.scores.logprobs, strict=True
                )
            ]
        )
        advantages_C = judged.advantages_C
        moved = float((advantages_C * change_C).sum() / advantages_C.abs().sum())
        kl_step = mean_kl(judged.scores.kept_KV, scores.kept_KV)
        broken: Limit | None = None
        reference = None
        if not (math.isfinite(moved) and math.isfinite(kl_step)):
            broken, moved = "not_finite", 0.0
        elif kl_step > self._config.loss.max_step_kl:
            broken = "step_kl"
        elif self._reference is not None:
            reference = self._reference.measure()
            # Already beyond the bound (an older run, a changed text): no further.
            bound = max(self._config.step.max_reference_drift, self._drift)
            if not reference.drift <= bound:
                broken = "reference_drift"
        self._trials[length] = (scores, kl_step, reference)
        return Trial(length=length, moved=moved, broken=broken)

    def _score(self, batches: Sequence[Batch]) -> Scores:
        rows = _kept_rows(batches)
        return _joined([self._policy.score(b, kept) for b, kept in zip(batches, rows, strict=True)])

    # -- loss ---------------------------------------------------------------------------------

    def _loss(
        self,
        batch: Batch,
        advantages_C: Tensor,
        num_completions: int,
        policy_N: Tensor,
        before_N: Tensor,
    ) -> LossOutputs:
        """Return one batch's part of the step's loss; each completion counts alike."""
        config = self._config.loss
        weights_C = 1.0 / (batch.span_sizes_C * num_completions)
        return policy_gradient_loss(
            LossInputs(
                policy_logprobs_T=policy_N,
                proximal_logprobs_T=before_N,
                behavior_logprobs_T=batch.behavior_logprobs_N,
                advantages_T=batch.per_token(advantages_C),
                loss_mask_T=torch.ones_like(before_N, dtype=torch.bool),
                token_weights_T=batch.per_token(weights_C),
                reference_logprobs_T=(
                    self._policy.reference_logprobs(batch) if config.kl_coef > 0 else None
                ),
            ),
            config,
        )

    def _loss_at(
        self, batches: Sequence[Batch], policy_logprobs: Sequence[Tensor], judged: _Judged
    ) -> LossOutputs:
        """Return the loss of the whole step at given policy log-probabilities."""
        sizes = [len(batch.advantages_C) for batch in batches]
        parts = (
            self._loss(batch, advantages_C, sum(sizes), policy_N, before_N)
            for batch, advantages_C, policy_N, before_N in zip(
                batches,
                torch.split(judged.advantages_C, sizes),
                policy_logprobs,
                judged.scores.logprobs,
                strict=True,
            )
        )
        return functools.reduce(operator.add, parts)


def _nothing_found(found: StepLength) -> NothingMovedError:
    match found.limit:
        case "reference_drift":
            bound = "training.step.max_reference_drift"
            text = f"any step would move the reference text too far ({bound})"
            return NothingMovedError(text, "reference_drift")
        case "search":
            return NothingMovedError("the scores cancel each other out", "no_gradient")
        case _:
            bound = "training.loss.max_step_kl"
            text = f"none of {found.num_trials} lengths stayed within the bounds ({bound})"
            return NothingMovedError(text, "step_too_far")


def _kept_rows(batches: Sequence[Batch]) -> list[Tensor]:
    """Return per batch the rows, of the whole step's evenly spread ones, that lie in it."""
    total = sum(len(batch.targets_N) for batch in batches)
    rows_K = torch.linspace(0, total - 1, min(total, KL_TOKENS)).round().long()
    found, start = [], 0
    for batch in batches:
        stop = start + len(batch.targets_N)
        found.append(rows_K[(rows_K >= start) & (rows_K < stop)] - start)
        start = stop
    return found


def _joined(scores: Sequence[TokenScores]) -> Scores:
    return Scores(
        logprobs=[score.logprobs_N.detach() for score in scores],
        entropy_S=torch.cat([score.entropy_N for score in scores]),
        kept_KV=torch.cat([score.kept_KV for score in scores]),
    )


def _require_finite(logprobs: Sequence[Tensor], batches: Sequence[Batch], what: str) -> None:
    bad = [
        sample.episode_id
        for batch, logprobs_N in zip(batches, logprobs, strict=True)
        for sample, part in zip(batch.samples, batch.split(logprobs_N), strict=True)
        if not torch.isfinite(part).all()
    ]
    if bad:
        raise NonFiniteError(f"{what} are not finite", list(dict.fromkeys(bad)))


def _ids(batches: Sequence[Batch]) -> list[str]:
    return list(dict.fromkeys(s.episode_id for batch in batches for s in batch.samples))
