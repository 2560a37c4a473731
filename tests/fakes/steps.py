"""Requests to the learner, made in code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hermes_tui_training.algorithm.advantages import EpisodeAdvantage
from hermes_tui_training.algorithm.metrics import batch_facts
from hermes_tui_training.algorithm.samples import training_samples
from hermes_tui_training.api.learner import StepRequest
from hermes_tui_training.api.types import Episode


def make_request(
    episodes: Sequence[Episode],
    advantages: Sequence[Mapping[str, float]],
    *,
    base_version: int = 0,
    target_version: int | None = None,
) -> StepRequest:
    """Return the request for one step on some episodes, given each completion's advantage."""
    made = [
        EpisodeAdvantage(episode_id=e.episode_id, baseline=0.0, by_completion=dict(by_id))
        for e, by_id in zip(episodes, advantages, strict=True)
    ]
    samples = [
        sample
        for episode, advantage in zip(episodes, made, strict=True)
        for sample in training_samples(episode, advantage.by_completion)
    ]
    return StepRequest(
        base_version=base_version,
        target_version=target_version or base_version + 1,
        samples=tuple(samples),
        facts=batch_facts(
            episodes,
            made,
            samples,
            baselines={"": 0.1},
            base_version=base_version,
            wait_s=0.0,
            claim_s=0.0,
        ),
    )
