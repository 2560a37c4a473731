"""From a person's rewards to the advantage of each completion. Free of torch.

The advantage of a lone episode is its return against a running baseline. It is never centred:
``x - mean(x)`` of one value is zero, and would erase the signal while every counter still moves.
Siblings of a group are measured against each other.
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
class EpisodeAdvantage:
    """What an episode's rewards come to."""

    episode_id: str
    """The episode."""
    baseline: float
    """What its return was measured against."""
    by_completion: dict[str, float]
    """Advantage per trainable completion id; empty when there is nothing to learn."""

    @property
    def mean(self) -> float:
        """Mean over its completions; 0.0 without any."""
        return sum(self.by_completion.values()) / max(1, len(self.by_completion))


def trainable(episode: Episode) -> list[Completion]:
    """Return the episode's completions that may be trained, in order."""
    return [c for c in episode.completions if c.trainable and c.token_ids]


def completion_returns(episode: Episode, discount: float) -> dict[str, float]:
    """Return the discounted return of each trainable completion, by its id.

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
        if completion.trainable and completion.token_ids:
            latest = completion.completion_id
            rewards[latest] = 0.0
        if latest is not None:
            rewards[latest] += own.get(completion.completion_id, 0.0)
    total = 0.0
    for completion_id in reversed(rewards):
        total = rewards[completion_id] + discount * total
        rewards[completion_id] = total
    return rewards


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


def baseline_of(baselines: Mapping[str, float], task_id: str) -> float:
    """Return a task's baseline; the run's for a task without one, 0.0 for a run without one."""
    return baselines.get(task_id, baselines.get(RUN, 0.0))


def episode_advantage(
    episode: Episode, baselines: Mapping[str, float], config: RewardConfig
) -> EpisodeAdvantage:
    """Return an episode's advantages: ``clip(scale * (R + bias - baseline))`` per completion.

    Args:
        episode: scored, with its completions.
        baselines: by task id, and the run's under ``RUN``.
        config: scale, bias, clip, turn_discount.
    """
    baseline = baseline_of(baselines, episode.task_id)
    advantages = {
        completion_id: _clip(config.scale * (value + config.bias - baseline), config.clip)
        for completion_id, value in completion_returns(episode, config.turn_discount).items()
    }
    return EpisodeAdvantage(
        episode_id=episode.episode_id,
        baseline=baseline,
        by_completion={key: value for key, value in advantages.items() if value != 0.0},
    )


def group_advantages(
    episodes: Sequence[Episode], reward: RewardConfig, group: GroupConfig
) -> list[EpisodeAdvantage]:
    """Return the advantages of siblings: ``clip(scale * (R - baseline) [/ std])`` per completion.

    The baseline is the mean return of the other siblings (leave-one-out), or of all. A sibling of
    several completions counts with their mean. A group whose siblings all did equally well has
    nothing to learn; in any other one, a sibling that is exactly average takes part with zeros.

    Args:
        episodes: siblings of one task, scored, with their completions; at least two.
        reward: scale, clip, turn_discount; a bias would be in the baseline too.
        group: advantage, divide_by_std.
    """
    assert len(episodes) >= 2, "a group of one is never centred"
    assert len({episode.task_id for episode in episodes}) == 1, "a group is of one task"
    returns = [completion_returns(episode, reward.turn_discount) for episode in episodes]
    scores = [_mean(list(values.values())) for values in returns]
    spread = math.sqrt(_mean([(score - _mean(scores)) ** 2 for score in scores]))
    scale = reward.scale / (spread if group.divide_by_std and spread > _SAME else 1.0)
    found = []
    for index, (episode, values) in enumerate(zip(episodes, returns, strict=True)):
        others = scores[:index] + scores[index + 1 :]
        baseline = _mean(others if group.advantage == "leave_one_out" else scores)
        found.append(
            EpisodeAdvantage(
                episode_id=episode.episode_id,
                baseline=baseline,
                by_completion={
                    completion_id: _clip(_settled(value - baseline) * scale, reward.clip)
                    for completion_id, value in values.items()
                },
            )
        )
    if any(value for one in found for value in one.by_completion.values()):
        return found
    return [replace(one, by_completion={}) for one in found]


def updated_baselines(
    baselines: Mapping[str, float], episodes: Sequence[Episode], config: RewardConfig
) -> dict[str, float]:
    """Return the baselines after these episodes: a moving average of ``mean(R) + bias``.

    A task's first episode starts from the run's baseline, the run's first from 0.0.

    Args:
        baselines: before; not changed.
        episodes: in the order in which they count.
        config: baseline_decay, bias, turn_discount.
    """
    result = dict(baselines)
    for episode in episodes:
        returns = completion_returns(episode, config.turn_discount).values()
        if not returns:
            continue
        observed = sum(returns) / len(returns) + config.bias
        for key in dict.fromkeys((episode.task_id, RUN)):
            before = baseline_of(result, key)
            result[key] = config.baseline_decay * before + (1 - config.baseline_decay) * observed
    return result


def _settled(difference: float) -> float:
    """Return a difference of rewards, without what rounding alone may leave."""
    return 0.0 if abs(difference) < _SAME else difference


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _clip(value: float, bound: float) -> float:
    return max(-bound, min(bound, value))
