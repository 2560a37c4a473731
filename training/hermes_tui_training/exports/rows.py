"""Episodes as flat token sequences; every export format is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hermes_tui_training.algorithm.advantages import completion_returns
from hermes_tui_training.algorithm.choices import scored_choices, without_choices
from hermes_tui_training.algorithm.samples import flatten, sampled_slice, segments
from hermes_tui_training.api.types import Completion, Episode

Style = Literal["individual", "concat"]
"""individual: one row per completion · concat: one row per run of completions that continue each
other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """How to make rows."""

    style: Style = "concat"
    """What a row is."""
    discount: float = 1.0
    """Discount of rewards per completion, counted back from the last; in [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One flat token sequence, [T] prompt and sampled tokens as the engine saw them."""

    episode: Episode
    """The episode that it is a part of."""
    completions: tuple[Completion, ...]
    """Those whose sampled tokens it holds, in order; each prompt begins with what is before it."""
    returns: Mapping[str, float]
    """Discounted return of each trainable completion, by its id; empty without a reward."""
    token_ids: list[int]
    """[T]"""
    loss_mask: list[int]
    """[T] 1 on the sampled tokens of trainable completions, 0 elsewhere and where the request's
    grammar constrained them."""
    logprobs: list[float]
    """[T] natural log, as sampled; 0.0 on tokens that were not sampled."""
    versions: list[int]
    """[T] policy version that sampled the token; -1 on tokens that were not sampled."""

    @property
    def reward(self) -> float | None:
        """The return of its last trainable completion; None without any, or without a reward."""
        rewards = [reward for reward in self.rewards if reward is not None]
        return rewards[-1] if rewards else None

    @property
    def rewards(self) -> list[float | None]:
        """The return of each completion; None for one that may not be trained."""
        return [self.returns.get(completion.completion_id) for completion in self.completions]

    @property
    def advantages(self) -> list[float]:
        """[T] each trainable token's return, no baseline taken off; 0.0 elsewhere."""
        values = [0.0] * len(self.token_ids)
        for completion, reward in zip(self.completions, self.rewards, strict=True):
            where = sampled_slice(completion)
            values[where] = [reward or 0.0] * len(completion.token_ids)
        return values

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation, to its last reply; empty for a raw prompt."""
        last = self.completions[-1]
        return [*last.request_messages, *([last.message] if last.message else [])]

    @property
    def is_trainable(self) -> bool:
        """Whether there is a reward, and a token that it may train."""
        return self.reward is not None


def rows_of(episode: Episode, options: ExportOptions) -> list[Row]:
    """Return an episode's rows, in order; completions that sampled nothing are in none."""
    returns: dict[str, float] = {}
    for part in (without_choices(episode), *scored_choices(episode)):
        if part.reward is not None:
            returns |= completion_returns(part, options.discount)
    runs: Iterable[Sequence[Completion]]
    if options.style == "concat":
        runs = [segment.completions for segment in segments(episode.completions)]
    else:
        runs = [[completion] for completion in episode.completions if completion.token_ids]
    return [_row(episode, tuple(run), returns) for run in runs]


def _row(episode: Episode, run: tuple[Completion, ...], returns: Mapping[str, float]) -> Row:
    flat = flatten(run, {completion.completion_id for completion in run if completion.learnable})
    return Row(
        episode=episode,
        completions=run,
        returns=returns,
        token_ids=list(flat.token_ids),
        loss_mask=[int(masked) for masked in flat.loss_mask],
        logprobs=list(flat.logprobs),
        versions=list(flat.policy_versions),
    )


def trainable_rows(episodes: Iterable[Episode], options: ExportOptions) -> Iterator[Row]:
    """Yield the rows that have a reward and a token to train."""
    for episode in episodes:
        yield from (row for row in rows_of(episode, options) if row.is_trainable)


def row_json(row: Row) -> dict[str, Any]:
    """Return a row as JSON: AReaL's names, and ours for what it has no name for."""
    episode, last = row.episode, row.completions[-1]
    return {
        "episode_id": episode.episode_id,
        "session_id": episode.session_id,
        "task_id": episode.task_id,
        "group_id": episode.group_id,
        "state": episode.state,
        "step": episode.step,
        "interaction_ids": [completion.completion_id for completion in row.completions],
        "input_ids": row.token_ids,
        "loss_mask": row.loss_mask,
        "logprobs": row.logprobs,
        "versions": row.versions,
        "reward": row.reward,
        "rewards": row.rewards,
        "feedback": episode.feedback,
        "trainable": all(completion.trainable for completion in row.completions),
        "untrainable_reasons": [c.untrainable_reason for c in row.completions],
        "constrained": [c.loss_mask.count(False) for c in row.completions],
        "sampling": [completion.sampling for completion in row.completions],
        "messages": row.messages,
        "tools": last.tools,
    }
