"""The search for a step's length, on curves whose right length is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from hermes_tui_training.algorithm.step_length import (
    MAX_TRIALS,
    TOLERANCE,
    StepLength,
    Trial,
    find_step_length,
)
from hermes_tui_training.api.learner import Limit

Curve = Callable[[float], float]


def _search(
    curve: Curve, *, first: float, target: float = 0.5, bound: float = math.inf
) -> tuple[StepLength, list[float]]:
    """Search on a curve where lengths above a bound break the step's KL; return what was tried."""
    tried: list[float] = []

    def attempt(length: float) -> Trial:
        tried.append(length)
        broken: Limit | None = "step_kl" if length > bound else None
        return Trial(length=length, moved=curve(length), broken=broken)

    return find_step_length(attempt, target=target, first=first), tried


CURVES = {
    "linear": lambda x: x,
    "saturating": lambda x: 1 - math.exp(-x),
    "steepening": lambda x: x + x * x,
}


@pytest.mark.parametrize("first", [0.02, 0.1, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_a_length_is_found_from_either_side(curve: Curve, first: float) -> None:
    found, tried = _search(curve, first=first)
    assert found.trial is not None
    assert found.trial.moved == pytest.approx(0.5, rel=TOLERANCE)
    assert found.limit is None
    assert found.num_trials == len(tried) <= MAX_TRIALS


def test_a_first_guess_that_is_right_is_the_only_trial() -> None:
    found, tried = _search(lambda x: x, first=0.5)
    assert (found.num_trials, tried) == (1, [0.5])


def test_a_bound_is_gone_up_to_and_named() -> None:
    found, _ = _search(lambda x: x, first=0.5, bound=0.2)
    assert found.trial is not None
    assert 0.7 * 0.2 < found.trial.length <= 0.2
    assert found.limit == "step_kl"


def test_a_bound_that_does_not_matter_is_not_named() -> None:
    found, _ = _search(lambda x: x, first=2.0, bound=0.6)
    assert found.trial is not None
    assert (found.limit, found.trial.broken) == (None, None)


def test_nothing_is_taken_when_every_length_breaks_a_bound() -> None:
    found, tried = _search(lambda x: x, first=0.5, bound=0.0)
    assert (found.trial, found.limit) == (None, "step_kl")
    assert tried == sorted(tried, reverse=True)


def test_past_the_top_of_a_curve_it_turns_back() -> None:
    def peak(x: float) -> float:
        return x * (1 - x)  # at most 0.25, at 0.5

    found, _ = _search(peak, first=0.9, target=0.24)
    assert found.trial is not None
    assert found.trial.moved > 0.2
    assert found.limit is None


def test_from_far_beyond_a_curve_that_fell_below_zero_it_comes_back() -> None:
    def narrow(x: float) -> float:
        return x * (0.04 - x) * 1_000  # at most 0.4, at 0.02

    found, _ = _search(narrow, first=2.0, target=0.35)
    assert found.trial is not None
    assert found.trial.moved == pytest.approx(0.35, rel=TOLERANCE)


def test_scores_that_cancel_out_move_nothing() -> None:
    found, _ = _search(lambda _: 0.0, first=1.0)
    assert (found.trial, found.limit) == (None, "search")
    found, _ = _search(lambda x: -x, first=1.0)
    assert (found.trial, found.limit) == (None, "search")


def test_a_target_out_of_reach_takes_the_best() -> None:
    found, _ = _search(lambda x: 0.2 * (1 - math.exp(-x)), first=1.0)
    assert found.trial is not None
    assert 0.1 < found.trial.moved <= 0.2
    assert found.limit == "search"
