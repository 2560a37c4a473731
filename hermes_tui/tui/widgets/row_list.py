"""A list of one-line rows. The cursor stays on its row when rows arrive above it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style

from hermes_tui.tui.widgets.base import ImmediateScroll

EMPTY_CONTENT = Content()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a list."""

    key: str
    """Identifies the row across updates."""
    left: Content
    """Its text; cut if there is no room."""
    right: Content = EMPTY_CONTENT
    """Text at the right edge; never cut."""
    selectable: bool = True
    """Whether the cursor may stand on it."""


class RowList(ImmediateScroll, ScrollView, can_focus=True):
    """Draws the rows that its owner passes to ``show``."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("home", "edge(0)", show=False),
        Binding("end", "edge(-1)", show=False),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.rows: Sequence[Row] = ()
        self.cursor_key = ""

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows; cursor and scroll position stay."""
        if list(rows) == list(self.rows):
            return
        gone = self._cursor_index()
        self.rows = rows
        keys = [row.key for row in rows if row.selectable]
        if self.cursor_key not in keys:
            self.cursor_key = keys[min(gone, len(keys) - 1)] if keys else ""
            self.moved()
        self.virtual_size = Size(0, len(rows))
        self.refresh()

    def _cursor_index(self) -> int:
        keys = self._keys()
        return keys.index(self.cursor_key) if self.cursor_key in keys else 0

    def _keys(self) -> list[str]:
        return [row.key for row in self.rows if row.selectable]

    def render_line(self, y: int) -> Strip:
        """Draw one row."""
        width = self.scrollable_content_region.width
        index = y + self.scroll_offset.y
        base = self.visual_style
        if not 0 <= index < len(self.rows):
            return Strip.blank(width, base.rich_style)
        row = self.rows[index]
        room = max(width - row.right.cell_length - (1 if row.right else 0), 0)
        left = row.left.truncate(room, ellipsis=True, pad=True)
        gap = Content(" " if row.right else "")
        line = Content.assemble(left, gap, row.right)
        style = base
        if row.key == self.cursor_key and self.has_focus:
            style += self.get_visual_style("rows--cursor")
            line = Content(line.plain)  # the row's colours suit the normal background only
        return _strip(line, width, style)

    def action_move(self, by: int) -> None:
        """Move the cursor up or down."""
        keys = self._keys()
        if keys:
            self.move_to(keys[min(max(self._cursor_index() + by, 0), len(keys) - 1)])

    def action_edge(self, index: int) -> None:
        """Move the cursor to the first or last row."""
        if keys := self._keys():
            self.move_to(keys[index])

    def move_to(self, key: str) -> None:
        """Put the cursor on a row and bring it into view."""
        self.cursor_key = key
        index = next((i for i, row in enumerate(self.rows) if row.key == key), 0)
        height = self.scrollable_content_region.height
        if index < self.scroll_offset.y:
            self.scroll_to(y=index, force=True)
        elif index >= self.scroll_offset.y + height:
            self.scroll_to(y=index - height + 1, force=True)
        self.refresh()
        self.moved()

    def moved(self) -> None:
        """Called when the cursor stands on another row."""

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on the row under the mouse, and pick it."""
        offset = event.get_content_offset(self)
        index = offset.y + self.scroll_offset.y if offset else -1
        if 0 <= index < len(self.rows) and self.rows[index].selectable:
            self.move_to(self.rows[index].key)
            self.picked()

    def picked(self) -> None:
        """Called when a row is clicked; the cursor stands on it."""

    def on_focus(self) -> None:
        """Show the cursor."""
        self.refresh()

    def on_blur(self) -> None:
        """Hide the cursor."""
        self.refresh()


def _strip(line: Content, width: int, style: Style) -> Strip:
    segments = [
        Segment(text, text_style.rich_style) for text, text_style in line.render(style, end="")
    ]
    return Strip(segments).crop_extend(0, width, style.rich_style)
