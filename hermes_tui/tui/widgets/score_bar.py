"""The line above the prompt that counts down while a score can be taken back."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widget import Widget

from hermes_tui.tui.messages import ActionPressed
from hermes_tui.tui.widgets.formatting import line


class ScoreBar(Widget):
    """Shows the last score, and which keys take it back or say why; hidden without one."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(id="score-bar")
        self._forms: tuple[str, ...] = ()
        self.display = False

    def show(self, *forms: str) -> None:
        """Show the line; no form of it hides it.

        Args:
            forms: the line from its longest to its shortest form; the first that fits is drawn.
        """
        if forms != self._forms:
            self._forms = forms
            self.display = bool(forms)
            self.refresh()

    @property
    def text(self) -> str:
        """The whole line; empty while it is hidden."""
        return next(iter(self._forms), "")

    def render(self) -> Content:
        """Draw the longest form that fits."""
        width = self.content_size.width
        drawn = line("")
        for form in self._forms:
            drawn = line(f"◆ {form}", "$text-accent")
            if drawn.cell_length <= width:
                break
        return drawn.truncate(width, ellipsis=True)

    def on_click(self, event: events.Click) -> None:
        """Take the score back."""
        event.stop()
        self.post_message(ActionPressed("score_undo"))
