"""The policy-gradient loss: decoupled PPO with truncated importance weights.

Three policies meet in it. *behavior* sampled the tokens. *proximal* is the learner's policy just
before the update; it differs from behavior by kernels, precision and staleness. *policy* is the one
being updated, and the clip is around proximal (AReaL, arXiv:2505.24298 eq. 5). The step from
behavior to proximal is corrected by an importance weight, truncated so that few tokens cannot
dominate a step (IMPALA, arXiv:1802.01561). Tokens for which it leaves ``[1/reject, reject]`` are
left out: the correction would be mostly noise.

Deviations from AReaL:

* Each completion counts alike, not each token: tokens are weighted by ``token_weights_T``. A
  person's score is about a reply. With one weight per token, a reply of 258 tokens would push
  eight times as hard as one of 31 in the same step.
* With one update a step policy equals proximal, the ratio is 1 and the clip changes no gradient.
  It only counts tokens in ``clip_frac``, after the update.

Pure functions of tensors. Shape legend: T tokens, of one sequence or of many, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hermes_tui_training.api.config import LossConfig

_MAX_LOG_RATIO = 20.0
"""Nats; what exp makes of it can still be summed in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What the loss of some tokens is made of; values where the mask is false are ignored."""

    policy_logprobs_T: Tensor
    """[T] float32, natural log; the gradient flows through it."""
    proximal_logprobs_T: Tensor
    """[T] float32, natural log, recomputed before the update."""
    behavior_logprobs_T: Tensor
    """[T] float32, natural log, as sampled."""
    advantages_T: Tensor
    """[T] float32."""
    loss_mask_T: Tensor
    """[T] bool."""
    token_weights_T: Tensor
    """[T] float32, positive: what each token counts; they sum to 1 over the *whole* step, whatever
    this call holds, so that micro-batches change nothing."""
    reference_logprobs_T: Tensor | None = None
    """[T] float32, natural log, of the weights that training started from; needed with kl_coef."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutputs:
    """The loss and its diagnostics; parts of one step add up with ``+``."""

    loss: Tensor
    """Scalar: the weighted sum over these trainable tokens."""
    ratio_mean: float
    """Policy over proximal."""
    ratio_max: float
    """Largest policy over proximal."""
    clip_frac: float
    """Share of trainable tokens whose ratio is past the bound that their advantage pushes to."""
    rejected_frac: float
    """Share of trainable tokens left out because proximal is too far from behavior."""
    kl_behavior: float
    """KL(behavior, proximal), nats a token, k3 estimator."""
    kl_reference: float
    """KL(policy, reference), nats a token, k3 estimator; 0.0 without reference."""

    def __add__(self, other: LossOutputs) -> LossOutputs:
        """Return both parts together; every mean is already over the whole step."""
        return LossOutputs(
            loss=self.loss + other.loss,
            ratio_mean=self.ratio_mean + other.ratio_mean,
            ratio_max=max(self.ratio_max, other.ratio_max),
            clip_frac=self.clip_frac + other.clip_frac,
            rejected_frac=self.rejected_frac + other.rejected_frac,
            kl_behavior=self.kl_behavior + other.kl_behavior,
            kl_reference=self.kl_reference + other.kl_reference,
        )

    def detached(self) -> LossOutputs:
        """Return the same numbers without the graph behind the loss."""
        return replace(self, loss=self.loss.detach())


def policy_gradient_loss(inputs: LossInputs, config: LossConfig) -> LossOutputs:
    """Return the decoupled, clipped policy-gradient loss of some tokens of a step.

    Args:
        inputs: log-probabilities, advantages and mask; lengths are equal.
        config: clip_low, clip_high, tis_cap, reject: ratios, dimensionless; kl_coef.

    Raises: ValueError: lengths differ, a trainable token has no positive weight, or kl_coef is set
        and there are no reference_logprobs_T.
    """
    _check(inputs, config)
    mask_T = inputs.loss_mask_T
    # Selecting, not multiplying by the mask: a NaN in padding must not reach the sum.
    policy_N = inputs.policy_logprobs_T[mask_T]
    proximal_N = inputs.proximal_logprobs_T[mask_T].detach()
    behavior_N = inputs.behavior_logprobs_T[mask_T].detach()
    advantages_N = inputs.advantages_T[mask_T]
    weights_N = inputs.token_weights_T[mask_T]

    ratio_N = torch.exp(policy_N - proximal_N)
    clipped_N = ratio_N.clamp(1 - config.clip_low, 1 + config.clip_high)
    behavior_ratio_N = torch.exp(proximal_N - behavior_N)
    kept_N = (behavior_ratio_N >= 1 / config.reject) & (behavior_ratio_N <= config.reject)
    importance_N = behavior_ratio_N.clamp(max=config.tis_cap) * kept_N
    objective_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    loss = -(weights_N * importance_N * objective_N).sum()

    kl_reference = 0.0
    if inputs.reference_logprobs_T is not None:
        kl_N = kl_k3(policy_N, inputs.reference_logprobs_T[mask_T].detach())
        kl = (weights_N * kl_N).sum()
        loss = loss + config.kl_coef * kl
        kl_reference = float(kl.detach())

    pushed_past_N = clipped_N * advantages_N < ratio_N * advantages_N
    return LossOutputs(
        loss=loss,
        ratio_mean=float((weights_N * ratio_N.detach()).sum()),
        ratio_max=float(ratio_N.detach().max()) if len(ratio_N) else 0.0,
        clip_frac=float((weights_N * pushed_past_N).sum()),
        rejected_frac=float((weights_N * ~kept_N).sum()),
        kl_behavior=float((weights_N * kl_k3(behavior_N, proximal_N)).sum()),
        kl_reference=kl_reference,
    )


def kl_k3(logprobs_T: Tensor, other_logprobs_T: Tensor) -> Tensor:
    """Return per token the k3 estimate of KL(p, q) from a token sampled by p.

    Args:
        logprobs_T: [T] of p, natural log.
        other_logprobs_T: [T] of q, natural log.
    Returns: [T], never negative, at most exp(20). Source: J. Schulman, "Approximating KL
        divergence", 2020.
    """
    difference_T = (other_logprobs_T - logprobs_T).clamp(max=_MAX_LOG_RATIO)
    return torch.expm1(difference_T) - difference_T


def _check(inputs: LossInputs, config: LossConfig) -> None:
    tensors = [
        inputs.policy_logprobs_T,
        inputs.proximal_logprobs_T,
        inputs.behavior_logprobs_T,
        inputs.advantages_T,
        inputs.loss_mask_T,
        inputs.token_weights_T,
    ]
    if inputs.reference_logprobs_T is not None:
        tensors.append(inputs.reference_logprobs_T)
    if len({tuple(tensor.shape) for tensor in tensors}) != 1:
        raise ValueError(f"lengths differ: {[tuple(tensor.shape) for tensor in tensors]}")
    if not (inputs.token_weights_T[inputs.loss_mask_T] > 0).all():
        raise ValueError("a trainable token has no positive weight")
    if config.kl_coef > 0 and inputs.reference_logprobs_T is None:
        raise ValueError("kl_coef needs reference_logprobs_T")
