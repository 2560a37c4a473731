"""Training: what comes next, what a step did, plots over the steps, the canary's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from hermes_tui.core.models import StepRow
from hermes_tui.core.state import ViewState
from hermes_tui.tui.keys import Keys, bindings
from hermes_tui.tui.messages import (
    AnswersRequested,
    HoldToggled,
    RollbackRequested,
    StepPicked,
)
from hermes_tui.tui.widgets.base import ActionOwner, ImmediateScroll, titled
from hermes_tui.tui.widgets.canary_text import canaries
from hermes_tui.tui.widgets.plot import Points, TrendPlot
from hermes_tui.tui.widgets.training_figures import BY_NAME, meaning
from hermes_tui.tui.widgets.training_text import (
    NO_STEP,
    describe,
    flat,
    next_step,
    says_something,
    step_rows,
    step_text,
    trained_steps,
)

TRENDS: tuple[tuple[str, float | None, float | None], ...] = (
    ("reward_mean", -1.0, 1.0),
    ("moved_nats", 0.0, None),
    ("entropy", 0.0, None),
    ("reply_length_mean", 0.0, None),
    ("reply_alike_frac", 0.0, 1.0),
    ("reference_kl", 0.0, None),
)
"""For each plot: the number's name in a step's row, and the least range to show."""

MAX_COLUMNS = 3
"""Plots beside each other."""


class TrainingPane(ActionOwner, ImmediateScroll, VerticalScroll, can_focus=True):
    """A summary beside the other panes; on a page of its own also plots, figures and canary.

    A cursor goes over the figures; what the one beneath it means stands at the foot.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("training"),
        Binding("left", "move(-1)", show=False),
        Binding("right", "move(1)", show=False),
        Binding("up", "row(-1)", show=False),
        Binding("down", "row(1)", show=False),
    ]

    def __init__(self, keys: Keys) -> None:
        super().__init__(id="training")
        self._in_force = keys
        self._view = ViewState()
        self._wanted = "step"
        self._chosen: int | None = None
        """Number of the step that is shown; None shows the newest."""
        self._rows: list[tuple[str, list[str]]] = []
        """For each row of the page the Static it is in, and what the cursor can be on."""

    def compose(self) -> ComposeResult:
        """Lay out the pane."""
        yield Static(id="training-text")
        with Vertical(id="training-page"):
            yield Static(id="training-next")
            yield Static(id="training-numbers")
            with Grid(id="trends"):
                for name, low, high in TRENDS:
                    second = "baseline" if name == "reward_mean" else ""
                    yield TrendPlot(BY_NAME[name].word, second, low, high)
            yield Static(id="training-flat")
            yield Static(id="canaries")
        yield Static(id="training-words")

    def on_mount(self) -> None:
        """Show the empty pane."""
        titled(self, "training")

    def on_resize(self, _: events.Resize) -> None:
        """Lay out again at the new size."""
        self.sync(self._view)
        self._count_hidden()

    def watch_has_focus(self, has_focus: bool) -> None:
        """Show the cursor, or hide it."""
        super().watch_has_focus(has_focus)
        if self.is_mounted:
            self.sync(self._view)

    def watch_virtual_size(self) -> None:
        """Count the lines out of sight."""
        self._count_hidden()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Count the lines out of sight."""
        super().watch_scroll_y(old_value, new_value)
        self._count_hidden()

    def _count_hidden(self) -> None:
        """Show at the foot how many lines are out of sight: nothing else shows that there are."""
        num_hidden = round(self.max_scroll_y - self.scroll_y)
        self.border_subtitle = (
            f"▼ {num_hidden} more line{'' if num_hidden == 1 else 's'}" if num_hidden > 0 else ""
        )

    # What is shown -------------------------------------------------------------------------

    def sync(self, view: ViewState) -> None:
        """Show the trainer as it is now."""
        self._view = view
        hold = self._in_force.label("training_hold")
        steps = trained_steps(view)
        self._show("training-text", describe(view, hold))
        self._page(steps, hold)
        version = view.trainer.policy_version
        serves = f"{view.version_name(version)} serves" if version is not None else ""
        titled(self, "training", serves)

    def _page(self, steps: Sequence[StepRow], hold: str) -> None:
        view, at = self._view, self.at if self.has_focus else ""
        width = max(self.scrollable_content_region.width, 1)
        said = next_step(view, hold, at)
        self._show("training-next", Content("\n").join(text for _, text in said))
        self._rows = [("training-next", [name]) for name, _ in said]
        if step := self._step(steps):
            self._show("training-numbers", step_text(step, width, at))
            self._rows += [("training-numbers", names) for names in step_rows(step, width)]
        else:
            self._show("training-numbers", NO_STEP)
        flat_line = flat(steps, [BY_NAME[name] for name in self._plot(steps)], at)
        self._show("training-flat", flat_line)
        self.query_one("#training-flat").display = bool(flat_line)
        self._rows += [("training-flat", ["flat"])] if flat_line else []
        answers = canaries(view.canaries, width, view.canary_choice, view.version_name)
        self._show("canaries", answers)
        self._rows.append(("canaries", ["canaries"]))
        words = meaning(self.at) if self.has_focus else ""
        self._show("training-words", Content.styled(words, "$text-accent"))

    def _step(self, steps: Sequence[StepRow]) -> StepRow | None:
        """Return the step that is shown, or None before the first."""
        chosen = (step for step in steps if step.step == self._chosen)
        return next(chosen, steps[-1] if steps else None)

    def _plot(self, steps: Sequence[StepRow]) -> list[str]:
        """Draw the plots that say something; return the names of the others' figures."""
        same: list[str] = []
        num_shown = 0
        for plot, (name, _, _) in zip(self.query(TrendPlot), TRENDS, strict=True):
            points = _points(steps, name)
            plot.display = says_something([value for _, value in points])
            if plot.display:
                num_shown += 1
                plot.show(points, _points(steps, "baseline") if name == "reward_mean" else ())
            elif points:
                same.append(name)
        trends = self.query_one("#trends")
        trends.display = num_shown > 0
        trends.set_class(num_shown > MAX_COLUMNS, "-two-rows")
        columns = min(num_shown, MAX_COLUMNS)
        if num_shown and trends.styles.grid_size_columns != columns:
            trends.styles.grid_size_columns = columns
        return same

    def _show(self, static_id: str, content: Content) -> None:
        text = self.query_one(f"#{static_id}", Static)
        if text.content != content:
            text.update(content)

    # The cursor ----------------------------------------------------------------------------

    @property
    def at(self) -> str:
        """Name of the line or figure that the cursor is on; the first while its own is gone."""
        names = [name for _, row in self._rows for name in row]
        return self._wanted if self._wanted in names or not names else names[0]

    def _place(self) -> tuple[int, int]:
        """Return row and column of the cursor."""
        for number, (_, names) in enumerate(self._rows):
            if self.at in names:
                return number, names.index(self.at)
        return 0, 0

    def action_move(self, by: int) -> None:
        """Move the cursor to the figure before or after."""
        names = [name for _, row in self._rows for name in row]
        index = names.index(self.at) if self.at in names else 0
        self._stand(names[min(max(index + by, 0), len(names) - 1)])

    def action_row(self, by: int) -> None:
        """Move the cursor up or down; below the last figure the page scrolls on."""
        row, column = self._place()
        if not 0 <= row + by < len(self._rows):
            self.scroll_to(y=self.scroll_y + by)
            return
        names = self._rows[row + by][1]
        self._stand(names[min(column, len(names) - 1)])

    def _stand(self, name: str) -> None:
        self._wanted = name
        self.sync(self._view)
        row, _ = self._place()
        static_id = self._rows[row][0]
        first = next(i for i, (other, _) in enumerate(self._rows) if other == static_id)
        top = self.query_one(f"#{static_id}").virtual_region.y + row - first
        height = max(self.scrollable_content_region.height - 1, 1)  # the words take a line
        if not row or top < self.scroll_y:
            self.scroll_to(y=top if row else 0)
        elif top >= self.scroll_y + height:
            self.scroll_to(y=top - height + 1)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on the figure under the mouse."""
        if name := event.style.meta.get("figure"):
            self._stand(name)

    # Actions -------------------------------------------------------------------------------

    def do_training_hold(self) -> None:
        """Pause or resume training."""
        self.post_message(HoldToggled())

    def do_training_rollback(self) -> None:
        """Choose a version to go back to."""
        self.post_message(RollbackRequested())

    def do_training_answers(self) -> None:
        """Choose the two versions whose answers are compared."""
        self.post_message(AnswersRequested())

    def do_training_episodes(self) -> None:
        """List the episodes of the shown step."""
        if step := self._step(trained_steps(self._view)):
            self.post_message(StepPicked(step.step))

    def show_step(self, number: int) -> None:
        """Show a step by its number; one that trained nothing has no figures."""
        self._chosen = number
        self.sync(self._view)

    def do_training_step_before(self) -> None:
        """Show the step before."""
        self._go_by(-1)

    def do_training_step_after(self) -> None:
        """Show the step after."""
        self._go_by(1)

    def _go_by(self, by: int) -> None:
        steps = trained_steps(self._view)
        if step := self._step(steps):
            index = min(max(steps.index(step) + by, 0), len(steps) - 1)
            self._chosen = None if index == len(steps) - 1 else steps[index].step
            self.sync(self._view)


def _points(steps: Sequence[StepRow], name: str) -> Points:
    return [(step.step, step.values[name]) for step in steps if name in step.values]
