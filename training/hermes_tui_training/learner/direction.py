"""In which direction a step goes: the gradient, scaled by the size of each weight's row and column.

Adafactor's scaling (arXiv:1804.04235) of this step's own gradient, without a running mean. Two
reasons for keeping nothing from step to step. A person judges one reply and looks at the next; what
was judged before must not steer it. And a step after a restart or a rollback is what it was before.

Measured on the embedded model, twenty minuses of 0.5 nats each, as the KL that a text nobody judged
moved by, nats a token: plain gradient 0.815, Adam's running mean of squares 0.010, this 0.009. The
plain gradient is dominated by a few weights that shift every prediction alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_FLOOR = 1e-4
"""Share of a tensor's mean square that is added everywhere: a row without a gradient (a token that
the reply does not hold) must not count as a row in which any change is free."""


@torch.no_grad()
def turn_into_direction(
    parameters: Sequence[nn.Parameter], anchor: Sequence[Tensor] | None = None
) -> float:
    """Replace each weight's ``grad`` by the direction that lowers the loss.

    Args:
        parameters: with the gradient of the loss; None counts as zero.
        anchor: gradient of something that the step may not raise, to first order: what of the
            direction raises it is taken out. None without one.

    Returns: by how much the loss falls per unit of length, at first; 0.0 without a gradient.
    """
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    scales = [_scale(gradient) for gradient in gradients]
    directions = [-gradient * scale for gradient, scale in zip(gradients, scales, strict=True)]
    if anchor is not None:
        rise = _dot(anchor, directions)
        if rise > 0:
            # Orthogonal in the metric of the scales: of what is left, most still lowers the loss.
            scaled = [part * scale for part, scale in zip(anchor, scales, strict=True)]
            share = rise / _dot(anchor, scaled)
            for direction, part in zip(directions, scaled, strict=True):
                direction.sub_(part, alpha=share)
    for parameter, direction in zip(parameters, directions, strict=True):
        parameter.grad = direction
    return -_dot(gradients, directions)


def _scale(gradient: Tensor) -> Tensor:
    """Return what to multiply a gradient with: one over the root mean square of row and column."""
    squares = gradient.square()
    mean = squares.mean()
    if mean == 0:
        return torch.zeros_like(mean)
    squares += _FLOOR * mean
    if gradient.dim() < 2:
        return squares.mean().rsqrt()
    rows, columns = squares.mean(-1, keepdim=True), squares.mean(-2, keepdim=True)
    return (rows * columns / squares.mean()).rsqrt()


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    return sum(float((a * b).sum()) for a, b in zip(left, right, strict=True))
