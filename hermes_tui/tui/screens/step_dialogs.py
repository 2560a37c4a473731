"""Dialogs about training steps: a step's episodes, and the versions whose answers to compare."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, OptionList, Static
from textual.widgets.option_list import Option

from hermes_tui.core.models import EpisodeRow, StepRow
from hermes_tui.core.state import ViewState
from hermes_tui.core.step_words import sentence
from hermes_tui.core.units import signed
from hermes_tui.tui.screens.confirm import describe_version
from hermes_tui.tui.screens.dialogs import PAGING, Dialog, PagedOptions
from hermes_tui.tui.widgets.formatting import line


class EpisodesScreen(PagedOptions, Dialog[EpisodeRow | None]):
    """Lists the episodes that a step trained; the answer is the one to open.

    Args:
        view: what is known.
        step: the step.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*PAGING]

    def __init__(self, view: ViewState, step: StepRow) -> None:
        super().__init__()
        self._step = step
        known = [view.episode(episode_id) for episode_id in step.episode_ids]
        self._rows = [row for row in known if row is not None]
        self._names = [view.episode_name(row) for row in self._rows]

    def compose(self) -> ComposeResult:
        """Lay out the episodes."""
        with Vertical(classes="dialog"):
            yield Label(line(f"Step {self._step.step} · {sentence(self._step)}", "bold"))
            if self._rows:
                yield OptionList(*self._options(), id="versions", compact=True)
            gone = len(self._step.episode_ids) - len(self._rows)
            about = f"{gone} of its episodes are not known here any more\n" if gone else ""
            yield Static(Content.styled(f"{about}enter opens one · escape closes", "dim"))

    def _options(self) -> list[Option]:
        return [
            Option(
                Content.assemble((f"{signed(row.reward):<7}", "bold"), line(name)), id=str(index)
            )
            for index, (row, name) in enumerate(zip(self._rows, self._names, strict=True))
        ]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer."""
        self.dismiss(self._rows[event.option_index])


class AnswersScreen(PagedOptions, Dialog[tuple[int, int] | None]):
    """Asks for two versions, one after the other; the answer is both, the older first.

    Args:
        view: what is known.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*PAGING]

    def __init__(self, view: ViewState) -> None:
        super().__init__()
        self._first: int | None = None
        self._made_by = {step.policy_version: step for step in view.steps}
        served = view.trainer.policy_version
        versions = {0, *self._made_by, *(row.policy_version for row in view.canaries)}
        self._versions = sorted(versions | ({served} if served is not None else set()))[::-1]

    def compose(self) -> ComposeResult:
        """Lay out the versions, newest first."""
        with Vertical(classes="dialog"):
            yield Label(id="answers-ask")
            yield OptionList(
                *(
                    Option(describe_version(version, self._made_by.get(version)), id=str(version))
                    for version in self._versions
                ),
                id="versions",
                compact=True,
            )
            yield Static(Content.styled("enter chooses · escape cancels", "dim"))

    def on_mount(self) -> None:
        """Ask for the first."""
        self._ask("Compare the answers of which version")

    def _ask(self, text: str) -> None:
        self.query_one("#answers-ask", Label).update(Content.styled(text, "bold"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the first version, then answer."""
        version = self._versions[event.option_index]
        if self._first is None:
            self._first = version
            self._ask(f"Compare the answers of v{version} with which version")
        elif version != self._first:
            older, newer = sorted((self._first, version))
            self.dismiss((older, newer))
