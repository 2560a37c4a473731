"""Adds to each step's row what the watch sees, and says what begins. Free of torch."""

from __future__ import annotations

import logging
from typing import Any

from hermes_tui_training.algorithm.watch import WINDOW, reply_health, warnings_of
from hermes_tui_training.store.store import Store

logger = logging.getLogger(__name__)


def watch_step(store: Store, row: dict[str, Any]) -> list[str]:
    """Add to a step's row what recent replies have in common; return the warnings that begin.

    Args:
        store: without this step yet.
        row: the step's, changed in place.
    """
    health = reply_health(store.completions.recent_replies(2 * WINDOW))
    first = store.steps.rows(limit=WINDOW)
    after = max([row["step"] - 2 * WINDOW, *(early["step"] for early in first)])
    rows = [*first, *store.steps.rows(after=after)]
    earlier = [other for other in rows if other.get("base") in (None, row["base"])]
    warnings = warnings_of(health, [*earlier, row])
    row["reply_alike_frac"] = health.alike_frac
    row["reply_repetition"] = health.repetition
    row["reply_length_mean"] = health.length_mean
    row["warnings"] = warnings
    known = (earlier[-1].get("warnings") or {}) if earlier else {}
    begun = [text for name, text in warnings.items() if name not in known]
    for text in begun:
        logger.warning("step=%s: %s", row["step"], text)
    return begun
