"""Amounts in the units that the screen and the commands share."""

from __future__ import annotations

import math


def size(num_bytes: float) -> str:
    """Return a size in kB, MB or GB, thousands of each other; ``–`` for none."""
    if not num_bytes:
        return "–"
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:.0f} kB"
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


MAX_DECIMALS = 6
"""Decimals at most; a smaller number is as good as 0."""


def signed(value: float | None, decimals: int = 2) -> str:
    """Return a number with its sign, a true minus, or ``–``.

    Args:
        value: the number.
        decimals: how many to show; more where all of them would be zeros.
    """
    if value is None or value != value:
        return "–"
    if value and abs(value) < 0.5 * 10**-decimals:
        decimals = decimals_for(value)
    value = round(value, decimals) + 0.0  # no minus before a zero
    return f"{value:+.{decimals}f}".replace("-", "−")


def decimals_for(value: float) -> int:
    """Return how many decimals show two digits of a number: from 2 to ``MAX_DECIMALS``."""
    if not value or not math.isfinite(value):
        return 2
    return min(max(1 - math.floor(math.log10(abs(value))), 2), MAX_DECIMALS)
