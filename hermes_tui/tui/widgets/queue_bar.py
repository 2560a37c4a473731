"""The messages that wait until the agent has replied, between conversation and prompt."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widget import Widget

from hermes_tui.tui.widgets.formatting import PART, line

MAX_LINES = 4
"""Most messages that are shown; the others are counted."""


class QueueBar(Widget):
    """Shows queued messages, the next one first; hidden without any."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(id="queue-bar")
        self._lines: tuple[str, ...] = ()
        self._how = ""
        self.display = False

    def show(self, texts: Sequence[str], how: str) -> None:
        """Show messages.

        Args:
            texts: what waits, the next one first.
            how: when the messages go, and what edits them.
        """
        lines = [f"◌ queued: {text}" for text in texts[:MAX_LINES]]
        if len(texts) > MAX_LINES:
            lines[-1] = f"◌ and {len(texts) - MAX_LINES + 1} more queued"
        if (tuple(lines), how) == (self._lines, self._how):
            return
        self._lines, self._how = tuple(lines), how
        self.display = bool(lines)
        self.styles.height = len(lines)
        self.refresh()

    @property
    def lines(self) -> tuple[str, ...]:
        """What is shown, a line a message."""
        return self._lines

    def render(self) -> Content:
        """Draw the messages; the last line also says how they are edited."""
        width = self.content_size.width
        how = Content.assemble((PART, "dim"), line(self._how, "dim"))
        drawn = [line(text).truncate(width, ellipsis=True) for text in self._lines]
        if drawn and how.cell_length < width:
            last = line(self._lines[-1]).truncate(width - how.cell_length, ellipsis=True)
            drawn[-1] = last + how
        return Content("\n").join(drawn)
