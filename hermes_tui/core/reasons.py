"""Why something is not trained, in words."""

from __future__ import annotations

from collections.abc import Iterable

_WORDS = {
    "no_token_ids": "its upstream gave no tokens",
    "truncated": "cut off by max_tokens",
    "client_left": "broken off before its end",
    "aux_call": "the agent asked for it itself",
    "sampling_mismatch": "sampled in a way that can't be recomputed",
    "stale": "sampled by weights that are too old",
    "zero_advantage": "as good as was expected: nothing to learn",
    "engine_error": "the engine failed",
    "lost": "lost when the trainer died",
    "incomplete": "a part of it was lost",
    "non_finite": "its step gave no finite numbers",
}


def in_words(reason: str) -> str:
    """Return the trainer's reason in words; one that is not known here, as it is."""
    return _WORDS.get(reason, reason)


def reasons_in_words(reasons: Iterable[str]) -> str:
    """Return several reasons in words, each once; empty for none."""
    return ", ".join(in_words(reason) for reason in dict.fromkeys(reasons))
