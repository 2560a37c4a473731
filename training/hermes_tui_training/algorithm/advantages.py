"""From a person's rewards to the advantage of each completion. Free of torch.

Credit is never upside down: a reply that was praised is never pushed down for it.

* A lone score is the advantage: 0 is neutral. It is not centred (``x - mean(x)`` of one value is
  always zero), and by default not measured against a running mean either: after many scores of 1
  a person's 0.8 would be a punishment.
* A turn with a score of its own has that score, whatever came later. Turns without one get the next
  judged turn's, discounted. A return summed over turns would make (+, -, +) no minus at all, and
  three praised turns worth 3, 2 and 1.
* Siblings are measured against each other when some did well and some badly. Where all did well, or
  all badly, there is nothing between them to tell apart but what was said of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hermes_tui_training.api.config import GroupConfig, RewardConfig
from hermes_tui_training.api.types import Completion, Episode

RUN = ""
"""Key of the run's own baseline beside the tasks'; start_session refuses an empty task_id."""

_SAME = 1e-9
"""Rewards closer than this are equal: the mean of equal numbers may be off by their rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCredit:
    """Where a completion's credit comes from."""

    completion_id: str
    """The completion."""
    score: float
    """The score of the judged turn: its own, or the next one's."""
    turn: int
    """Position of the judged turn among the episode's learnable ones, from 0."""
    share: float
    """How much of the score it gets: 1.0 of its own, discounted per turn before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredEpisode:
    """An episode, and what its rewards mean for each of its completions."""

    episode: Episode
    """With its completions."""
    credits: tuple[TurnCredit, ...]
    """Of the learnable completions that a score reaches, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeAdvantage:
    """What an episode's rewards come to."""

    episode_id: str
    """The episode."""
    baseline: float
    """What its scores were measured against; their mean over its completions."""
    by_completion: dict[str, float]
    """Advantage per completion id; empty when there is nothing to learn."""

    @property
    def mean(self) -> float:
        """Mean over its completions; 0.0 without any."""
        return sum(self.by_completion.values()) / max(1, len(self.by_completion))


def learnable(episode: Episode) -> list[Completion]:
    """Return the episode's completions that a step takes, in order."""
    return [completion for completion in episode.completions if completion.learnable]


def scored_episode(episode: Episode, discount: float) -> ScoredEpisode:
    """Return what an episode's rewards mean for its completions.

    A reward without an id belongs to the last turn. A reward on a reply that is not trained goes to
    the learnable completion before it (what led there), unless that has a score of its own; a call
    beside the agent's turns takes no part.

    Args:
        episode: scored, with its completions.
        discount: per completion, counted back from a judged turn; in [0, 1].
    """
    given = completion_rewards(episode)
    scores: dict[str, float | None] = {}
    latest: str | None = None
    for completion in episode.completions:
        score = given.get(completion.completion_id)
        if completion.learnable:
            latest = completion.completion_id
            scores[latest] = score
        elif latest is not None and scores[latest] is None:
            scores[latest] = score
    credits = []
    judged: TurnCredit | None = None
    for turn, (completion_id, score) in reversed(list(enumerate(scores.items()))):
        if score is not None:
            judged = TurnCredit(completion_id=completion_id, score=score, turn=turn, share=1.0)
        elif judged is not None:
            judged = replace(judged, completion_id=completion_id, share=judged.share * discount)
        if judged is not None:
            credits.append(judged)
    return ScoredEpisode(episode=episode, credits=tuple(reversed(credits)))


def completion_rewards(episode: Episode) -> dict[str, float]:
    """Return the rewards in force by completion id.

    The reward of the whole episode, given without an id, is its last turn's; without such a one
    only the rewards of single completions count.
    """
    own = {c.completion_id: c.reward for c in episode.completions if c.reward is not None}
    standing = [entry for entry in episode.reward_log if entry.taken_back_at is None]
    whole = any(entry.interaction_id is None for entry in standing)
    turns = [c for c in episode.completions if c.kind == "turn"]
    if episode.reward is not None and turns and (whole or not own):
        own[turns[-1].completion_id] = episode.reward
    return own


def completion_returns(episode: Episode, discount: float) -> dict[str, float]:
    """Return the discounted return of each trainable completion, by its id, for exports.

    ``R_i = r_i + discount * R_{i+1}`` in order of the trainable completions. Rewards of single
    completions count where they were given; without any, the episode's reward belongs to its last
    completion. A reward on a completion that may not be trained goes to the trainable one before it
    (what led there); a call beside the agent's turns takes no part.

    Args:
        episode: scored, with its completions.
        discount: per completion, in [0, 1].
    """
    own = completion_rewards(episode)
    rewards: dict[str, float] = {}
    latest: str | None = None
    for completion in episode.completions:
        if completion.learnable:
            latest = completion.completion_id
            rewards[latest] = 0.0
        if latest is not None:
            rewards[latest] += own.get(completion.completion_id, 0.0)
    total = 0.0
    for completion_id in reversed(rewards):
        total = rewards[completion_id] + discount * total
        rewards[completion_id] = total
    return rewards


