"""Rewards as they were typed."""

from __future__ import annotations

_DIGITS = 6
"""Decimals of a reward that are shown: more are noise of the arithmetic."""


def reward_text(reward: float) -> str:
    """Return a reward with its sign and the digits that were typed: ``+0.35``, ``-1.0``."""
    return f"{round(reward, _DIGITS) + 0.0:+}"


def parse_reward(text: str) -> float:
    """Return the reward that a person typed; a comma is a decimal point, too.

    Raises: ValueError: it is no finite number.
    """
    value = float(text.strip().replace(",", ".").replace("−", "-"))
    if value - value != 0:
        raise ValueError(f"{text!r} is no finite number")
    return value
