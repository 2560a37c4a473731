"""A graph of measured values in braille: the oldest at the left, the newest at the right."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_tui.core.sanitize import shorten

CELL_VALUES = 2
"""Values side by side in one cell."""

CELL_LEVELS = 4
"""Dots above each other in one cell."""

_LEFT = (0x00, 0x40, 0x44, 0x46, 0x47)
"""Braille dots of a cell's left column, filled from below by 0 to 4."""

_RIGHT = (0x00, 0x80, 0xA0, 0xB0, 0xB8)
_EMPTY = 0x2800


def graph(values: Sequence[float], width: int, height: int, top: float = 100.0) -> list[str]:
    """Return the lines of a filled graph.

    Args:
        values: oldest first; a NaN leaves its place empty. The newest that fit are drawn, and fewer
            leave the left side empty.
        width: cells of a line.
        height: lines.
        top: the value that reaches the top; 0 is at the bottom.
    """
    room = width * CELL_VALUES
    newest = list(values[-room:]) if room > 0 else []
    columns = [0] * (room - len(newest)) + [_dots(value, height, top) for value in newest]
    return [
        "".join(
            chr(
                _EMPTY
                + _LEFT[_within(columns[cell], row)]
                + _RIGHT[_within(columns[cell + 1], row)]
            )
            for cell in range(0, room, CELL_VALUES)
        )
        for row in range(height - 1, -1, -1)
    ]


def _dots(value: float, height: int, top: float) -> int:
    """Return how many dots a value fills; one that is not 0 fills at least one."""
    if value != value or value <= 0 or top <= 0:
        return 0
    most = height * CELL_LEVELS
    return min(max(round(value / top * most), 1), most)


def _within(dots: int, row: int) -> int:
    """Return how many of a column's dots are in a row, counted from below."""
    return min(max(dots - row * CELL_LEVELS, 0), CELL_LEVELS)


def time_axis(seconds: float, width: int) -> str:
    """Return the line under a graph: how long ago its left edge is, and now at the right."""
    ago = f"{seconds / 60:.0f} min ago" if seconds >= 60 else f"{seconds:.0f} s ago"
    return shorten(ago + "now".rjust(max(width - len(ago), 4)), width)
