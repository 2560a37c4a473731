"""The bar above the prompt for pending approvals.

A bar, not a dialog: it takes no focus, so what is being typed can't answer by accident.
"""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widget import Widget

from hermes_tui.core.changes import PendingApproval
from hermes_tui.tui.messages import ActionPressed
from hermes_tui.tui.widgets.formatting import line, literal


def seconds_left(request: PendingApproval, now: float) -> str:
    """Return the time left to answer, such as ``58 s``; empty without a deadline."""
    if request.expires_at is None:
        return ""
    return f"{max(request.expires_at - now, 0.0):.0f} s"


class ApprovalBar(Widget):
    """Shows what the agent asks, how long it waits, and which key answers."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(classes="approval-bar")
        self._question = Content()
        self._how = Content()
        self.display = False

    def show(self, pending: list[PendingApproval], now: float, key: str, where: str = "") -> None:
        """Show the first pending approval; without one the bar hides.

        Args:
            pending: the approvals; the key answers the first one.
            now: seconds since the epoch.
            key: the key that answers, as shown.
            where: the session of the first one; empty for the open session.
        """
        self.display = bool(pending)
        if not pending:
            return
        question = line(f"◆ the agent asks: {pending[0].question}", "bold $text-warning")
        time = seconds_left(pending[0], now)
        session = f" · in {where}" if where else ""
        silence = f" · {time}, then it is a no" if time else ""
        more = f" · {len(pending) - 1} more" if len(pending) > 1 else ""
        how = Content.assemble(
            (f"  {key}", "bold"), " answers", literal(silence + more + session, "dim")
        )
        if (question, how) != (self._question, self._how):
            self._question, self._how = question, how
            self.refresh()

    def render(self) -> Content:
        """Draw the question, and below it the key and the deadline."""
        width = self.content_size.width
        lines = (self._question, self._how)
        return Content("\n").join([text.truncate(width, ellipsis=True) for text in lines])

    def on_click(self, event: events.Click) -> None:
        """Open the question."""
        event.stop()
        self.post_message(ActionPressed("approval_answer"))
