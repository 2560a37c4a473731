"""Amounts in the units that the screen and the commands share."""

from __future__ import annotations


def size(num_bytes: float) -> str:
    """Return a size in kB, MB or GB, thousands of each other; ``–`` for none."""
    if not num_bytes:
        return "–"
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:.0f} kB"
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
