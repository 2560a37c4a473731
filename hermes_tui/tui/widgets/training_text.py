"""Text and numbers of the training pane."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from textual.content import Content

from hermes_tui.core.collapse import collapse, repeats
from hermes_tui.core.models import CanaryRow, StepRow, TrainerRow
from hermes_tui.core.reasons import reason_text
from hermes_tui.core.sanitize import clean, one_line, shorten
from hermes_tui.core.state import ViewState
from hermes_tui.tui.widgets.formatting import line, literal, number, signed, sparkline
from hermes_tui_common.disk import PHRASE

SPARKS = 24
"""Newest steps in a sparkline."""

CANARY_LINES = 6
"""Most lines of a canary answer."""

NO_STEP = Content.styled("no step is done yet: score an episode", "dim")


def trained_steps(view: ViewState) -> list[StepRow]:
    """Return the steps that trained something: all but rollbacks, oldest first."""
    return [step for step in view.steps if "loss" in step.values]


def describe(view: ViewState, hold: str = "") -> Content:
    """Return a summary: what the next step waits for, and the last step's numbers.

    Args:
        view: what is known.
        hold: the key that pauses and resumes training; empty without one.
    """
    if not view.info.training:
        return Content.styled(
            "training is off: with training.enabled = true the model learns from you", "dim"
        )
    lines = [Content.assemble(_name("next"), literal(waits_for(view.trainer, hold)))]
    steps = trained_steps(view)
    if not steps:
        lines.append(NO_STEP)
        return Content("\n").join(lines)
    lines += _last_step(steps[-1])
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
    return f"{counted} · the learner is not there" if trainer.learner_lost else counted


def next_step(view: ViewState, hold: str = "") -> Content:
    """Return what the next step waits for, warnings, and what is not trained and why.

    Args:
        view: what is known.
        hold: the key that pauses and resumes training; empty without one.
    """
    episodes = [row for rows in view.episodes.values() for row in rows.values()]
    words = waits_for(view.trainer, hold)
    if not view.trainer.busy and view.trainer.state != "paused":
        ages = [row.staleness for row in episodes if row.state == "scored" and row.staleness]
        if view.trainer.num_scored:
            words += f"; the oldest is {max(ages, default=0)} versions old"
        open_ones = sum(row.state in ("open", "ended") for row in episodes)
        words += f"; {open_ones} without a score" if open_ones else ""
    lines = [Content.assemble(_name("next"), literal(words))]
    if view.steps and (back := view.steps[-1].values.get("rolled_back_to")) is not None:
        made = view.steps[-1].policy_version
        lines.append(
            Content.assemble(_name("rolled"), f"version {made} is version {back:.0f} again")
        )
    lines += [
        Content.assemble(_name("careful"), line(f"▲ {sentence}", "$text-warning"))
        for sentence in collapse(trained_steps(view))
    ]
    return Content("\n").join([*lines, untrained(view)])


def untrained(view: ViewState) -> Content:
    """Return how many completions and episodes were not trained, by reason, most first."""
    counts = dict(view.trainer.untrained)
    for rows in view.episodes.values():
        for row in rows.values():
            # The trainer's counts already contain the reasons of single completions.
            if row.dropped_reason and row.dropped_reason not in view.trainer.untrained:
                counts[row.dropped_reason] = counts.get(row.dropped_reason, 0) + 1
    if not counts:
        return Content.assemble(_name("skipped"), ("nothing: all that was said may train", "dim"))
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    text = " · ".join(f"{count}× {reason_text(reason)}" for reason, count in ordered)
    return Content.assemble(_name("skipped"), line(f"✗ {text}"))


def numbers(step: StepRow, width: int) -> Content:
    """Return all numbers of a step, in as many columns as fit into ``width`` cells."""
    lines = [_moved(step)]
    cells = [
        Content.assemble((f"{word:<{_WORD}}", "dim"), f"{value:<{_VALUE}}")
        for word, value in _figures(step)
    ]
    columns = max(width // (_WORD + _VALUE), 1)
    for begin in range(0, len(cells), columns):
        lines.append(Content("").join(cells[begin : begin + columns]))
    return Content("\n").join(lines)


_WORD, _VALUE = 9, 9


def _figures(step: StepRow) -> list[tuple[str, str]]:
    value = step.values.get

    def seconds(name: str) -> str:
        return f"{number(value(name), 2)} s"

    return [
        ("reward", signed(value("reward_mean"))),
        ("baseline", signed(value("baseline"))),
        ("adv", signed(value("advantage_mean"))),
        ("loss", number(value("loss"))),
        ("grad", number(value("grad_norm"))),
        ("rate", number(value("learning_rate"), 2)),
        ("kl", number(value("kl_behavior"), 2)),
        ("entropy", number(value("entropy"))),
        ("gap", number(value("gap_mean"), 2)),
        ("clipped", number(value("clip_frac"), 2)),
        ("rejected", number(value("rejected_frac"), 2)),
        ("stale", number(value("staleness_max"))),
        ("tokens", number(value("num_trained_tokens"), 6)),
        ("took", seconds("seconds.total")),
        ("update", seconds("seconds.update")),
        ("lag", seconds("score_to_weights_s")),
    ]


def _moved(step: StepRow) -> Content:
    before, after = step.values.get("logprob_before"), step.values.get("logprob_after")
    moved = after - before if before is not None and after is not None else None
    tone = "$text-success" if (moved or 0) > 0 else "$text-error"
    arrow = "" if moved is None else f"  {'▲' if moved > 0 else '▼'} {signed(moved, 3)}"
    return Content.assemble(
        _name("logprob"), f"{signed(before, 3)} → {signed(after, 3)}", (arrow, tone)
    )


def canaries(rows: Sequence[CanaryRow], width: int) -> Content:
    """Return the canary's answers of two versions side by side, the older at the left.

    Args:
        rows: the answers; those of the two newest versions are shown.
        width: in cells.
    """
    versions = sorted({row.policy_version for row in rows})[-2:]
    if not versions:
        text = "no answers yet: after each step a few fixed questions are asked"
        return Content.styled(text, "dim")
    column = max((width - 3) // 2, 10)
    answers = {(row.policy_version, row.prompt): row for row in rows}
    lines = [_beside([(f"version {version}", "bold") for version in versions], column)]
    for prompt in dict.fromkeys(row.prompt for row in rows):
        lines.append(line(shorten(clean(prompt), width), "dim"))
        columns = [_answer(answers.get((version, prompt)), column) for version in versions]
        for row in range(max(len(text) for text in columns)):
            cells = [text[row] if row < len(text) else "" for text in columns]
            lines.append(_beside([(cell, "") for cell in cells], column))
        lines += _warnings(versions, prompt, answers)
    return Content("\n").join(lines)


def _answer(row: CanaryRow | None, width: int) -> list[str]:
    if row is None:
        return ["–"]
    if row.reason:
        return [f"✗ {row.reason}"]
    text = clean(row.text)
    if not text.strip():
        return ["(an empty reply)"]
    wrapped = textwrap.wrap(" ".join(text.split()), width, max_lines=CANARY_LINES, placeholder=" …")
    return wrapped or ["–"]


def _warnings(
    versions: Sequence[int], prompt: str, answers: dict[tuple[int, str], CanaryRow]
) -> list[Content]:
    row = answers.get((versions[-1], prompt))
    if row is None or not repeats(row.text):
        return []
    return [line(f"▲ version {versions[-1]} repeats itself here", "$text-warning")]


def _beside(cells: Sequence[tuple[str, str]], width: int) -> Content:
    columns = [line(text, style).truncate(width, ellipsis=True, pad=True) for text, style in cells]
    return Content.styled(" │ ", "dim").join(columns)


_COLUMNS = ((8, 8), (9, 7), (6, 6))
"""Cells of name and value in each column; the sum fits the pane of a 120-column terminal."""


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
    return [
        _moved(step),
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


def _trends(steps: list[StepRow]) -> list[Content]:
    def values(name: str) -> list[float]:
        return [step.values.get(name, float("nan")) for step in steps]

    # A fixed range, the usual one: rewards that are all +1 are drawn at the top.
    rewards = sparkline(values("reward_mean"), -1.0, 1.0)
    return [
        Content.assemble(_name("rewards"), (rewards, "$text-accent")),
        Content.assemble(_name("entropy"), (sparkline(values("entropy")), "$text-accent")),
    ]
