"""The lines above the prompt that say that the agent waits for a person's word.

Lines, not a dialog: what is being typed stays where it is typed, and can't answer by accident.
"""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widget import Widget

from hermes_tui.core.changes import PendingApproval
from hermes_tui.tui.messages import HintPressed
from hermes_tui.tui.widgets.formatting import foreign, line


def seconds_left(request: PendingApproval, now: float) -> str:
    """Return how long an answer may still take, as ``58 s``; empty when for ever."""
    if request.expires_at is None:
        return ""
    return f"{max(request.expires_at - now, 0.0):.0f} s"


class AskedBar(Widget):
    """Says what the agent asks, how long it waits, and which key answers."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(classes="asked")
        self._question = Content()
        self._how = Content()
        self.display = False

    def show(self, asked: list[PendingApproval], now: float, key: str, where: str = "") -> None:
        """Show the first question; none hides the lines.

        Args:
            asked: the open questions, the one that the key answers first.
            now: seconds since the epoch.
            key: how the key that answers is written.
            where: where the first one is asked, when that is not what is shown.
        """
        self.display = bool(asked)
        if not asked:
            return
        question = line(f"◆ the agent asks: {asked[0].question}", "bold $text-warning")
        time = seconds_left(asked[0], now)
        place = f" · in {where}" if where else ""
        silence = f" · {time}, then it is a no" if time else ""
        more = f" · {len(asked) - 1} more" if len(asked) > 1 else ""
        how = Content.assemble(
            (f"  {key}", "bold"), " answers", foreign(silence + more + place, "dim")
        )
        if (question, how) != (self._question, self._how):
            self._question, self._how = question, how
            self.refresh()

    def render(self) -> Content:
        """Draw what is asked, and below it how and until when it is answered."""
        width = self.content_size.width
        lines = (self._question, self._how)
        return Content("\n").join([text.truncate(width, ellipsis=True) for text in lines])

    def on_click(self, event: events.Click) -> None:
        """Open the question."""
        event.stop()
        self.post_message(HintPressed("approval_answer"))
