"""JSON Lines: one flat token sequence a row, with everything that was recorded about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hermes_tui_training.api.types import Episode
from hermes_tui_training.exports.rows import ExportOptions, row_json, rows_of


def convert(episodes: Iterable[Episode], options: ExportOptions) -> Iterator[dict[str, Any]]:
    """Yield every row, with a reward or without."""
    for episode in episodes:
        yield from (row_json(row) for row in rows_of(episode, options))
