"""What a search found, marked where it is drawn."""

from __future__ import annotations

import re

from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

STYLE = "$foreground on $warning 50%"
"""Of each hit."""

FIRST_STYLE = "bold reverse"
"""Of the hit that is scrolled to."""

_REST_OF_WORD = re.compile(r"\S*")


class Hits:
    """The places of one text within one widget; marking others takes these marks away."""

    def __init__(self) -> None:
        self._before: list[tuple[Static, Content, Content]] = []
        """Each marked widget with its content before, and with the marks."""
        self._first: tuple[Static, int] | None = None

    def mark(self, within: Widget, wanted: str) -> None:
        """Mark every place of a text, whatever its case.

        Args:
            within: the widget in whose texts to look.
            wanted: the text.
        """
        self.clear()
        pattern = re.compile(re.escape(wanted), re.IGNORECASE)
        for widget in within.query(Static):
            content = widget.content
            if not isinstance(content, Content):
                continue
            places = [found.span() for found in pattern.finditer(content.plain)]
            if not places:
                continue
            marked = content
            for start, end in places:
                style = STYLE if self._first else FIRST_STYLE
                marked = marked.stylize(style, start, end)
                self._first = self._first or (widget, end)
            self._before.append((widget, content, marked))
            widget.update(marked)

    def clear(self) -> None:
        """Take the marks away, unless what was marked has changed since."""
        for widget, content, marked in self._before:
            if widget.is_attached and widget.content is marked:
                widget.update(content)
        self._before, self._first = [], None

    @property
    def first_row(self) -> int | None:
        """The row of the screen at which the first hit is laid out; None when nothing is marked."""
        if self._first is None:
            return None
        widget, end = self._first
        content = widget.content
        assert isinstance(content, Content)
        word = _REST_OF_WORD.match(content.plain, end)
        end = word.end() if word else end
        lines = content[:end].wrap(max(widget.content_size.width, 1))
        return widget.content_region.y + len(lines) - 1
