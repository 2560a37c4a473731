"""Whether a text repeats itself."""

from __future__ import annotations

REPEATED_FRAC = 0.5
"""A text in which more than this share of the word triples were there before repeats itself."""

TRIPLE = 3


def repeats(text: str) -> bool:
    """Return whether a text goes round in circles."""
    words = text.split()
    triples = [tuple(words[i : i + TRIPLE]) for i in range(len(words) - TRIPLE + 1)]
    return len(triples) > TRIPLE and 1 - len(set(triples)) / len(triples) > REPEATED_FRAC
