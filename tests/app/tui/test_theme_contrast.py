"""Every theme is readable, and none is another one for that."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from hermes_tui.tui.theme_contrast import contrast, readable

OURS = [theme for theme in BUILTIN_THEMES.values() if not theme.ansi]
DIM = 0.66
"""What Textual leaves of a dim text's colour."""


def colors(theme: Theme) -> dict[str, str]:
    """Return a theme's colours by name."""
    found = theme.to_color_system().generate() | theme.variables
    return {name: value.lower() for name, value in found.items()}


def ratio(theme: Theme, text: str, ground: str, share: float = 1.0) -> float:
    """Return the contrast of two of a theme's colours; of the text's, a share is left."""
    on = Color.parse(colors(theme)[ground])
    return contrast(on.blend(Color.parse(colors(theme)[text]), share), on)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("#000000", "#ffffff", 21.0), ("#767676", "#ffffff", 4.54), ("#ff0000", "#ffffff", 4.0)],
)
def test_contrast_is_that_of_wcag(one: str, other: str, expected: float) -> None:
    for pair in ((one, other), (other, one)):
        assert contrast(*map(Color.parse, pair)) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("theme", OURS, ids=lambda theme: theme.name)
def test_every_theme_is_readable(theme: Theme) -> None:
    theme = readable(theme)
    names = ("foreground", *(name for name in colors(theme) if name.startswith("text-")))
    plain = [name for name in names if not colors(theme)[name].startswith("auto")]
    assert len(plain) == 7
    for ground in ("background", "surface", "panel"):
        assert {name for name in plain if ratio(theme, name, ground) < 4.5} == set()
    assert ratio(theme, "foreground", "background", DIM) >= 3.0
    assert ratio(theme, "foreground", "surface", DIM) >= 3.0
    assert ratio(theme, "block-cursor-foreground", "block-cursor-background") >= 4.5
    assert readable(theme) == theme


def test_what_is_readable_stays_as_it_is() -> None:
    for name in ("catppuccin-mocha", "rose-pine", "ansi-dark"):
        theme = BUILTIN_THEMES[name]
        assert colors(readable(theme)) == colors(theme)


def test_a_faint_text_goes_no_further_than_it_must() -> None:
    faint = BUILTIN_THEMES["solarized-light"]
    bold = readable(faint)
    assert 3.0 <= ratio(bold, "foreground", "surface", DIM) < 3.6
    assert bold.primary == faint.primary
    assert bold.background == faint.background
