"""How long a step should be: the search for a wanted change. Free of torch.

A gradient says in which direction to change the weights, not how far. An optimizer's learning rate
fixes the length in weight space, so what a judgement does depends on the model, on the reply and on
the judgements before it. Here the length is found by trying: until the judged tokens' mean
log-probability has changed as much as the score asks for, within bounds on what else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hermes_tui_training.api.learner import Limit

TOLERANCE = 0.15
"""A step is accepted when its change is within this share of the wanted one. Tighter costs trials,
each a forward pass, and nobody can tell 0.45 nats from 0.5."""

MAX_TRIALS = 6
"""Trials of one step. Most steps need one or two: the first guess is linear, corrected by how far
the last step was from linear."""

_GROW = 4.0
"""Most by which a length grows from one trial to the next while none was too long."""

_EDGE = 0.1
"""A new trial keeps this share of the bracket away from its ends, so that it always shrinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one length did."""

    length: float
    """What the direction was multiplied with."""
    moved: float
    """Change of the judged tokens' mean log-probability in the judged direction, nats."""
    broken: Limit | None = None
    """The bound that it breaks; None when it may be taken."""


_NOWHERE = Trial(length=0.0, moved=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLength:
    """What a search came to."""

    trial: Trial | None
    """The best trial that breaks no bound; None when every one does."""
    num_trials: int
    """How many were made."""
    limit: Limit | None
    """Why it moves less than wanted; None when it does not."""


def find_step_length(
    attempt: Callable[[float], Trial], *, target: float, first: float
) -> StepLength:
    """Return the length that moves the judged tokens as far as wanted.

    Lengthens or shortens until a trial is within ``TOLERANCE``; a bracket of a too short and a too
    long trial is cut by the secant.

    Args:
        attempt: tries a length, positive.
        target: wanted change, nats, positive.
        first: length to try first, positive.
    """
    best: Trial | None = None
    broken: Limit | None = None
    low, high = _NOWHERE, None
    length = first
    for num_trials in range(1, MAX_TRIALS + 1):  # noqa: B007  # told in the result
        trial = attempt(length)
        if trial.broken is None and (best is None or _miss(trial, target) < _miss(best, target)):
            best = trial
        if trial.broken is None and _miss(trial, target) <= TOLERANCE * target:
            break
        if trial.broken is None and low.moved < trial.moved < target:
            low = trial
        else:
            high, broken = trial, trial.broken or broken
            if trial.broken is None and trial.moved <= low.moved:
                low = _NOWHERE  # past the top of its curve, a longer step moves less
        if high is not None and broken and low.length > (1 - TOLERANCE) * high.length:
            break  # as close to the bound as is worth a trial
        length = _next_length(low, high, target)
    if best is not None and best.moved <= 0:
        best = None
    enough = best is not None and best.moved >= (1 - TOLERANCE) * target
    return StepLength(
        trial=best, num_trials=num_trials, limit=None if enough else broken or "search"
    )


def _miss(trial: Trial, target: float) -> float:
    return abs(trial.moved - target)


def _next_length(low: Trial, high: Trial | None, target: float) -> float:
    """Return a length between a too short trial and a too long one, or beyond the short one."""
    if high is None:
        return low.length * min(_GROW, max(1.0 + TOLERANCE, target / low.moved))
    width = high.length - low.length
    if high.broken is None and high.moved > target:
        share = (target - low.moved) / (high.moved - low.moved)
    elif high.moved < 0:
        share = _EDGE  # it moved the wrong way, so it is far too long
    else:
        share = 0.5
    return low.length + width * min(max(share, _EDGE), 1 - _EDGE)
