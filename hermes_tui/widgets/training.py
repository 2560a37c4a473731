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
        steps = f"step {view.steps[-1].step} made v{view.steps[-1].policy_version}"
        titled(self, "training", steps if view.steps else "")

    def do_training_hold(self) -> None:
        """Hold training, or let it go on."""
        self.post_message(TrainingHeld())


def describe(view: ViewState) -> Content:
    """Return the pane's text."""
    if not view.info.training:
        return Content.styled("training is off: [training] enabled = false", "$text-muted")
    lines = [Content.assemble(_name("next"), foreign(waits_for(view.trainer)))]
    if not view.steps:
        lines.append(Content.styled("no step yet: score an episode and one begins", "$text-muted"))
        return Content("\n").join(lines)
    lines += _last_step(view.steps[-1])
    lines += _courses(view.steps[-SPARKS:])
    return Content("\n").join(lines)


def waits_for(trainer: TrainerRow) -> str:
    """Return in words what the next step waits for."""
    if trainer.state == "paused":
        return f"held: {trainer.reason}" if trainer.reason else "held; h goes on"
    if trainer.step is not None:
        return f"step {trainer.step} runs"
    counted = f"{trainer.num_scored} of {trainer.batch_size} scored"
    return f"{counted} · {trainer.reason}" if trainer.reason else counted


def _name(word: str) -> tuple[str, str]:
    return f"{word:<9}", "$text-muted"


def _pair(word: str, value: str, width: int = 8) -> Content:
    return Content.assemble((f"{word} ", "$text-muted"), f"{value:<{width}}")


def _last_step(step: StepRow) -> list[Content]:
    value = step.values.get
    before, after = value("logprob_before"), value("logprob_after")
    moved = after - before if before is not None and after is not None else None
    tone = "$text-success" if (moved or 0) > 0 else "$text-error"
    arrow = "" if moved is None else f"  {'▲' if moved > 0 else '▼'} {signed(moved, 3)}"
    total, score = value("seconds.total"), value("score_to_weights_s")
    return [
        Content.assemble(
            _name("reward"),
            f"{signed(value('reward_mean')):<8}",
            _pair("baseline", signed(value("baseline"))),
            _pair("advantage", signed(value("advantage_mean"))),
        ),
        Content.assemble(
            _name("logprob"), f"{signed(before, 3)} → {signed(after, 3)}", (arrow, tone)
        ),
        Content.assemble(
            _name("loss"),
            f"{number(value('loss')):<8}",
            _pair("grad", number(value("grad_norm"))),
            _pair("kl", number(value("kl_behavior"))),
        ),
        Content.assemble(
            _name("gap"),
            f"{number(value('gap_mean'), 2):<8}",
            _pair("entropy", number(value("entropy"))),
            _pair("stale", number(value("staleness_max"))),
        ),
        Content.assemble(
            _name("tokens"),
            f"{number(value('num_trained_tokens'), 6):<8}",
            _pair("took", f"{number(total)} s"),
            _pair("score → weights", f"{number(score)} s"),
        ),
    ]


def _courses(steps: list[StepRow]) -> list[Content]:
    def course(word: str, name: str) -> Content:
        values = [step.values.get(name, float("nan")) for step in steps]
        return Content.assemble(_name(word), (sparkline(values), "$text-accent"))

    return [course("rewards", "reward_mean"), course("entropies", "entropy")]
