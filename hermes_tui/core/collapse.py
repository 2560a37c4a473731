"""Whether replies collapse: a model that games its reward speaks ever less, or always the same.

The figures are those of the steps, so nothing else has to be read: how many tokens an episode had,
and how open the choice among them was. What the canaries answer shows repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from hermes_tui.core.models import StepRow

WINDOW = 4
"""Steps that are averaged at each end; fewer would take one odd episode for a trend."""

SHORT_FRAC = 0.4
"""Replies of less than this share of their first length have collapsed."""

EMPTY_TOKENS = 1.5
"""An episode of no more trained tokens is an empty reply: only the stop token."""

ENTROPY_FRAC = 0.3
"""So has an entropy of less than this share of the first."""

REPEATED_FRAC = 0.5
"""A text in which more than this share of the word triples were there before repeats itself."""

TRIPLE = 3


def collapse(steps: Sequence[StepRow]) -> tuple[str, ...]:
    """Return a sentence for each way in which the replies of the steps collapse.

    Args:
        steps: oldest first; those that trained nothing are left out.
    """
    trained = [step for step in steps if step.episode_ids and "num_trained_tokens" in step.values]
    if len(trained) < 2 * WINDOW:
        return ()
    first, last = trained[:WINDOW], trained[-WINDOW:]
    return tuple(sentence for sentence in (_length(first, last), _entropy(first, last)) if sentence)


def _length(first: Sequence[StepRow], last: Sequence[StepRow]) -> str:
    before, now = (
        fmean(step.values["num_trained_tokens"] / len(step.episode_ids) for step in steps)
        for steps in (first, last)
    )
    if now <= EMPTY_TOKENS < before:
        return f"replies are empty now; they had {before:.0f} tokens"
    if now < SHORT_FRAC * before:
        return f"replies shrink: {before:.0f} → {now:.0f} tokens"
    return ""


def _entropy(first: Sequence[StepRow], last: Sequence[StepRow]) -> str:
    before, now = (
        fmean(step.values.get("entropy", float("nan")) for step in steps) for steps in (first, last)
    )
    if now < ENTROPY_FRAC * before:
        return f"replies become all alike: entropy {before:.2f} → {now:.2f}"
    return ""


def repeats(text: str) -> bool:
    """Return whether a text goes round in circles."""
    words = text.split()
    triples = [tuple(words[i : i + TRIPLE]) for i in range(len(words) - TRIPLE + 1)]
    return len(triples) > TRIPLE and 1 - len(set(triples)) / len(triples) > REPEATED_FRAC
