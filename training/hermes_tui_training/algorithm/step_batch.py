"""From claimed groups and lone episodes to what the learner is given. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hermes_tui_training.algorithm.advantages import (
    EpisodeAdvantage,
    episode_advantage,
    group_advantages,
    updated_baselines,
)
from hermes_tui_training.algorithm.samples import TrainingSample, training_samples
from hermes_tui_training.api.config import TrainingConfig
from hermes_tui_training.api.types import Episode


@dataclass(slots=True, kw_only=True)
class Lesson:
    """What one step learns from."""

    baselines: dict[str, float]
    """Baselines after it, by task id and the run's."""
    episodes: list[Episode] = field(default_factory=list)
    """Those that it trains."""
    advantages: list[EpisodeAdvantage] = field(default_factory=list)
    """One per episode."""
    samples: list[TrainingSample] = field(default_factory=list)
    """Of the episodes, in order."""
    num_groups: int = 0
    """How many of the units were groups."""
    unlearnable: list[str] = field(default_factory=list)
    """Ids of episodes whose rewards say nothing."""


def make_lesson(
    units: Sequence[Sequence[Episode]], baselines: Mapping[str, float], training: TrainingConfig
) -> Lesson:
    """Return the lesson in claimed episodes.

    Args:
        units: groups and lone episodes, as ``Store.claim`` gives them.
        baselines: before the step.
        training: reward, group.
    """
    reward, group = training.reward, training.group
    episodes = [episode for unit in units for episode in unit]
    lesson = Lesson(baselines=updated_baselines(baselines, episodes, reward))
    for unit in units:
        if len(unit) >= group.min_size:
            advantages = group_advantages(unit, reward, group)
            lesson.num_groups += any(one.by_completion for one in advantages)
        else:
            advantages = [episode_advantage(episode, baselines, reward) for episode in unit]
        for episode, advantage in zip(unit, advantages, strict=True):
            samples = training_samples(episode, advantage.by_completion)
            if not samples:
                lesson.unlearnable.append(episode.episode_id)
                continue
            lesson.episodes.append(episode)
            lesson.advantages.append(advantage)
            lesson.samples += samples
    return lesson
