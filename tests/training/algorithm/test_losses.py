"""The loss by value: by hand, by finite differences, by what may change nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from hermes_tui_training.algorithm.losses import LossInputs, kl_k3, policy_gradient_loss
from hermes_tui_training.api.config import LossConfig

CONFIG = LossConfig(clip_low=0.2, clip_high=0.2, tis_cap=2.0, reject=5.0)


def _inputs(
    policy: Any, proximal: Any, behavior: Any, advantages: Any, mask: Any = None, **more: Any
) -> LossInputs:
    tensor = torch.as_tensor(policy, dtype=torch.float32)
    mask_T = torch.ones(len(tensor), dtype=torch.bool) if mask is None else torch.tensor(mask)
    return LossInputs(
        policy_logprobs_T=tensor,
        proximal_logprobs_T=torch.as_tensor(proximal, dtype=torch.float32),
        behavior_logprobs_T=torch.as_tensor(behavior, dtype=torch.float32),
        advantages_T=torch.as_tensor(advantages, dtype=torch.float32),
        loss_mask_T=mask_T,
        token_weights_T=torch.full(
            (len(tensor),), 1 / more.pop("num_trainable_tokens", int(mask_T.sum()) or 1)
        ),
        **more,
    )


def _logs(*values: float) -> list[float]:
    return [math.log(value) for value in values]


def test_by_hand() -> None:
    # ratios policy/proximal:    1.1   1.5 (clipped to 1.2)   0.5 (clipped to 0.8)   1.0
    # proximal/behavior:         1.0   4.0 (capped at 2.0)    0.5                    10 (rejected)
    # advantages:                1     2                      -1                     3
    # weight * min(r A, clip A): 1.1 + 2*2.4                  + 0.5 * -0.8           + 0
    outputs = policy_gradient_loss(
        _inputs(
            _logs(0.11, 0.6, 0.1, 0.5),
            _logs(0.1, 0.4, 0.2, 0.5),
            _logs(0.1, 0.1, 0.4, 0.05),
            [1.0, 2.0, -1.0, 3.0],
        ),
        CONFIG,
    )
    assert float(outputs.loss) == pytest.approx(-(1.1 + 4.8 - 0.4) / 4, rel=1e-5)
    assert outputs.ratio_mean == pytest.approx((1.1 + 1.5 + 0.5 + 1.0) / 4, rel=1e-5)
    assert outputs.ratio_max == pytest.approx(1.5, rel=1e-5)
    assert outputs.clip_frac == pytest.approx(0.5)
    assert outputs.rejected_frac == pytest.approx(0.25)
    log4, log_half, log10 = math.log(4), math.log(0.5), math.log(10)
    expected_kl = (3 - log4 + (-0.5 - log_half) + (9 - log10)) / 4
    assert outputs.kl_behavior == pytest.approx(expected_kl, rel=1e-4)
    assert outputs.kl_reference == 0.0


def test_a_ratio_past_its_bound_gives_no_gradient_the_other_way_it_does() -> None:
    policy = torch.tensor(_logs(0.6, 0.2, 0.6, 0.2), requires_grad=True)
    proximal = _logs(0.4, 0.4, 0.4, 0.4)
    inputs = _inputs(policy, proximal, proximal, [1.0, 1.0, -1.0, -1.0])
    torch.autograd.backward(policy_gradient_loss(inputs, CONFIG).loss)
    assert policy.grad is not None
    assert policy.grad.tolist() == pytest.approx([0.0, -0.5 / 4, 1.5 / 4, 0.0], abs=1e-6)


def test_the_gradient_is_that_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    config = LossConfig(kl_coef=0.3)
    count, epsilon = 12, 1e-6
    proximal = -3 * torch.rand(count, generator=generator, dtype=torch.float64)
    noise = 0.05 * torch.randn(3, count, generator=generator, dtype=torch.float64)
    advantages = torch.randn(count, generator=generator, dtype=torch.float64)
    policy = (proximal + noise[0]).requires_grad_()

    def loss(values: torch.Tensor) -> torch.Tensor:
        return policy_gradient_loss(
            LossInputs(
                policy_logprobs_T=values,
                proximal_logprobs_T=proximal,
                behavior_logprobs_T=proximal + noise[1],
                advantages_T=advantages,
                loss_mask_T=torch.ones(count, dtype=torch.bool),
                reference_logprobs_T=proximal + noise[2],
                token_weights_T=torch.full((count,), 1 / count, dtype=torch.float64),
            ),
            config,
        ).loss

    torch.autograd.backward(loss(policy))
    assert policy.grad is not None
    for index in range(count):
        step = torch.zeros(count, dtype=torch.float64)
        step[index] = epsilon
        with torch.no_grad():
            numeric = (loss(policy + step) - loss(policy - step)) / (2 * epsilon)
        assert float(policy.grad[index]) == pytest.approx(float(numeric), rel=1e-5, abs=1e-8)


def test_padding_changes_nothing_even_if_it_is_not_a_number() -> None:
    policy, other = _logs(0.5, 0.3), _logs(0.4, 0.3)
    plain = policy_gradient_loss(_inputs(policy, other, other, [1.0, -2.0]), CONFIG)
    padding = [math.nan, math.inf]
    padded = policy_gradient_loss(
        _inputs(
            padding + policy,
            padding + other,
            padding + other,
            [0.0, 0.0, 1.0, -2.0],
            [False, False, True, True],
        ),
        CONFIG,
    )
    assert float(padded.loss) == pytest.approx(float(plain.loss), abs=1e-7)
    assert padded.ratio_max == plain.ratio_max


def test_order_and_micro_batches_change_nothing() -> None:
    generator = torch.Generator().manual_seed(2)
    proximal = -3 * torch.rand(40, generator=generator)
    behavior = proximal + 0.3 * torch.randn(40, generator=generator)
    advantages = torch.randn(40, generator=generator)

    def gradient(groups: list[list[int]]) -> tuple[torch.Tensor, float, float]:
        policy = (proximal + 0.1).requires_grad_()
        total, clip_frac = 0.0, 0.0
        for rows in groups:
            outputs = policy_gradient_loss(
                _inputs(
                    policy[rows],
                    proximal[rows],
                    behavior[rows],
                    advantages[rows],
                    num_trainable_tokens=40,
                ),
                CONFIG,
            )
            torch.autograd.backward(outputs.loss)
            total += float(outputs.loss.detach())
            clip_frac += outputs.clip_frac
        assert policy.grad is not None
        return policy.grad, total, clip_frac

    whole = gradient([list(range(40))])
    order = torch.randperm(40, generator=generator).tolist()
    parts = gradient([order[:7], order[7:8], order[8:30], order[30:]])
    assert torch.allclose(whole[0], parts[0], atol=1e-6)
    assert whole[1] == pytest.approx(parts[1], abs=1e-5)
    assert whole[2] == pytest.approx(parts[2])


def test_tokens_count_as_much_as_their_weights_say() -> None:
    # A completion of one token and one of three, each half of the step.
    logs = _logs(0.5, 0.5, 0.5, 0.5)
    inputs = replace(
        _inputs(logs, logs, logs, [1.0, -2.0, -2.0, -2.0]),
        token_weights_T=torch.tensor([1 / 2, 1 / 6, 1 / 6, 1 / 6]),
    )
    assert float(policy_gradient_loss(inputs, CONFIG).loss) == pytest.approx(-(1.0 - 2.0) / 2)


def test_k3_is_never_negative_and_zero_between_equals() -> None:
    p, q = torch.tensor(_logs(0.5, 0.5, 0.5)), torch.tensor(_logs(0.5, 0.1, 0.9))
    values = kl_k3(p, q)
    assert float(values[0]) == 0.0
    assert float(values[1]) == pytest.approx(0.2 - 1 - math.log(0.2), rel=1e-5)
    assert bool((values >= 0).all())


def test_bad_inputs_are_named() -> None:
    logs = _logs(0.5, 0.5)
    with pytest.raises(ValueError, match="lengths differ"):
        policy_gradient_loss(_inputs(logs, logs[:1], logs, [1.0, 1.0]), CONFIG)
    unweighted = replace(_inputs(logs, logs, logs, [1.0, 1.0]), token_weights_T=torch.zeros(2))
    with pytest.raises(ValueError, match="no positive weight"):
        policy_gradient_loss(unweighted, CONFIG)
    with pytest.raises(ValueError, match="needs reference_logprobs_T"):
        policy_gradient_loss(_inputs(logs, logs, logs, [1.0, 1.0]), LossConfig(kl_coef=0.1))
