"""Text and numbers of the training pane."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.style import Style

from hermes_tui.core.models import StepRow, TrainerRow
from hermes_tui.core.reasons import reason_text
from hermes_tui.core.sanitize import one_line
from hermes_tui.core.state import ViewState
from hermes_tui.core.step_words import sentence
from hermes_tui.core.units import signed
from hermes_tui.tui.widgets.formatting import (
    change,
    line,
    literal,
    number,
    sparkline,
)
from hermes_tui.tui.widgets.training_figures import FIGURES, Figure, figures_of
from hermes_tui_common.disk import PHRASE

SPARKS = 24
"""Newest steps in a sparkline."""

NO_STEP = Content.styled("no step is done yet: score an episode", "dim")


def trained_steps(view: ViewState) -> list[StepRow]:
    """Return the steps that trained something: all but rollbacks, oldest first."""
    return [step for step in view.steps if "loss" in step.values]


def describe(view: ViewState, hold: str = "") -> Content:
    """Return a summary: what the next step waits for, and what the last step did.

    Args:
        view: what is known.
        hold: the key that pauses and resumes training; empty without one.
    """
    if not view.info.training:
        return Content.styled(
            "training is off: with training.enabled = true the model learns from you", "dim"
        )
    lines = [Content.assemble(_name("next"), literal(waits_for(view.trainer, hold)))]
    lines += [Content.assemble(_name("lost"), text) for text in lost(view.trainer)]
    steps = trained_steps(view)
    lines += _last_step(view, steps[-1]) if steps else [NO_STEP]
    lines += [_name(name) + text for name, text in _concerns(view)]
    lines += _trends(steps[-SPARKS:])
    return Content("\n").join(lines)


def waits_for(trainer: TrainerRow, hold: str = "") -> str:
    """Return what the next step waits for; while paused, with the key that resumes."""
    reason = one_line(trainer.reason)
    if trainer.state == "paused":
        key = f"; {hold} goes on" if hold else ""
        return f"held: {reason}{key}" if reason else f"held{key}"
    if trainer.busy:
        return f"{trainer.state}: {reason}" if reason else trainer.state
    if reason.startswith(PHRASE):
        return f"{trainer.state}: {reason}"
    counted = f"{trainer.num_scored} of {trainer.batch_size} scored"
    if trainer.learner_lost:
        return f"{counted} · the learner is not there"
    return f"{counted} · {one_line(trainer.problem)}" if trainer.problem else counted


def next_step(view: ViewState, hold: str = "", at: str = "") -> list[tuple[str, Content]]:
    """Return what the next step waits for, warnings, and what is not trained and why.

    Args:
        view: what is known.
        hold: the key that pauses and resumes training; empty without one.
        at: the name of the line that the cursor is on.

    Returns: name and text of each line.
    """
    episodes = [row for rows in view.episodes.values() for row in rows.values()]
    words = waits_for(view.trainer, hold)
    if not view.trainer.busy and view.trainer.state != "paused":
        ages = [row.staleness for row in episodes if row.state == "scored" and row.staleness]
        if view.trainer.num_scored:
            words += f"; the oldest is {max(ages, default=0)} versions old"
        open_ones = sum(row.state in ("open", "ended") for row in episodes)
        words += f"; {open_ones} without a score" if open_ones else ""
    said = [("next", literal(words))]
    if view.steps and (back := view.steps[-1].values.get("rolled_back_to")) is not None:
        made = view.steps[-1].policy_version
        said.append(("rolled", Content(f"v{made} serves: it is v{back:.0f} again")))
    said += [("lost", text) for text in lost(view.trainer)]
    said += _concerns(view)
    said += [("topics", topics)] if (topics := topics_text(view)) else []
    said.append(("skipped", untrained(view)))
    return [(name, Content.assemble(_name(name, at), text)) for name, text in said]


def lost(trainer: TrainerRow) -> list[Content]:
    """Return what was found damaged or lost, a line each."""
    return [line(f"▲ {notice}", "$text-warning") for notice in trainer.notices]


def topics_text(view: ViewState) -> Content:
    """Return the topics with their sessions, and what is expected in each; empty for only one."""
    counts, expected = view.topics(), view.trainer.baselines
    if len(counts) < 2 and not expected:
        return Content()
    words = [
        f"{one_line(topic)} {count}"
        + (f" (expected {signed(expected[topic])})" if topic in expected else "")
        for topic, count in counts.items()
    ]
    return literal(" · ".join(words))


def _concerns(view: ViewState) -> list[tuple[str, Content]]:
    """Return why the last scores moved nothing, and what the watch says, with each line's name."""
    said = []
    if view.unmoved:
        said.append(("still", line(f"the last scores moved nothing: {view.unmoved}")))
    for step in trained_steps(view)[-1:]:
        said += [("careful", line(f"▲ {text}", "$text-warning")) for text in step.warnings]
    return said


