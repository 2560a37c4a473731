"""The lesson: the last step's numbers, how they ran, and what the next step waits for."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from hermes_tui.actions import bindings
from hermes_tui.core.rows import StepRow, TrainerRow
from hermes_tui.core.state import ViewState
from hermes_tui.messages import TrainingHeld
from hermes_tui.widgets.panes import Acts, titled
from hermes_tui.widgets.text import foreign, number, signed, sparkline

SPARKS = 24
"""Steps that a sparkline shows."""


class TrainingPane(Acts, VerticalScroll, can_focus=True):
    """Numbers of the last step."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("training", "")]

    def __init__(self) -> None:
        super().__init__(Static(id="training-text"), id="training")

    def on_mount(self) -> None:
        """Show the empty pane."""
        titled(self, "training")

    def sync(self, view: ViewState) -> None:
        """Show the trainer as it is now."""
        text = self.query_one("#training-text", Static)
        content = describe(view)
        if text.content != content:
            text.update(content)
        last = view.steps[-1] if view.steps else None
        titled(self, "training", f"step {last.step} made v{last.policy_version}" if last else "")

    def do_training_hold(self) -> None:
        """Hold training, or let it go on."""
        self.post_message(TrainingHeld())


def describe(view: ViewState) -> Content:
    """Return the pane's text."""
    if not view.info.training:
        return Content.styled("training is off: [training] enabled = false", "dim")
    lines = [Content.assemble(_name("next"), foreign(waits_for(view.trainer)))]
    if not view.steps:
        lines.append(Content.styled("no step yet: score an episode and one begins", "dim"))
        return Content("\n").join(lines)
    lines += _last_step(view.steps[-1])
    lines += _courses(view.steps[-SPARKS:])
    return Content("\n").join(lines)


def waits_for(trainer: TrainerRow) -> str:
    """Return in words what the next step waits for."""
    if trainer.state == "paused":
        return f"held: {trainer.reason}" if trainer.reason else "held; h goes on"
    if trainer.busy:
        return f"{trainer.state}: {trainer.reason}" if trainer.reason else trainer.state
    counted = f"{trainer.num_scored} of {trainer.batch_size} scored"
    return f"{counted} · the learner is not there" if trainer.learner_lost else counted


_COLUMNS = ((8, 8), (9, 7), (6, 6))
"""Cells of name and value in each column; together they fit the pane at 120 columns."""


def _name(word: str) -> tuple[str, str]:
    return f"{word:<{_COLUMNS[0][0]}}", "dim"


def _cells(*pairs: tuple[str, str]) -> Content:
    """Return one line of names and values in columns."""
    parts: list[str | tuple[str, str]] = []
    for (word, value), (name_cells, value_cells) in zip(pairs, _COLUMNS, strict=True):
        parts += [(f"{word:<{name_cells}}", "dim"), f"{value:<{value_cells}}"]
    return Content.assemble(*parts)


def _last_step(step: StepRow) -> list[Content]:
    value = step.values.get
    before, after = value("logprob_before"), value("logprob_after")
    moved = after - before if before is not None and after is not None else None
    tone = "$text-success" if (moved or 0) > 0 else "$text-error"
    arrow = "" if moved is None else f"  {'▲' if moved > 0 else '▼'} {signed(moved, 3)}"
    return [
        Content.assemble(
            _name("logprob"), f"{signed(before, 3)} → {signed(after, 3)}", (arrow, tone)
        ),
        _cells(
            ("reward", signed(value("reward_mean"))),
            ("baseline", signed(value("baseline"))),
            ("adv", signed(value("advantage_mean"))),
        ),
        _cells(
            ("loss", number(value("loss"))),
            ("grad", number(value("grad_norm"))),
            ("kl", number(value("kl_behavior"), 2)),
        ),
        _cells(
            ("gap", number(value("gap_mean"), 2)),
            ("entropy", number(value("entropy"))),
            ("stale", number(value("staleness_max"))),
        ),
        _cells(
            ("tokens", number(value("num_trained_tokens"), 6)),
            ("took", f"{number(value('seconds.total'), 2)} s"),
            ("lag", f"{number(value('score_to_weights_s'), 2)} s"),
        ),
    ]


def _courses(steps: list[StepRow]) -> list[Content]:
    def values(name: str) -> list[float]:
        return [step.values.get(name, float("nan")) for step in steps]

    # From -1 to 1, the usual range, so that a course of +1 only is seen to be at the top.
    rewards = sparkline(values("reward_mean"), -1.0, 1.0)
    return [
        Content.assemble(_name("rewards"), (rewards, "$text-accent")),
        Content.assemble(_name("entropy"), (sparkline(values("entropy")), "$text-accent")),
    ]