def baseline_key(task_id: str, turn: int) -> str:
    """Return the name of the baseline of a task's turns at a position, from 0."""
    return task_id if turn == 0 else f"{task_id} #{turn + 1}"


def baseline_of(
    baselines: Mapping[str, float], task_id: str, turn: int, config: RewardConfig
) -> float:
    """Return what a turn's score is measured against; 0.0 when ``baseline_decay`` is 1.

    A task without a baseline at this turn has the run's; a run without one has 0.0.
    """
    if config.baseline_decay == 1:
        return 0.0
    return baselines.get(baseline_key(task_id, turn), baselines.get(RUN, 0.0))


def episode_advantage(
    scored: ScoredEpisode, baselines: Mapping[str, float], config: RewardConfig
) -> EpisodeAdvantage:
    """Return the advantages ``clip(scale * (score + bias - baseline) * share)``.

    A score is measured against the baseline of its own turn before it is discounted.

    Args:
        scored: an episode that is trained alone.
        baselines: by ``baseline_key``, and the run's under ``RUN``.
        config: scale, bias, clip, baseline_decay.
    """
    task_id = scored.episode.task_id
    measured = [baseline_of(baselines, task_id, c.turn, config) for c in scored.credits]
    advantages = {
        credit.completion_id: _clip(
            config.scale * (credit.score + config.bias - baseline) * credit.share, config.clip
        )
        for credit, baseline in zip(scored.credits, measured, strict=True)
    }
    return EpisodeAdvantage(
        episode_id=scored.episode.episode_id,
        baseline=_mean(measured) if measured else 0.0,
        by_completion={key: value for key, value in advantages.items() if value != 0.0},
    )


def group_advantages(
    siblings: Sequence[ScoredEpisode], reward: RewardConfig, group: GroupConfig
) -> list[EpisodeAdvantage]:
    """Return the advantages of siblings: ``clip(scale * (value - baseline) [/ std])``.

    A value is ``(score + bias) * share``; a sibling of several completions counts with their mean.
    The baseline is the mean of the other siblings (leave-one-out), or of all. Siblings that are all
    good (above 0) or all bad are measured against 0. In a mixed group a sibling that is exactly
    average takes part with zeros.

    Args:
        siblings: of one task; at least two.
        reward: scale, bias, clip.
        group: advantage, divide_by_std.
    """
    assert len(siblings) >= 2, "a group of one is never centred"
    assert len({one.episode.task_id for one in siblings}) == 1, "a group is of one task"
    values = [
        {c.completion_id: (c.score + reward.bias) * c.share for c in one.credits}
        for one in siblings
    ]
    means = [_mean(list(own.values())) if own else 0.0 for own in values]
    mixed = not (all(mean > _SAME for mean in means) or all(mean < -_SAME for mean in means))
    spread = math.sqrt(_mean([(mean - _mean(means)) ** 2 for mean in means]))
    divide = mixed and group.divide_by_std and spread > _SAME
    scale = reward.scale / (spread if divide else 1.0)
    found = []
    for index, (one, own) in enumerate(zip(siblings, values, strict=True)):
        others = means[:index] + means[index + 1 :]
        compared = others if group.advantage == "leave_one_out" else means
        baseline = _mean(compared) if mixed else 0.0
        found.append(
            EpisodeAdvantage(
                episode_id=one.episode.episode_id,
                baseline=baseline,
                by_completion={
                    completion_id: _clip(_rounded(value - baseline) * scale, reward.clip)
                    for completion_id, value in own.items()
                },
            )
        )
    if any(value for one in found for value in one.by_completion.values()):
        return found
    return [replace(one, by_completion={}) for one in found]


def updated_baselines(
    baselines: Mapping[str, float], episodes: Sequence[ScoredEpisode], config: RewardConfig
) -> dict[str, float]:
    """Return the baselines after these episodes: moving averages of ``score + bias`` per turn.

    The first score of a task's turn starts from the run's baseline, the run's first from 0.0. With
    a ``baseline_decay`` of 1 there are none.

    Args:
        baselines: before; not changed.
        episodes: in the order in which they count.
        config: baseline_decay, bias.
    """
    if config.baseline_decay == 1:
        return {}
    result = dict(baselines)
    for one in episodes:
        for credit in one.credits:
            if credit.share != 1.0:
                continue  # the score is another turn's
            task_id = one.episode.task_id
            for key in (baseline_key(task_id, credit.turn), RUN):
                before = result.get(key, result.get(RUN, 0.0))
                observed = credit.score + config.bias
                decay = config.baseline_decay
                result[key] = decay * before + (1 - decay) * observed
    return result


def _rounded(difference: float) -> float:
    """Return a difference of rewards, without what rounding alone may leave."""
    return 0.0 if abs(difference) < _SAME else difference


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _clip(value: float, bound: float) -> float:
    return max(-bound, min(bound, value))
