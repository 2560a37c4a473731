"""The line above the prompt that counts down while a score can be taken back."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widget import Widget

from hermes_tui.tui.messages import ActionPressed
from hermes_tui.tui.widgets.formatting import PART, line


class ScoreBar(Widget):
    """Shows the last score, and which keys take it back or say why; hidden without one."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(id="score-bar")
        self._parts: tuple[str, ...] = ()
        self.display = False

    def show(self, *parts: str) -> None:
        """Show the parts of the line; none hides it.

        Args:
            parts: in the order in which they are shown; a narrow terminal drops the first ones.
        """
        if parts != self._parts:
            self._parts = parts
            self.display = bool(parts)
            self.refresh()

    @property
    def text(self) -> str:
        """The whole line; empty while it is hidden."""
        return PART.join(self._parts)

    def render(self) -> Content:
        """Draw what fits of the line."""
        parts, width = list(self._parts), self.content_size.width
        while len(parts) > 1 and line(f"◆ {PART.join(parts)}").cell_length > width:
            del parts[0]
        return line(f"◆ {PART.join(parts)}", "$text-accent").truncate(width, ellipsis=True)

    def on_click(self, event: events.Click) -> None:
        """Take the score back."""
        event.stop()
        self.post_message(ActionPressed("score_undo"))
