"""The figures of a training step: how each is written, and what it means in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hermes_tui.core.models import StepRow
from hermes_tui.core.units import signed
from hermes_tui.tui.widgets.formatting import number

MEANING_CELLS = 75
"""Most cells of a meaning: it is one line at 80 columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a step's row."""

    word: str
    """What it is called on the screen."""
    name: str
    """Its name in the step's row."""
    meaning: str
    """What it says, in one line."""
    write: Callable[[float | None], str] = number
    """Writes the number."""


def _short(value: float | None) -> str:
    return number(value, 2)


def _seconds(value: float | None) -> str:
    return f"{number(value, 2)} s"


def _count(value: float | None) -> str:
    return number(value, 6)


FIGURES: tuple[Figure, ...] = (
    Figure(
        word="reward",
        name="reward_mean",
        meaning="the mean of the rewards that people gave to the step's episodes",
        write=signed,
    ),
    Figure(
        word="baseline",
        name="baseline",
        meaning="the reward that was expected: the running mean of the earlier ones",
        write=signed,
    ),
    Figure(
        word="adv",
        name="advantage_mean",
        meaning="reward less baseline: above 0 the tokens become likelier, below 0 less",
        write=signed,
    ),
    Figure(
        word="loss",
        name="loss",
        meaning="what the update made smaller; judge a step by its reward, not by this",
    ),
    Figure(
        word="grad",
        name="grad_norm",
        meaning="how hard the loss pulled at the weights",
    ),
    Figure(
        word="rate",
        name="learning_rate",
        meaning="how long a step was needed for the move that was wanted",
        write=_short,
    ),
    Figure(
        word="kl",
        name="kl_behavior",
        meaning="how far the learner was from the weights that sampled; 0 is the same",
        write=_short,
    ),
    Figure(
        word="moved",
        name="moved_nats",
        meaning="how far what was judged went the judged way, in nats a token",
        write=_short,
    ),
    Figure(
        word="kl step",
        name="kl_step",
        meaning="how far the step moved all that could be said, in nats a token",
        write=_short,
    ),
    Figure(
        word="taken",
        name="step_frac",
        meaning="share of the wanted move that was made; 1 is all of it",
        write=_short,
    ),
    Figure(
        word="drift",
        name="reference_drift",
        meaning="how much less likely ordinary text is than when training began",
        write=_short,
    ),
    Figure(
        word="text kl",
        name="reference_kl",
        meaning="how far ordinary text is read otherwise than when training began, in nats",
        write=_short,
    ),
    Figure(
        word="alike",
        name="reply_alike_frac",
        meaning="share of the last ten replies that begin with the same word",
        write=_short,
    ),
    Figure(
        word="twice",
        name="reply_repetition",
        meaning="share of what those replies say that they said before",
        write=_short,
    ),
    Figure(
        word="length",
        name="reply_length_mean",
        meaning="how many tokens those replies have, in the mean",
    ),
    Figure(
        word="entropy",
        name="entropy",
        meaning="how open the choice of a token was; near 0 it says always the same",
    ),
    Figure(
        word="gap",
        name="gap_mean",
        meaning="how far sampler and learner disagree on a logprob; 1e-5 is as good as none",
        write=_short,
    ),
    Figure(
        word="clipped",
        name="clip_frac",
        meaning="share of the tokens that the update moved past its bound",
        write=_short,
    ),
    Figure(
        word="rejected",
        name="rejected_frac",
        meaning="share of the tokens left out: sampler and learner disagree too much",
        write=_short,
    ),
    Figure(
        word="stale",
        name="staleness_max",
        meaning="how many versions old the oldest token was when it was trained",
    ),
    Figure(
        word="tokens",
        name="num_trained_tokens",
        meaning="sampled tokens that the step trained; those of prompts are not",
        write=_count,
    ),
    Figure(
        word="took",
        name="seconds.total",
        meaning="the whole step, from taking the episodes until its version served",
        write=_seconds,
    ),
    Figure(
        word="update",
        name="seconds.update",
        meaning="the part of it that found out which way to go: loss and gradient",
        write=_seconds,
    ),
    Figure(
        word="lag",
        name="score_to_weights_s",
        meaning="from the first score of the step until its version served",
        write=_seconds,
    ),
)
"""All of them, in the order of the table."""

BY_NAME = {figure.name: figure for figure in FIGURES}

WORDS = {
    "next": "a step begins when this many are scored and can't be taken back any more",
    "rolled": "an earlier version's weights serve again, under a new number",
    "lost": "found damaged or missing since the trainer started, and what took its place",
    "careful": "a model that plays for its reward says less and less, or always the same",
    "still": "no version was made: these scores ask for nothing that can still be done",
    "topics": "sessions by what they are about; a running mean is kept within a topic",
    "skipped": "what was said and is never trained, counted by its reason",
    "step": "what the step did to what was judged; enter lists its episodes",
    "logprob": "mean over the trained tokens, just before and just after the update",
    "flat": "figures that were the same in every step: their plots would say nothing",
    "canaries": "every version is asked this; what differs is marked, v chooses which two",
}
"""What the other lines of the pane say, by their name."""


def figures_of(step: StepRow) -> tuple[Figure, ...]:
    """Return the figures that a step's row has."""
    return tuple(figure for figure in FIGURES if figure.name in step.values)


def meaning(name: str) -> str:
    """Return what a figure or a line of the pane means, in one line; empty for an unknown one."""
    figure = BY_NAME.get(name)
    return figure.meaning if figure else WORDS.get(name, "")
