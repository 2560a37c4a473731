"""The row of an optimizer step, as ``/rl/steps`` answers it. Free of torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_tui_training.algorithm.advantages import EpisodeAdvantage, learnable
from hermes_tui_training.api.learner import BatchFacts, RollbackResult, StepResult
from hermes_tui_training.api.types import Episode, TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTimes:
    """What happened to weights after the learner had made them."""

    save_s: float
    """Seconds to write the checkpoint; 0.0 when unknown, after a crash."""
    publish_s: float
    """Seconds until the engine served it."""
    published: bool
    """Whether the engine took the weights."""


def batch_facts(
    episodes: Sequence[Episode],
    advantages: Sequence[EpisodeAdvantage],
    samples: Sequence[TrainingSample],
    *,
    baselines: Mapping[str, float],
    num_groups: int = 0,
    base_version: int,
    wait_s: float,
    claim_s: float,
) -> BatchFacts:
    """Return what is known of a step before the learner works.

    Args:
        episodes: to train, at least one.
        advantages: one per episode.
        samples: of the episodes, at least one.
        baselines: after these episodes.
        num_groups: groups among them.
        base_version: version that the step starts from.
        wait_s: seconds without work before the claim.
        claim_s: seconds to claim and to make the samples.
    """
    rewards = [episode_reward(episode) for episode in episodes]
    values = [value for one in advantages for value in one.by_completion.values()]
    staleness = [
        base_version - version
        for sample in samples
        for version, masked in zip(sample.policy_versions, sample.loss_mask, strict=True)
        if masked
    ]
    return BatchFacts(
        episode_ids=tuple(episode.episode_id for episode in episodes),
        baselines=dict(baselines),
        num_groups=num_groups,
        reward_mean=_mean(rewards),
        reward_min=min(rewards),
        reward_max=max(rewards),
        advantage_mean=_mean(values),
        num_praised=sum(value > 0 for value in values),
        num_punished=sum(value < 0 for value in values),
        baseline=_mean([one.baseline for one in advantages]),
        num_prompt_tokens=sum(s.loss_mask.count(False) for s in samples),
        staleness_mean=_mean(staleness),
        staleness_max=max(staleness),
        scored_at=min(episode.scored_at or episode.created_at for episode in episodes),
        wait_s=wait_s,
        claim_s=claim_s,
    )


def episode_reward(episode: Episode) -> float:
    """Return the reward that stands for an episode: its own, or its completions' mean."""
    if episode.reward is not None:
        return episode.reward
    given = [c.reward for c in learnable(episode) if c.reward is not None]
    return _mean(given)


def step_row(result: StepResult, times: PublishTimes) -> dict[str, Any]:
    """Return the row of a step; seconds.total is from claim to publish, without the wait."""
    facts, metrics = result.facts, result.metrics
    worked_s = facts.claim_s + metrics.seconds.recompute + metrics.seconds.update
    finished_at = time.time()
    return {
        "step": result.target_version,
        "policy_version": result.target_version,
        "rolled_back_to": None,
        **_origin(result),
        "episode_ids": [i for i in facts.episode_ids if i not in result.stale_episode_ids],
        **facts.model_dump(exclude={"episode_ids", "baselines", "scored_at", "wait_s", "claim_s"}),
        **metrics.model_dump(exclude={"seconds"}),
        "seconds": {
            "wait": facts.wait_s,
            "claim": facts.claim_s,
            "recompute": metrics.seconds.recompute,
            "update": metrics.seconds.update,
            "save": times.save_s,
            "publish": times.publish_s,
            "total": worked_s + times.save_s + times.publish_s,
        },
        "published": times.published,
        "score_to_weights_s": max(0.0, finished_at - facts.scored_at),
        "finished_at": finished_at,
    }


def rollback_row(result: RollbackResult, times: PublishTimes) -> dict[str, Any]:
    """Return the row of a rollback: a step's number, no episodes, none of a step's numbers."""
    return {
        "step": result.target_version,
        "policy_version": result.target_version,
        "rolled_back_to": result.rolled_back_to,
        **_origin(result),
        "episode_ids": [],
        "seconds": {
            "save": times.save_s,
            "publish": times.publish_s,
            "total": times.save_s + times.publish_s,
        },
        "published": times.published,
        "finished_at": time.time(),
    }


def _origin(result: StepResult | RollbackResult) -> dict[str, Any]:
    """Return what a version was made from."""
    return {"base": result.base, "adapter": result.adapter, "parent": result.parent}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
