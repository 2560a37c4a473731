"""The dialog of an approval: the agent asks whether a command may run, or for an answer."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, Static

from hermes_tui.core.changes import PendingApproval
from hermes_tui.core.controller import Controller
from hermes_tui.core.sanitize import one_line
from hermes_tui.tui.screens.dialogs import Dialog
from hermes_tui.tui.widgets.approval_bar import seconds_left
from hermes_tui.tui.widgets.formatting import literal
from hermes_tui.tui.widgets.inputs import Field

TICK_S = 0.2
"""Seconds between updates of the countdown."""

CHOICES = {
    "once": ("o", "Allow once"),
    "session": ("s", "Allow for this session"),
    "deny": ("d", "Deny"),
}
"""Key and label of each answer to a command; other answers are numbered."""


BUTTON_EDGES = 4
"""Cells of a button beyond its label: padding, and the gap to the next button."""


class AnswerButtons(Vertical):
    """Buttons side by side, or stacked where they do not fit."""

    def on_resize(self, event: events.Resize) -> None:
        """Stack the buttons where they do not fit."""
        labels = [Content.from_text(button.label, markup=False) for button in self.query(Button)]
        needed = sum(label.cell_length + BUTTON_EDGES for label in labels)
        self.set_class(needed > event.size.width, "-stacked")


class ApprovalScreen(Dialog[str | None]):
    """Asks one question. Escape leaves it open; no answer by the deadline is a no.

    Args:
        controller: has the pending approvals; once the request is none of them, the dialog closes.
        request: the question.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        *(Binding(key, f"choose('{key}')", show=False) for key, _ in CHOICES.values()),
        *(Binding(str(number), f"choose('{number}')", show=False) for number in range(1, 10)),
    ]

    def __init__(self, controller: Controller, request: PendingApproval) -> None:
        super().__init__()
        self._controller = controller
        self.request = request
        self._keys = {
            CHOICES.get(choice, (str(number), ""))[0]: choice
            for number, choice in enumerate(request.choices, 1)
        }

    def compose(self) -> ComposeResult:
        """Lay out the question and its answers."""
        free = " -free" if self.request.free else ""
        with Vertical(classes=f"dialog{free}", id="approval"):
            with VerticalScroll(id="approval-scroll", can_focus=False):
                yield Static(literal(self.request.question), id="approval-question")
            if directory := self._directory:
                yield Static(literal(f"runs in {directory}", "dim"), id="approval-directory")
            if self.request.free:
                yield Field(placeholder="your answer", compact=True)
            with AnswerButtons(classes="buttons"):
                for key, choice in self._keys.items():
                    words = CHOICES.get(choice, ("", one_line(choice)))[1]
                    label = Content.assemble((f"{key} ", "dim"), literal(words))
                    yield Button(label, id=f"choice-{key}", compact=True)

    @property
    def _directory(self) -> str:
        """Where the command runs; empty for a question in words."""
        return (
            "" if self.request.free else self._controller.state.directory(self.request.session_id)
        )

    def on_mount(self) -> None:
        """Show where it is asked, and count down. The focus is on “deny”: enter denies."""
        where = self._controller.state.where(self.request)
        title = f"The agent asks in {where}" if where else "The agent asks"
        self.query_one("#approval").border_title = literal(title, "bold")
        if not self.request.free:
            self.query(Button).last().focus()
        self._tick()
        self.set_interval(TICK_S, self._tick)

    def _tick(self) -> None:
        self._controller.approvals.drop_expired()
        if self.request.approval_id not in self._controller.state.pending_approvals:
            if self.is_current:
                self.dismiss(None)
            return
        left = seconds_left(self.request, self._controller.clock())
        silence = f"no answer within {left} is a no · " if left else ""
        self.query_one("#approval").border_subtitle = f"{silence}escape decides later"

    def action_page(self, pages: int) -> None:
        """Scroll the question by pages."""
        scroll = self.query_one("#approval-scroll")
        scroll.scroll_relative(y=pages * scroll.size.height, animate=False, immediate=True)

    def action_choose(self, key: str) -> None:
        """Answer by a choice's key."""
        if key in self._keys:
            self.dismiss(self._keys[key])

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer by mouse or enter."""
        self.action_choose((event.button.id or "").removeprefix("choice-"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer in words, or by a choice's number."""
        words = event.value.strip()
        if words:
            chosen = words if words in self.request.choices else self._keys.get(words, words)
            self.dismiss(chosen)
