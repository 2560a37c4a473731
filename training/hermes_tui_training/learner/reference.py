"""A fixed text that no score is about: what happens to it is what happens to the rest of the model.

Shape legend: R predicted tokens of the text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hermes_tui_training.api.types import SampledSpan, TrainingSample
from hermes_tui_training.learner.batches import Batch, make_batches
from hermes_tui_training.learner.model import PolicyModel

MAX_TOKENS = 256
"""A longer reference text is cut: each trial of a step reads it once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScores:
    """How the policy reads the reference text."""

    logprob: float
    """Mean log-probability of its tokens, nats."""
    drift: float
    """How far that is below where training began, nats; negative when it rose."""
    kl: float
    """KL(weights that training started from, policy) over the whole vocabulary, nats a token."""


class ReferenceText:
    """The text, and how the model read it before any training."""

    def __init__(self, policy: PolicyModel, token_ids: Sequence[int]) -> None:
        """
        Args:
            policy: holding the weights that training starts from.
            token_ids: the text; at least two tokens, since nothing predicts the first.
        """
        assert len(token_ids) >= 2
        self._policy = policy
        self._batch = _as_batch(token_ids[:MAX_TOKENS], policy.device)
        self._rows_R = torch.arange(len(self._batch.targets_N))
        before = policy.score(self._batch, self._rows_R)
        self._start = float(before.logprobs_N.mean())
        self._start_RV = before.kept_KV

    def measure(self) -> ReferenceScores:
        """Return how the policy reads the text now."""
        now = self._policy.score(self._batch, self._rows_R)
        logprob = float(now.logprobs_N.mean())
        return ReferenceScores(
            logprob=logprob,
            drift=self._start - logprob,
            kl=mean_kl(self._start_RV, now.kept_KV),
        )

    def drift_for_gradient(self) -> Tensor:
        """Return the drift as a scalar with a gradient behind it."""
        return self._start - self._policy.score_for_gradient(self._batch).logprobs_N.mean()


def mean_kl(before_KV: Tensor, after_KV: Tensor) -> float:
    """Return the mean KL(before, after) over rows of log-probabilities, nats; NaN stays NaN."""
    kl = float((before_KV.exp() * (before_KV - after_KV)).sum(-1).mean())
    # Rounding leaves tiny negative values between equals. max(0.0, nan) would read as 0.0.
    return 0.0 if kl < 0 else kl


def _as_batch(token_ids: Sequence[int], device: torch.device) -> Batch:
    number = len(token_ids)
    sample = TrainingSample(
        episode_id="",
        token_ids=tuple(token_ids),
        loss_mask=(False, *[True] * (number - 1)),
        behavior_logprobs=(0.0,) * number,
        policy_versions=(-1, *[0] * (number - 1)),
        spans=(
            SampledSpan(
                completion_id="", start=1, num_tokens=number - 1, advantage=0.0, temperature=1.0
            ),
        ),
    )
    return make_batches([sample], number, device)[0]
