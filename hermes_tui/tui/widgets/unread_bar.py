"""The strip under a scrolled pane that says how much has arrived out of sight."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from hermes_tui.tui.widgets.formatting import literal


class UnreadBar(Static):
    """Says "12 new below"; hidden while there is nothing to say."""

    def __init__(self, unit: str, follow_key: str = "end") -> None:
        super().__init__(classes="unread-bar")
        self._unit = unit
        self._key = follow_key
        self.count = 0
        self.display = False

    def add(self, count: int) -> None:
        """Count what arrived below the visible part."""
        self._show(self.count + count)

    def reset(self) -> None:
        """Nothing is below any more."""
        self._show(0)

    def _show(self, count: int) -> None:
        if count == self.count:
            return
        self.count = count
        self.display = count > 0
        label = literal(f"▼ {count} new {self._unit} below")
        self.update(Content.assemble(label, (f" · {self._key} follows", "dim")))
