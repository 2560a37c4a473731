"""Small questions over the main screen."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widgets import Button, Input, Label, OptionList, Static

from hermes_tui.core.sanitize import one_line
from hermes_tui.tui.widgets.formatting import literal
from hermes_tui.tui.widgets.inputs import Field

QuitChoice = Literal["stop", "detach", "cancel"]


class DismissOnce:
    """Is left once, however often it is asked for, as by both clicks of a double click.

    Textual (8.2) would take away whatever lies on top by then, and at last the main screen.
    """

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Leave with an answer, unless this is not the screen on top."""
        if not cast("Screen[Any]", self).is_active:
            return AwaitComplete()
        return cast("AwaitComplete", super().dismiss(result))  # type: ignore[misc]  # no screen, lest its style be theirs


PAGING = (
    Binding("pageup", "page('up')", show=False, priority=True),
    Binding("pagedown", "page('down')", show=False, priority=True),
)
"""Bindings of a screen with ``PagedOptions``."""


class PagedOptions:
    """PagedOptions in its list of options, once that has room.

    Before it has, Textual (8.2.8) ends with a KeyError.
    """

    def action_page(self, where: str) -> None:
        """Go a page up or down."""
        for options in cast("Screen[Any]", self).query(OptionList):
            if options.scrollable_content_region:
                getattr(options, f"action_page_{where}")()


class Dialog(DismissOnce, ModalScreen[ScreenResultType]):
    """Something over the screen; escape, or a click beside it, leaves it without an answer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    def on_click(self, event: events.Click) -> None:
        """Leave, when it was beside the dialog."""
        if event.widget is self:
            self.action_leave()

    def action_leave(self) -> None:
        """Give no answer."""
        self.dismiss(None)


class QuitScreen(Dialog[QuitChoice]):
    """Asks once what becomes of the stack."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "choose('stop')", show=False),
        Binding("d", "choose('detach')", show=False),
        Binding("c", "choose('cancel')", show=False),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical(classes="dialog"):
            yield Label(Content.styled("Leave", "bold"))
            yield Static(
                Content(
                    "Agent, model and trainer run in processes of their own: they can stop now, or "
                    "go on without this screen, until `hermes-tui` looks at them again."
                )
            )
            with Horizontal(classes="buttons"):
                yield Button(_choice("s", "Stop everything"), id="stop", compact=True)
                yield Button(_choice("d", "Detach"), id="detach", compact=True)
                yield Button(_choice("esc", "Cancel"), id="cancel", compact=True)

    def action_choose(self, choice: QuitChoice) -> None:
        """Answer."""
        self.dismiss(choice)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer by mouse or enter."""
        choices: dict[str | None, QuitChoice] = {"stop": "stop", "detach": "detach"}
        self.dismiss(choices.get(event.button.id, "cancel"))


def _choice(key: str, label: str) -> Content:
    return Content.assemble((f"{key} ", "dim"), label)


class AskScreen(Dialog[str | None]):
    """Asks for one line of text."""

    def __init__(self, question: str, value: str = "", hint: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = one_line(value)
        self._hint = hint

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical(classes="dialog"):
            yield Label(literal(self._question, "bold"))
            yield Field(value=self._value, compact=True)
            yield Static(literal(self._hint, "dim"), id="ask-hint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer, when the text will do."""
        problem = self.problem(event.value)
        if problem:
            self.query_one("#ask-hint", Static).update(literal(problem, "$text-error"))
        else:
            self.dismiss(event.value)

    def problem(self, _: str) -> str:
        """Return what is wrong with an answer; empty when nothing is."""
        return ""


class RewardScreen(AskScreen):
    """Asks for an exact reward."""

    def __init__(self, reward_range: tuple[float, float]) -> None:
        low, high = reward_range
        self._low, self._high = low, high
        super().__init__("Score exactly", hint=f"a number between {low:g} and {high:g}")

    def problem(self, text: str) -> str:
        """Return why a text is no reward; empty when it is one."""
        try:
            reward = float(text.strip().replace(",", ".").replace("−", "-"))
        except ValueError:
            return "this is not a number"
        if not self._low <= reward <= self._high:
            return f"it must lie between {self._low:g} and {self._high:g}"
        return ""
