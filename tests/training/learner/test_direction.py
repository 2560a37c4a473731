"""The direction of a step, by value."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hermes_tui_training.learner.direction import turn_into_direction


def _parameters(*gradients: torch.Tensor) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return parameters


def _directions(*gradients: torch.Tensor, anchor: list[torch.Tensor] | None = None) -> list:
    parameters = _parameters(*gradients)
    turn_into_direction(parameters, anchor)
    return [parameter.grad for parameter in parameters]


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_by_hand() -> None:
    # Mean squares: rows 4 and 16, columns 10 and 10, all 10. Scales: 1/2 and 1/4.
    gradient = torch.tensor([[2.0, -2.0], [4.0, 4.0]])
    parameters = _parameters(gradient)
    slope = turn_into_direction(parameters)
    assert parameters[0].grad is not None
    expected = torch.tensor([[-1.0, 1.0], [-1.0, -1.0]])
    assert torch.allclose(parameters[0].grad, expected, atol=1e-3)
    assert slope == pytest.approx(2 + 2 + 4 + 4, rel=1e-3)


def test_the_size_of_a_gradient_does_not_matter() -> None:
    gradient = _random(5, 7)
    for factor in (1e-6, 0.1, 30.0):
        (scaled,) = _directions(factor * gradient)
        assert torch.allclose(scaled, _directions(gradient)[0], rtol=1e-4)


def test_a_weight_without_a_gradient_stays() -> None:
    parameters = [*_parameters(_random(3, 4)), nn.Parameter(torch.ones(2, 2))]
    parameters += _parameters(torch.zeros(6))
    assert turn_into_direction(parameters) > 0
    assert [float(p.grad.abs().sum()) for p in parameters[1:] if p.grad is not None] == [0.0, 0.0]
    assert turn_into_direction(_parameters(torch.zeros(3, 3))) == 0.0


def test_an_anchor_takes_out_what_would_raise_it() -> None:
    gradients = [_random(4, 6), _random(5, seed=1)]
    anchor = [-gradients[0] + _random(4, 6, seed=2), _random(5, seed=3)]
    free = _directions(*gradients)
    assert sum(float((a * d).sum()) for a, d in zip(anchor, free, strict=True)) > 0.1
    held = _directions(*gradients, anchor=anchor)
    assert sum(float((a * d).sum()) for a, d in zip(anchor, held, strict=True)) == pytest.approx(
        0.0, abs=1e-4
    )
    assert -sum(float((g * d).sum()) for g, d in zip(gradients, held, strict=True)) > 0


def test_an_anchor_that_falls_anyway_changes_nothing() -> None:
    gradient = _random(4, 6)
    (held,) = _directions(gradient, anchor=[gradient])
    assert torch.equal(held, _directions(gradient)[0])
