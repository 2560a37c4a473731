"""Training: plots over the steps, the numbers of the last step, what comes next, the canary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from hermes_tui.core.models import StepRow
from hermes_tui.core.state import ViewState
from hermes_tui.tui.keys import Keys, bindings
from hermes_tui.tui.messages import HoldToggled, RollbackRequested
from hermes_tui.tui.widgets.base import ActionOwner, ImmediateScroll, titled
from hermes_tui.tui.widgets.plot import Points, TrendPlot
from hermes_tui.tui.widgets.training_text import (
    NO_STEP,
    canaries,
    describe,
    next_step,
    numbers,
    trained_steps,
)

TRENDS: tuple[tuple[str, str, float | None, float | None], ...] = (
    ("reward", "reward_mean", -1.0, 1.0),
    ("loss", "loss", None, None),
    ("kl", "kl_behavior", 0.0, None),
    ("entropy", "entropy", 0.0, None),
    ("gap", "gap_mean", 0.0, None),
    ("stale", "staleness_max", 0.0, None),
)
"""For each plot: title, name of the number in a step's row, and the least range to show."""


class TrainingPane(ActionOwner, ImmediateScroll, VerticalScroll, can_focus=True):
    """A summary beside the other panes; on a page of its own also plots, numbers and canary."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("training")]

    def __init__(self, keys: Keys) -> None:
        super().__init__(id="training")
        self._keys = keys
        self._view = ViewState()

    def compose(self) -> ComposeResult:
        """Lay out the pane."""
        yield Static(id="training-text")
        with Vertical(id="training-page"):
            yield Static(id="training-next")
            with Grid(id="trends"):
                for title, _, low, high in TRENDS:
                    yield TrendPlot(title, "base" if title == "reward" else "", low, high)
            yield Static(id="training-numbers")
            yield Static(id="canaries")

    def on_mount(self) -> None:
        """Show the empty pane."""
        titled(self, "training")

    def on_resize(self, _: events.Resize) -> None:
        """Lay out again at the new size."""
        self.sync(self._view)
        self._count_hidden()

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

    def sync(self, view: ViewState) -> None:
        """Show the trainer as it is now."""
        self._view = view
        hold = self._keys.label("training_hold")
        steps = trained_steps(view)
        self._show("training-text", describe(view, hold))
        if view.info.training:
            width = max(self.scrollable_content_region.width, 1)
            self._show("training-next", next_step(view, hold))
            self._show("training-numbers", self._last(steps, width))
            self._show("canaries", canaries(view.canaries, width))
            self._plot(steps)
        else:
            self._show("training-next", describe(view, hold))
            self._show("training-numbers", Content())
            self._show("canaries", Content())
        self.query_one("#trends").display = bool(steps)
        last = steps[-1] if steps else None
        titled(self, "training", f"step {last.step} made v{last.policy_version}" if last else "")

    def _last(self, steps: Sequence[StepRow], width: int) -> Content:
        if not steps:
            return NO_STEP
        return numbers(steps[-1], width)

    def _plot(self, steps: Sequence[StepRow]) -> None:
        for plot, (title, name, _, _) in zip(self.query(TrendPlot), TRENDS, strict=True):
            beside = _points(steps, "baseline") if title == "reward" else ()
            plot.show(_points(steps, name), beside)

    def _show(self, static_id: str, content: Content) -> None:
        text = self.query_one(f"#{static_id}", Static)
        if text.content != content:
            text.update(content)

    def do_training_hold(self) -> None:
        """Pause or resume training."""
        self.post_message(HoldToggled())

    def do_training_rollback(self) -> None:
        """Choose a version to go back to."""
        self.post_message(RollbackRequested())


def _points(steps: Sequence[StepRow], name: str) -> Points:
    return [(step.step, step.values[name]) for step in steps if name in step.values]
