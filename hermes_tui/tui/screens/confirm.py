"""Dialogs that ask for a yes or no, or for a version to roll back to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Label, OptionList, Static
from textual.widgets.option_list import Option

from hermes_tui.core.models import StepRow
from hermes_tui.core.state import ViewState
from hermes_tui.core.units import signed
from hermes_tui.tui.screens.dialogs import PAGING, Dialog, PagedOptions
from hermes_tui.tui.widgets.formatting import literal


class ConfirmScreen(Dialog[bool]):
    """Asks whether to do something; no answer is a no.

    Args:
        question: one line.
        about: what will happen.
        yes: the word on the button that does it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "choose(False)", show=False),
        Binding("y", "choose(True)", show=False),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, about: str, yes: str) -> None:
        super().__init__()
        self._question, self._about, self._yes = question, about, yes

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical(classes="dialog"):
            yield Label(literal(self._question, "bold"))
            yield Static(literal(self._about))
            with Horizontal(classes="buttons"):
                yield Button(Content.assemble(("y ", "dim"), self._yes), id="yes", compact=True)
                yield Button(Content.assemble(("esc ", "dim"), "Cancel"), id="no", compact=True)

    def action_choose(self, choice: bool) -> None:
        """Answer."""
        self.dismiss(choice)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer by mouse or enter."""
        self.dismiss(event.button.id == "yes")


class VersionScreen(PagedOptions, Dialog[int | None]):
    """Asks for the kept version to roll back to."""

    BINDINGS: ClassVar[list[BindingType]] = [*PAGING]

    def __init__(self, view: ViewState) -> None:
        super().__init__()
        self._current = view.trainer.policy_version
        self._current_name = view.version_name(self._current)
        self._versions = [v for v in view.trainer.kept_versions if v != self._current][::-1]
        self._made_by = {step.policy_version: step for step in view.steps}

    def compose(self) -> ComposeResult:
        """Lay out the versions, newest first."""
        with Vertical(classes="dialog"):
            yield Label(Content.styled(f"Roll back · {self._current_name} serves now", "bold"))
            if not self._versions:
                yield Static(Content.styled("no other version is kept", "dim"))
            else:
                yield OptionList(*self._options(), id="versions", compact=True)
            text = "its weights and baselines serve again, under a new number"
            yield Static(Content.styled(f"{text}\nenter rolls back · escape cancels", "dim"))

    def _options(self) -> list[Option]:
        return [
            Option(describe_version(version, self._made_by.get(version)), id=str(version))
            for version in self._versions
        ]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer."""
        self.dismiss(int(event.option.id or 0))


def describe_version(version: int, step: StepRow | None) -> Content:
    """Return a version's description: the step that made it, and its reward."""
    about = "the model as training found it" if version == 0 else ""
    if step:
        back = step.values.get("rolled_back_to")
        reward = step.values.get("reward_mean")
        about = (
            f"version {back:.0f} again"
            if back is not None
            else f"step {step.step} · reward {signed(reward)}" + f" · {_plural(step.episode_ids)}"
        )
    return Content.assemble((f"v{version:<5}", "bold"), (about, "dim"))


def _plural(episodes: Sequence[str]) -> str:
    return f"{len(episodes)} episode" + ("" if len(episodes) == 1 else "s")
