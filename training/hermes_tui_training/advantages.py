"""From a person's rewards to the advantage of each completion. Free of torch.

The advantage of a lone episode is its return against a running baseline. It is never centred:
``x - mean(x)`` of one value is zero, and would erase the signal while every counter still moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hermes_tui_training.config import RewardConfig
from hermes_tui_training.types import Completion, Episode

RUN = ""
"""Key of the run's own baseline beside the tasks'; start_session refuses an empty task_id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeAdvantage:
    """What an episode's rewards come to."""

    episode_id: str
    """The episode."""
    baseline: float
    """What its return was measured against."""
    by_completion: dict[str, float]
    """Advantage per trainable completion id; those of exactly 0.0 are left out."""

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
    whole = any(entry.get("interaction_id") is None for entry in episode.reward_log)
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


def _clip(value: float, bound: float) -> float:
    return max(-bound, min(bound, value))
