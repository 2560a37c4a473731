"""The bar under a scrolled pane: how much has arrived out of sight."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from hermes_tui.tui.widgets.formatting import literal


class UnreadBar(Static):
    """Shows "12 new words below"; hidden at zero."""

    def __init__(self, unit: str, follow_key: str = "end") -> None:
        super().__init__(classes="unread-bar")
        self._unit = unit
        self._key = follow_key
        self.count = 0
        self.display = False

    def add(self, count: int) -> None:
        """Add to what arrived below the visible part."""
        self._show(self.count + count)

    def reset(self) -> None:
        """Set the count to zero."""
        self._show(0)

    def _show(self, count: int) -> None:
        if count == self.count:
            return
        self.count = count
        self.display = count > 0
        label = literal(f"▼ {count} new {self._unit} below")
        self.update(Content.assemble(label, (f" · {self._key} follows", "dim")))
