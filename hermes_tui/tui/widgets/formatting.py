"""How untrusted text, states and numbers are shown."""

from __future__ import annotations

from pathlib import Path

from textual.content import Content

from hermes_tui.core.reward_text import reward_text
from hermes_tui.core.sanitize import clean, one_line
from hermes_tui.core.units import decimals_for, signed
from hermes_tui.core.units import size as size

GLYPHS = {
    # processes
    "waiting": "○",
    "starting": "◌",
    "ready": "●",
    "hung": "✗",
    "stopping": "◌",
    "stopped": "○",
    "failed": "✗",
    "flapping": "✗",
    # episodes
    "open": "○",
    "ended": "◇",
    "unscored": "◇",
    "scored": "◆",
    "claimed": "◈",
    "trained": "●",
    "dropped": "✗",
}
"""A one-cell glyph for each state; its word is always shown beside it."""

TONES = {
    "starting": "$text-warning",
    "ready": "$text-success",
    "hung": "$text-error",
    "stopping": "$text-warning",
    "failed": "$text-error",
    "flapping": "$text-error",
    "scored": "$text-accent",
    "claimed": "$text-accent",
    "trained": "$text-success",
    "dropped": "$text-error",
}
"""The theme's colour of each state; other states have the text's colour."""

PART = " · "
"""Separates the parts of a line."""

BARS = "▁▂▃▄▅▆▇█"


def literal(text: str, style: str = "") -> Content:
    """Return untrusted text as content: no markup, no control or direction characters."""
    return Content.styled(clean(text), style) if style else Content(clean(text))


def line(text: str, style: str = "") -> Content:
    """Return untrusted text as content of one line; runs of white space become one space."""
    return literal(one_line(text), style)


def state(word: str, shown: str = "") -> Content:
    """Return a state's glyph and word, in its colour.

    Args:
        word: the state.
        shown: the word to show instead of the state's own.
    """
    return line(f"{GLYPHS.get(word, '·')} {shown or word}", TONES.get(word, ""))


def by_parts(content: Content, width: int) -> Content:
    """Return content wrapped between its parts, so that no number is split from its unit.

    Args:
        content: parts with `` · `` between them.
        width: cells of a line.
    """
    lines: list[Content] = []
    for part in content.split(PART):
        if lines and lines[-1].cell_length + len(PART) + part.cell_length <= width:
            lines[-1] = Content.assemble(lines[-1], (PART, "dim"), part)
        else:
            lines.append(part)
    return Content("\n").join(lines)


def path(name: str, cells: int) -> str:
    """Return a path of at most that many characters: with ``~``, and cut at its front."""
    home = str(Path.home())
    short = "~" + name[len(home) :] if name.startswith(f"{home}/") else name
    return one_line(short if len(short) <= cells else "…" + short[-max(cells - 1, 0) :])


def sparkline(values: list[float], low: float | None = None, high: float | None = None) -> str:
    """Return one bar per value; NaN is a gap.

    Args:
        values: what to draw.
        low: value of the lowest bar; None is the least of the values.
        high: value of the highest bar; None is the greatest of them.
    """
    finite = [value for value in values if value == value]
    if not finite:
        return ""
    bottom = min(finite) if low is None else low
    top = max(finite) if high is None else high
    if top <= bottom:
        bottom, top = bottom - 1.0, top + 1.0  # one value, or equal ones: the middle
    steps = len(BARS) - 1
    return "".join(
        BARS[round(min(max((value - bottom) / (top - bottom), 0.0), 1.0) * steps)]
        if value == value
        else " "
        for value in values
    )


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with at most ``digits`` significant digits, a true minus, or ``–``."""
    if value is None or value != value:
        return "–"
    if value and abs(value) < 1e-4:
        digits = 1
    text = f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e+")
    return text.replace("-", "−")


def signed_reward(value: float | None) -> str:
    """Return a reward with its sign and the digits that were typed, a true minus, or ``–``."""
    if value is None or value != value:
        return "–"
    return reward_text(value).replace("-", "−")


def progress_bar(done_frac: float, cells: int) -> str:
    """Return a bar of that many cells, filled up to a share between 0 and 1."""
    filled = round(min(max(done_frac, 0.0), 1.0) * cells)
    return "━" * filled + "╌" * (cells - filled)


def change(before: float | None, after: float | None) -> Content:
    """Return two numbers and how far apart they are, with the decimals that show it."""
    if before is None or after is None or before != before or after != after:
        return Content("–")
    moved = after - before
    decimals = decimals_for(moved)
    sign = f"{moved:+.{decimals}f}"
    if not float(sign):
        return Content(f"{signed(before)}, unchanged")
    tone, arrow = ("$text-success", "▲") if moved > 0 else ("$text-error", "▼")
    return Content.assemble(
        f"{signed(before, decimals)} → {signed(after, decimals)}  ",
        (f"{arrow} {signed(moved, decimals)}", tone),
    )


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as ``3 m 20 s``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def age(seconds: float) -> str:
    """Return how long ago something was, in its largest unit, such as ``3h``; ``now`` at first."""
    for unit, unit_s in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)}{unit}"
    return "now"