def untrained(view: ViewState) -> Content:
    """Return how many completions and episodes were not trained, by reason, most first."""
    counts = dict(view.trainer.untrained)
    for rows in view.episodes.values():
        for row in rows.values():
            # The trainer's counts already contain the reasons of single completions.
            if row.dropped_reason and row.dropped_reason not in view.trainer.untrained:
                counts[row.dropped_reason] = counts.get(row.dropped_reason, 0) + 1
    if not counts:
        return Content.styled("nothing: all that was said may train", "dim")
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    text = " · ".join(f"{count}× {reason_text(reason)}" for reason, count in ordered)
    return line(f"✗ {text}")


def step_rows(step: StepRow, width: int) -> list[list[str]]:
    """Return the names of a step's lines and figures, row by row, as ``step_text`` draws them."""
    columns = max(width // FIGURE_CELLS, 1)
    names = [figure.name for figure in figures_of(step)]
    rows = [names[begin : begin + columns] for begin in range(0, len(names), columns)]
    return [["step"], ["logprob"], *rows]


def step_text(step: StepRow, width: int, at: str = "") -> Content:
    """Return what a step did: a sentence, then its figures in as many columns as fit.

    Args:
        step: the step.
        width: cells of a line.
        at: the name of the line or figure that the cursor is on.
    """
    num = len(step.episode_ids)
    about = (
        f"{num} episode{'' if num == 1 else 's'}, reward {signed(step.values.get('reward_mean'))}"
    )
    first = Content.assemble(
        _name(f"step {step.step}", "", at == "step", "step"),
        literal(sentence(step), "bold"),
        (f" · {about}", "dim"),
    )
    moved = change(step.values.get("logprob_before"), step.values.get("logprob_after"))
    rows = [first.truncate(width, ellipsis=True), Content.assemble(_name("logprob", at), moved)]
    by_name = {figure.name: figure for figure in FIGURES}
    for names in step_rows(step, width)[2:]:
        cells = [_figure(by_name[name], step.values[name], name == at) for name in names]
        rows.append(Content("").join(cells))
    return Content("\n").join(rows)


FIGURE_CELLS = 19
"""Cells of a figure in the table: a word, its value and a gap."""


def _figure(figure: Figure, value: float, under_cursor: bool) -> Content:
    text = f"{figure.word:<9}{figure.write(value)}"
    cell = (
        Content.styled(text, "reverse")
        if under_cursor
        else Content.assemble((text[:9], "dim"), text[9:])
    )
    cell = cell.stylize(Style.from_meta({"figure": figure.name}))
    return cell + Content(" " * max(FIGURE_CELLS - cell.cell_length, 1))


def flat(steps: Sequence[StepRow], figures: Sequence[Figure], at: str = "") -> Content:
    """Return the figures that were the same in all steps, in one line; empty for none."""
    if len(steps) < 2 or not figures:
        return Content()
    last = steps[-1].values
    same = " · ".join(f"{figure.word} {figure.write(last.get(figure.name))}" for figure in figures)
    return Content.assemble(_name("flat", at), f"{same}: the same in all {len(steps)} steps")


_NAME = 8
"""Cells of the word before a line."""


def _name(word: str, at: str = "", under_cursor: bool = False, name: str = "") -> Content:
    marked = under_cursor or word == at
    text = Content.styled(word, "reverse" if marked else "dim")
    text = text.stylize(Style.from_meta({"figure": name or word}))
    return text + Content(" " * max(_NAME - len(word), 1))


def _last_step(view: ViewState, step: StepRow) -> list[Content]:
    value = step.values.get
    does, _, far = sentence(step).partition(": ")
    moved = change(value("logprob_before"), value("logprob_after"))
    lag = f" · {number(value('score_to_weights_s'), 2)} s after the score"
    return [
        Content.assemble(_name(f"step {step.step}"), literal(does, "bold")),
        Content.assemble(_name("logprob"), moved, (" a token", "dim") if far else ""),
        Content.assemble(
            _name("reward"),
            signed(value("reward_mean")),
            (f", expected {signed(value('baseline'))}", "dim"),
        ),
        Content.assemble(
            _name("trained"),
            f"{number(value('num_trained_tokens'), 6)} tokens",
            (lag if value("score_to_weights_s") is not None else "", "dim"),
        ),
    ]


def _trends(steps: list[StepRow]) -> list[Content]:
    """Return the newest rewards and entropies as bars, where they are not all the same."""
    rows: list[Content] = []
    for word, name, low, high in (
        ("rewards", "reward_mean", -1.0, 1.0),  # a fixed range: +1 is drawn at the top
        ("entropy", "entropy", None, None),
    ):
        values = [step.values.get(name, float("nan")) for step in steps]
        if says_something(values):
            bars = sparkline(values, low, high)
            rows.append(Content.assemble(_name(word), (bars, "$text-accent")))
    return rows


def says_something(values: Sequence[float]) -> bool:
    """Return whether a plot of values would show anything: there are two that differ."""
    return len({value for value in values if value == value}) > 1
