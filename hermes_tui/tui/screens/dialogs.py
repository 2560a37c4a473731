"""Small questions over the main screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widgets import Button, Input, Label, OptionList, Static

from hermes_tui.core.models import EpisodeRow
from hermes_tui.core.program import PROGRAM
from hermes_tui.core.reward_text import parse_reward, reward_text
from hermes_tui.core.sanitize import one_line
from hermes_tui.tui.widgets.formatting import literal
from hermes_tui.tui.widgets.inputs import Field
from hermes_tui_training.api.protocol import MAX_FEEDBACK_CHARS

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


STOP_KEY = "ctrl+x"
"""Stops the stack in the quit dialog. Enter never does, nor a letter: they may be a message's."""


class QuitScreen(Dialog[QuitChoice]):
    """Asks whether the stack stops too. Enter detaches; letters go on in the prompt below.

    Args:
        command: what opens the screen again.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(STOP_KEY, "choose('stop')", show=False),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, command: str = PROGRAM) -> None:
        super().__init__()
        self._command = command

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        about = (
            f"The stack can go on without this screen: `{one_line(self._command)}` opens it "
            "again. Or it stops now, with everything that runs."
        )
        with Vertical(classes="dialog"):
            yield Label(Content.styled("Leave", "bold"))
            yield Static(literal(about))
            with Horizontal(classes="buttons"):
                yield Button(_choice("enter", "Detach"), id="detach", compact=True)
                yield Button(_choice("esc", "Cancel"), id="cancel", compact=True)
                stop = Button(_choice(STOP_KEY, "Stop everything"), id="stop", compact=True)
                stop.can_focus = False
                yield stop

    def on_mount(self) -> None:
        """Have enter detach."""
        self.query_one("#detach").focus()

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

    REPLACES: ClassVar[bool] = True
    """Whether what is typed replaces the text that is there."""

    def __init__(self, question: str, value: str = "", hint: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = one_line(value)
        self._hint = hint

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical(classes="dialog"):
            yield Label(literal(self._question, "bold"))
            # What there is may go on, so it is not selected: typing would replace it.
            yield Field(value=self._value, compact=True, select_on_focus=self.REPLACES)
            yield Static(literal(self._hint, "dim"), id="ask-hint")

    def on_input_changed(self, _: Input.Changed) -> None:
        """Show the hint again: what was wrong may be mended."""
        self.query_one("#ask-hint", Static).update(literal(self._hint, "dim"))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a person thinks of an episode."""

    reward: float
    """The number; within the range."""
    feedback: str | None
    """Why, in a sentence; empty takes away the one there was, None when there was none."""


class RewardScreen(AskScreen):
    """Asks for an exact reward and, after it on the same line, for a sentence that says why.

    Args:
        reward_range: lowest and highest reward.
        name: what is judged.
        episode: the episode; its reward and its sentence can be changed.
    """

    REPLACES = False

    def __init__(
        self,
        reward_range: tuple[float, float],
        name: str = "exactly",
        episode: EpisodeRow | None = None,
    ) -> None:
        self._range = low, high = reward_range
        self._feedback = episode.feedback if episode else ""
        self._given = given = episode.reward if episode else None
        value = "" if given is None else f"{reward_text(given)} {self._feedback}"
        hint = f"a number between {low:g} and {high:g}; then why, if you like: 0.35 too long"
        hint += "" if given is None else "\nan empty line takes the score back"
        super().__init__(f"Score {name}", value, hint)
        if self._value:
            self._value += " "  # a sentence may be typed behind

    def problem(self, text: str) -> str:
        """Return why a line is no reward; empty when it is one."""
        low, high = self._range
        number, _, why = text.strip().partition(" ")
        if self._given is not None and not number:
            return ""
        try:
            reward = parse_reward(number)
        except ValueError:
            return f"“{number}” is not a number: first the number, then why"
        if not low <= reward <= high:
            return f"it must lie between {low:g} and {high:g}"
        over = len(why.strip()) - MAX_FEEDBACK_CHARS
        return f"the sentence is {over} characters too long" if over > 0 else ""

    def judged(self, text: str) -> Judged | None:
        """Return what a line without a problem says; None takes the score back."""
        if not text.strip():
            return None
        number, _, why = text.strip().partition(" ")
        said = why.strip()
        # The sentence there was stood in the field: without one it was taken away.
        return Judged(
            reward=parse_reward(number), feedback=said if said or self._feedback else None
        )
