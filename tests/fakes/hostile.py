"""Strings that break terminals, markup and layouts, and a look for what they may not do."""

from __future__ import annotations

import re

from rich.cells import cell_len
from textual.app import App
from textual.widget import Widget

MARK = "Xyzzy"
"""Every string begins with it, so that a test can see that the string was drawn at all."""

HOSTILE = {
    "markup": "[/INST] [b]bold[/b] [@click=app.quit]x[/] $text-error %s <script>1</script> <think>h"
    "</think> &amp; ![x](file:///etc/passwd) [link=https://x [/",
    "steering": "\x1b[31;1mred\x1b[2J\x1b[5A\x1b]0;title\x07\x1b]52;c;aGFj\x07\x1bPq#0\x1b\\\x1bc"
    "\x9b31m\x9d0;t\x9c\x00\x07\x08\x7f\x85\x0e \ud800 \udfff \ufffe \u202eevil\u202c \u2066a\u2069"
    "\u200f\u061c\u200b\ufeff\u00ad\U000e0041 \x1b]0;never ended\nnext \x1b[38;5",
    "wide": "日本語、한국어 ᄒ\u1161ᆫ 👩‍👩‍👧‍👦 🏳️‍🌈 ☺️ 🇩🇪 ﷽ "
    "e\u0301\u0302 Z" + "\u0351\u036b\u0343" * 30,
    "markdown": "| a | b |\n|---|---|\n| [/b] | `[red]` |\n\n[x](\x1b]8;;y\x07 'z') [y](js:1)\n\n"
    "```python\nprint('[/x]')\n",
    "white": "\t\ttab\r\rreturn\x0bvertical\x0cform\u2028line\u2029paragraph\xa0\n\n\n\nlast",
    "long": "[/x]" * 1_500 + " a [/b] 漢" * 500,
}
"""By what is wrong with them."""

for _name in HOSTILE:
    HOSTILE[_name] = f"{MARK} {HOSTILE[_name]}"

OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys, reorders text by, or can't be sent at all."""

_COLOURS = re.compile(r"\x1b\[[\d;]*m")


def assert_harmless(app: App[None]) -> None:
    """Check that nothing of a screen could steer a terminal, and that no row is too wide for it."""
    width = app.screen._compositor.size.width  # on its way to a new size, it is not the app's yet
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            assert not OBEYED.search(segment.text), segment
        assert sum(cell_len(s.text) for s in strip) == width, strip.text
        written = _COLOURS.sub("", strip.render(app.console))  # links in it would be written out
        assert not OBEYED.search(written), written


def drawn(app: App[None], widget: Widget | None = None) -> str:
    """Return the text that stands on the screen, or where a widget is."""
    strips = app.screen._compositor.render_strips()
    region = widget.region if widget else app.screen.region
    rows = strips[region.y : region.bottom]
    return "\n".join(strip.crop(region.x, region.right).text for strip in rows)
