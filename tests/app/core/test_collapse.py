"""Replies that collapse are noticed; those that only vary are not."""

from __future__ import annotations

import pytest

from hermes_tui.core.collapse import collapse, repeats
from hermes_tui.core.models import StepRow


def steps(tokens: list[float], entropy: list[float] | None = None) -> list[StepRow]:
    """Return one step of two episodes per entry."""
    return [
        StepRow(
            step=i,
            policy_version=i,
            episode_ids=("a", "b"),
            values={"num_trained_tokens": 2 * n, "entropy": entropy[i] if entropy else 2.0},
        )
        for i, n in enumerate(tokens)
    ]


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        ([30, 30, 30, 30, 30, 11, 11, 11, 11], "replies shrink: 30 → 11 tokens"),
        ([30, 30, 30, 30, 13, 13, 13, 13], None),  # 0.43 of it: shorter, not gone
        ([30, 20, 40, 30, 31, 29, 30, 30], None),
        ([30, 30, 30, 30, 1, 1, 1, 1], "replies are empty now; they had 30 tokens"),
        ([1, 1, 1, 1, 1, 1, 1, 1], None),  # they never were longer
        ([30, 1, 1, 1, 1, 1, 1], None),  # seven steps are too few to tell
    ],
)
def test_length(tokens: list[float], sentence: str | None) -> None:
    assert collapse(steps(tokens)) == ((sentence,) if sentence else ())


def test_entropy() -> None:
    entropy = [2.0] * 4 + [0.5] * 4
    assert collapse(steps([30] * 8, entropy)) == ("replies become all alike: entropy 2.00 → 0.50",)
    assert collapse(steps([30] * 8, [2.0] * 4 + [0.7] * 4)) == ()


def test_steps_that_trained_nothing_do_not_count() -> None:
    rollback = StepRow(step=9, policy_version=9, values={"rolled_back_to": 3.0})
    assert collapse([*steps([30] * 4), *[rollback] * 4]) == ()


@pytest.mark.parametrize(
    ("text", "is_repeated"),
    [
        ("I am happy. " * 8, True),
        ("The sky is blue because of the way that light is scattered by the air.", False),
        ("no no no", False),
        ("", False),
    ],
)
def test_repetition(text: str, is_repeated: bool) -> None:
    assert repeats(text) is is_repeated
