"""The line above the prompt about scores: a countdown, or why one was refused."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widget import Widget

from hermes_tui.tui.messages import ActionPressed
from hermes_tui.tui.widgets.formatting import line


class ScoreBar(Widget):
    """Shows the last score, and which keys take it back or say why; or a refusal; else hidden."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(id="score-bar")
        self._forms: tuple[str, ...] = ()
        self._refused = False
        self.display = False

    def show(self, *forms: str, refused: bool = False) -> None:
        """Show the line; no form of it hides it.

        Args:
            forms: the line from its longest to its shortest form; the first that fits is drawn.
            refused: whether it says why there is no score.
        """
        if (forms, refused) != (self._forms, self._refused):
            self._forms, self._refused = forms, refused
            self.display = bool(forms)
            self.refresh()

    @property
    def text(self) -> str:
        """The whole line; empty while it is hidden."""
        return next(iter(self._forms), "")

    def render(self) -> Content:
        """Draw the longest form that fits."""
        width = self.content_size.width
        sign, style = ("✗", "$text-warning") if self._refused else ("◆", "$text-accent")
        drawn = line("")
        for form in self._forms:
            drawn = line(f"{sign} {form}", style)
            if drawn.cell_length <= width:
                break
        return drawn.truncate(width, ellipsis=True)

    def on_click(self, event: events.Click) -> None:
        """Take the score back."""
        event.stop()
        if not self._refused:
            self.post_message(ActionPressed("score_undo"))
