"""The line above the prompt that says what the newest step learned."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widget import Widget

from hermes_tui.tui.messages import ActionPressed
from hermes_tui.tui.widgets.formatting import line


class LessonBar(Widget):
    """Shows one sentence until the card is opened or the next message is sent; takes no key."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(id="lesson-bar")
        self._text = Content()
        self._how = Content()
        self.display = False

    def show(self, sentence: str = "", key: str = "") -> None:
        """Show a sentence and the key that opens the card; without a sentence hide."""
        text = line(f"● {sentence}", "$text-success")
        how = Content.assemble((f"  {key}", "bold"), (" shows it", "dim")) if key else Content()
        self.display = bool(sentence)
        if (text, how) != (self._text, self._how):
            self._text, self._how = text, how
            self.refresh()

    def render(self) -> Content:
        """Draw it; a narrow line cuts the sentence, not the key."""
        room = max(self.content_size.width - self._how.cell_length, 0)
        return self._text.truncate(room, ellipsis=True) + self._how

    def on_click(self, event: events.Click) -> None:
        """Open the card."""
        event.stop()
        self.post_message(ActionPressed("lesson"))
