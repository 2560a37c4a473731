"""From claimed groups and lone episodes to what the learner is given. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hermes_tui_training.algorithm.advantages import (
    EpisodeAdvantage,
    episode_advantage,
    group_advantages,
    scored_episode,
    updated_baselines,
)
from hermes_tui_training.algorithm.choices import scored_choices, without_choices
from hermes_tui_training.algorithm.samples import training_samples
from hermes_tui_training.api.config import RewardConfig, TrainingConfig
from hermes_tui_training.api.types import Episode, TrainingSample


@dataclass(slots=True, kw_only=True)
class StepBatch:
    """The episodes that one step trains, with their advantages and samples."""

    baselines: dict[str, float]
    """Baselines after it, by topic and turn, and the run's."""
    episodes: list[Episode] = field(default_factory=list)
    """Those that it trains."""
    advantages: list[EpisodeAdvantage] = field(default_factory=list)
    """One per episode."""
    samples: list[TrainingSample] = field(default_factory=list)
    """Of the episodes, in order."""
    num_groups: int = 0
    """How many of the groups have siblings."""
    unlearnable: list[str] = field(default_factory=list)
    """Ids of episodes whose rewards say nothing."""


def make_step_batch(
    groups: Sequence[Sequence[Episode]], baselines: Mapping[str, float], training: TrainingConfig
) -> StepBatch:
    """Return what a step can learn from claimed episodes.

    Args:
        groups: siblings and lone episodes, as ``Steps.claim`` gives them.
        baselines: before the step.
        training: reward, group.
    """
    reward, group = training.reward, training.group
    groups = [[_by_topic(episode) for episode in members] for members in groups]
    scored = [
        [scored_episode(without_choices(episode), reward.turn_discount) for episode in members]
        for members in groups
    ]
    everyone = [one for members in scored for one in members]
    batch = StepBatch(baselines=updated_baselines(baselines, everyone, reward))
    for episodes, members in zip(groups, scored, strict=True):
        if len(members) >= group.min_size:
            advantages = group_advantages(members, reward, group)
            batch.num_groups += any(one.by_completion for one in advantages)
        else:
            advantages = [episode_advantage(one, baselines, reward) for one in members]
        for episode, own in zip(episodes, advantages, strict=True):
            advantage = _with_choices(own, episode, baselines, reward)
            samples = training_samples(episode, advantage.by_completion)
            if not samples:
                batch.unlearnable.append(episode.episode_id)
                continue
            batch.episodes.append(episode)
            batch.advantages.append(advantage)
            batch.samples += samples
    return batch


def _with_choices(
    advantage: EpisodeAdvantage,
    episode: Episode,
    baselines: Mapping[str, float],
    reward: RewardConfig,
) -> EpisodeAdvantage:
    """Return an episode's advantage with those of its other choices, each measured alone."""
    by_completion = {**advantage.by_completion}
    for choice in scored_choices(episode):
        scored = scored_episode(choice, reward.turn_discount)
        by_completion |= episode_advantage(scored, baselines, reward).by_completion
    return replace(advantage, by_completion=by_completion)


def _by_topic(episode: Episode) -> Episode:
    """Return an episode whose task is its topic: that is what baselines are kept for."""
    return replace(episode, task_id=episode.topic or episode.task_id)
