"""Textual's themes with enough contrast.

In several of them text and cursor are too faint. WCAG 2 asks for a contrast of 4.5 for text, and of
3.0 for large or minor text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from textual.color import Color
from textual.constants import DIM_FACTOR
from textual.theme import Theme

TEXT_CONTRAST = 4.5
"""Lowest contrast of text (WCAG 2, level AA)."""

DIM_CONTRAST = 3.3
"""Lowest contrast of dim text: WCAG's 3.0, and a margin since focus tints the background."""

SIGNALS = ("primary", "secondary", "accent", "success", "warning", "error")
"""Names with a text colour each, such as ``$text-error``."""

STEPS = 20
"""Steps from a colour to black or white."""


def contrast(one: Color, other: Color) -> float:
    """Return the WCAG contrast ratio of two colours, 1 to 21."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(color: Color) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in color.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def readable(theme: Theme) -> Theme:
    """Return a theme with the same hues and enough contrast.

    Colours that have enough stay as they are, and so does a theme of the terminal's own colours.
    """
    if theme.ansi:
        return theme
    colors = theme.to_color_system().generate() | theme.variables
    grounds = [Color.parse(colors[name]) for name in ("background", "surface", "panel")]
    pages = grounds[:2]  # nothing on a panel is dim

    def is_read(color: Color) -> bool:
        return all(contrast(color, ground) >= TEXT_CONTRAST for ground in grounds)

    def is_read_dim(color: Color) -> bool:
        dim = [(ground.blend(color, DIM_FACTOR), ground) for ground in pages]
        return is_read(color) and all(contrast(*pair) >= DIM_CONTRAST for pair in dim)

    away = grounds[0].get_contrast_text(1.0)
    signals = {
        f"text-{name}": _moved(Color.parse(colors[f"text-{name}"]), away, is_read).hex
        for name in SIGNALS
    }
    return replace(
        theme,
        foreground=_moved(Color.parse(colors["foreground"]), away, is_read_dim).hex,
        variables=theme.variables | signals | _cursor(colors),
    )


def _cursor(colors: dict[str, str]) -> dict[str, str]:
    """Return the cursor's colours; where they are too close, its background changes."""
    ground, text = colors["block-cursor-background"], colors["block-cursor-foreground"]
    on = Color.parse(ground)
    color = on.get_contrast_text(1.0) if text.startswith("auto") else Color.parse(text)
    away = color.get_contrast_text(1.0)
    on = _moved(on, away, lambda on: contrast(color, on) >= TEXT_CONTRAST)
    return {"block-cursor-background": on.hex, "block-cursor-foreground": color.hex}


def _moved(color: Color, end: Color, enough: Callable[[Color], bool]) -> Color:
    """Return the first colour on the way to ``end`` that has enough contrast."""
    steps = (color.blend(end, step / STEPS) for step in range(STEPS))
    return next(filter(enough, steps), end)
