"""What did it learn? A card of one step: its tokens, and the same questions before and after."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from hermes_tui.core.lessons import Lesson, moved
from hermes_tui.core.models import Token
from hermes_tui.core.recorded_turns import recorded_turns
from hermes_tui.core.sanitize import one_line, visible
from hermes_tui.core.state import ViewState
from hermes_tui.core.step_words import sentence
from hermes_tui.core.units import signed
from hermes_tui.tui.screens.dialogs import Dialog
from hermes_tui.tui.widgets.canary_text import canaries
from hermes_tui.tui.widgets.formatting import PART, line, literal

FAR_NATS = 0.2
"""A token that moved at least this far has the full tint; 0.2 nats are a fifth likelier."""

NEAR_NATS = 0.02
"""One that moved less has none."""

NUM_WORDS = 4
"""Tokens that are named with their figures: what the tint says is said without colour, too."""

UP, DOWN = ("$success", "underline"), ("$error", "strike")
"""Background, and a mark without colour, of tokens that became likelier and less likely."""


class LessonScreen(Dialog[bool]):
    """Shows a step; the answer is whether it is taken back.

    Args:
        lesson: the step.
        view: what is known.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("b", "take_back", show=False)]

    def __init__(self, lesson: Lesson, view: ViewState) -> None:
        super().__init__()
        self._lesson = lesson
        self._view = view

    def compose(self) -> ComposeResult:
        """Lay out the card."""
        lesson = self._lesson
        with Vertical(classes="dialog tall", id="lesson"), VerticalScroll():
            yield Static(literal(sentence(lesson.step), "bold"))
            yield Static(trained_tokens(lesson), id="lesson-tokens")
            yield Static(most_moved(lesson), id="lesson-moved")
            yield Static(id="lesson-answers")

    def on_mount(self) -> None:
        """Name the step, and how it is taken back."""
        step = self._lesson.step
        card = self.query_one("#lesson")
        made = self._view.version_name(step.policy_version)
        card.border_title = Content.styled(f"What {made} learned · step {step.step}", "bold")
        before = self._view.version_name(self._lesson.before)
        back = f"b takes it back: {before} serves again · " if self._can_go_back else ""
        card.border_subtitle = Content(f"{back}esc closes")
        self.query_one(VerticalScroll).focus()

    def on_resize(self) -> None:
        """Lay the answers out at the new width."""
        lesson = self._lesson
        text = self.query_one("#lesson-answers", Static)
        versions = (lesson.before, lesson.step.policy_version)
        width = text.content_size.width
        text.update(canaries(lesson.answers, width, versions, self._view.version_name))

    @property
    def _can_go_back(self) -> bool:
        return self._lesson.before in self._view.trainer.kept_versions

    def action_take_back(self) -> None:
        """Have the version before serve again."""
        if self._can_go_back:
            self.dismiss(True)


def trained_tokens(lesson: Lesson) -> Content:
    """Return what the step trained: what was asked, and the reply's tokens, tinted."""
    if not lesson.can_show:
        return Content.styled("what it trained is not kept any more", "dim")
    blocks: list[Content] = []
    for episode in lesson.episodes:
        asked = [one_line(turn.user_text) for turn in recorded_turns(episode)]
        score = signed(episode.row.reward)
        blocks.append(line(f"\N{BULLET} {' / '.join(asked)}{PART}scored {score}", "dim"))
        tokens = [token for completion in episode.completions for token in completion.tokens]
        blocks.append(Content("").join([_tinted(token) for token in tokens]))
    return Content("\n").join(blocks)


def _tinted(token: Token) -> Content:
    text = literal(token.text)
    by = moved(token)
    if by is None:
        return text.stylize("dim")
    if abs(by) < NEAR_NATS:
        return text
    tone, mark = UP if by > 0 else DOWN
    tint = round(min(abs(by) / FAR_NATS, 1.0) * 40) + 10
    return text.stylize(f"{mark} on {tone} {tint}%")


def most_moved(lesson: Lesson) -> Content:
    """Return the tokens that moved farthest, in words."""
    words = [
        f"{'▲' if (by := moved(token) or 0.0) > 0 else '▼'} “{visible(token.text)}” {signed(by)}"
        for token in lesson.most_moved[:NUM_WORDS]
    ]
    if not words:
        return Content()
    legend = "underlined became likelier, struck through less likely; the farthest: "
    return Content.assemble((legend, "dim"), literal(PART.join(words)))
