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

from hermes_tui.core.reward_text import parse_reward
from hermes_tui.core.sanitize import one_line
from hermes_tui.tui.widgets.formatting import literal
from hermes_tui.tui.widgets.inputs import Field

QuitChoice = Literal["stop", "detach", "cancel"]


class DismissOnce:
    """Is dismissed once, even if both clicks of a double click ask for it.

    Textual (8.2.8) pops the screen on top, whatever screen is dismissed: the second time that is
    the one below. See https://github.com/Textualize/textual/issues/2575.
    """

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Leave with an answer, if this is the screen on top."""
        if not cast("Screen[Any]", self).is_active:
            return AwaitComplete()
        return cast("AwaitComplete", super().dismiss(result))  # type: ignore[misc]  # a mixin: a Screen base would bring its CSS along


PAGING = (
    Binding("pageup", "page('up')", show=False, priority=True),
    Binding("pagedown", "page('down')", show=False, priority=True),
)
"""Bindings of a screen with ``PagedOptions``."""


class PagedOptions:
    """A mixin that pages through the screen's list of options, once it is laid out.

    Before that, ``action_page_up`` and ``action_page_down`` of Textual's OptionList (8.2.8) raise
    KeyError. We know of no report at Textual; https://github.com/kagan-sh/kagan-legacy/issues/31
    met it too.
    """

    def action_page(self, where: str) -> None:
        """Go a page up or down."""
        for options in cast("Screen[Any]", self).query(OptionList):
            if options.scrollable_content_region:
                getattr(options, f"action_page_{where}")()


class Dialog(DismissOnce, ModalScreen[ScreenResultType]):
    """A dialog. Escape, or a click beside it, closes it without an answer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    def on_click(self, event: events.Click) -> None:
        """Close the dialog on a click beside it."""
        if event.widget is self:
            self.action_leave()

    def action_leave(self) -> None:
        """Give no answer."""
        self.dismiss(None)


class QuitScreen(Dialog[QuitChoice]):
    """Asks whether the stack stops too."""

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
        """Answer, if the text is valid."""
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
            reward = parse_reward(text)
        except ValueError:
            return "this is not a number"
        if not self._low <= reward <= self._high:
            return f"it must lie between {self._low:g} and {self._high:g}"
        return ""
