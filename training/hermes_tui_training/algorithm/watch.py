"""Is the model still itself? Looks at recent replies and steps for what scores did not ask for.

A reward can be met in ways that nobody meant: one answer for all, ever shorter or longer replies,
the same words again and again. Nobody who reads one reply at a time sees that. Free of torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

WINDOW = 10
"""Newest replies that are looked at; as many before them are what they are compared with."""

_ALIKE_FRAC = 0.9
"""Share of replies that begin with the same word, from which on they count as one answer."""

_MIN_QUESTIONS = 3
"""To one question the same answer is no collapse."""

_REPETITION = 0.3
"""Share of repeated runs of three words in a reply; ordinary replies have less than 0.1."""

_LENGTH_FACTOR = 2.0
"""By which the mean length may grow or shrink within twice the window."""

_RUN_FACTOR = 2.5
"""By which the length of what is judged may grow or shrink over the run, little by little."""

_ENTROPY_FRAC = 0.3
"""Of the first steps' entropy: below this replies have become near certain."""

_REFERENCE_KL = 0.3
"""Nats a token on the reference text; a held-out text of an untouched kind moves about as far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentReply:
    """A reply of the policy."""

    question: str
    """The newest message of its request."""
    text: str
    """What was answered."""
    num_tokens: int
    """How many tokens were sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What recent replies have in common."""

    num_replies: int
    """How many were looked at, at most ``WINDOW``."""
    alike_frac: float
    """Share that begins with the most frequent first word; 0.0 without any."""
    opening: str
    """That word."""
    repetition: float
    """Mean share of runs of three words that a reply had before."""
    length_mean: float
    """Mean number of tokens."""
    length_before: float | None
    """The same of as many replies before; None with fewer."""
    num_questions: int
    """Different questions among them."""


def reply_health(replies: Sequence[RecentReply]) -> Health:
    """Return what the newest replies have in common.

    Args:
        replies: oldest first; the last ``WINDOW`` count, and as many before to compare with.
    """
    newest, before = replies[-WINDOW:], replies[-2 * WINDOW : -WINDOW]
    openings = Counter(_first_word(reply.text) for reply in newest)
    opening, number = openings.most_common(1)[0] if openings else ("", 0)
    return Health(
        num_replies=len(newest),
        alike_frac=number / max(1, len(newest)),
        opening=opening,
        repetition=mean([_repetition(reply.text) for reply in newest] or [0.0]),
        length_mean=mean([reply.num_tokens for reply in newest] or [0.0]),
        length_before=mean(r.num_tokens for r in before) if len(before) == WINDOW else None,
        num_questions=len({reply.question for reply in newest}),
    )


def warnings_of(health: Health, steps: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what a person should look at: a sentence by its name; empty when all is well.

    Args:
        health: of the newest replies.
        steps: rows of steps, oldest first, the newest included.
    """
    found: dict[str, str] = {}
    if health.num_replies == WINDOW:
        if health.alike_frac >= _ALIKE_FRAC and health.num_questions >= _MIN_QUESTIONS:
            number = round(health.alike_frac * WINDOW)
            found["one_answer"] = (
                f"{number} of the last {WINDOW} replies begin with {health.opening!r}, "
                f"to {health.num_questions} different questions"
            )
        if health.repetition > _REPETITION:
            found["repetition"] = (
                f"the last {WINDOW} replies say {health.repetition:.0%} of what they say twice"
            )
        if health.length_before:
            before, now = health.length_before, health.length_mean
            if not 1 / _LENGTH_FACTOR <= now / before <= _LENGTH_FACTOR:
                found["length"] = f"replies went from {before:.0f} to {now:.0f} tokens"
    run = _step_warnings([row for row in steps if row.get("rolled_back_to") is None])
    return run | found


def _step_warnings(steps: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    entropies = [float(row["entropy"]) for row in steps if row.get("entropy") is not None]
    if len(entropies) >= 2 * WINDOW:
        first, last = mean(entropies[:WINDOW]), mean(entropies[-WINDOW:])
        if last < _ENTROPY_FRAC * first:
            found["entropy"] = f"the entropy of replies fell from {first:.2f} to {last:.2f} nats"
    lengths = [
        row["num_trained_tokens"] / len(row["episode_ids"])
        for row in steps
        if row.get("num_trained_tokens") and row.get("episode_ids")
    ]
    if len(lengths) >= 2 * WINDOW:
        first, last = mean(lengths[:WINDOW]), mean(lengths[-WINDOW:])
        if not 1 / _RUN_FACTOR <= last / first <= _RUN_FACTOR:
            found["length"] = f"what was judged went from {first:.0f} to {last:.0f} tokens"
    kl = steps[-1].get("reference_kl") if steps else None
    if kl is not None and not kl <= _REFERENCE_KL:
        found["reference"] = f"the reference text has moved by {kl:.2f} nats a token"
    return found


def _first_word(text: str) -> str:
    words = text.split(maxsplit=1)
    return words[0].strip(".,!?:;\"'*").casefold() if words else ""


def _repetition(text: str) -> float:
    words = text.casefold().split()
    runs = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
