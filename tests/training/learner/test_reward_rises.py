"""A tiny run in which the reward rises, and a control in which it does not."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes.episodes import make_completion, make_episode
from fakes.steps import make_request
from fakes.tiny_model import make_tiny_model

from hermes_tui_training.algorithm.advantages import episode_advantage, scored_episode
from hermes_tui_training.algorithm.samples import training_samples
from hermes_tui_training.api.config import (
    LoraConfig,
    ModelConfig,
    RewardConfig,
    TrainingConfig,
)
from hermes_tui_training.learner.batches import make_batches
from hermes_tui_training.learner.learner import Learner

PROMPT = (5, 6, 7)
STEPS = 25
BATCH = 8
REWARD = RewardConfig()


def _distribution(learner: Learner) -> torch.Tensor:
    """Return the probabilities of the first sampled token, [61]."""
    episode = make_episode(make_completion("c", PROMPT, (1,)))
    (batch,) = make_batches(training_samples(episode, {"c": 1.0}), 100, torch.device("cpu"))
    return learner._policy.score(batch, torch.tensor([0])).kept_KV[0].exp()


def _is_even(token: int) -> bool:
    return token % 2 == 0


def _run(root: Path, judge: Callable[[int], float]) -> tuple[float, float]:
    """Return the share of even tokens before and after training with a judge."""
    model_dir = make_tiny_model(root / "model")
    config = TrainingConfig(lora=LoraConfig(rank=0))
    learner = Learner(model_dir, ModelConfig(path=str(model_dir)), config, root / "checkpoints")
    generator = torch.Generator().manual_seed(0)
    shares = []
    for version in range(STEPS + 1):
        probabilities = _distribution(learner)
        shares.append(float(probabilities[::2].sum()))
        tokens = torch.multinomial(probabilities, BATCH, True, generator=generator).tolist()
        episodes = [
            make_episode(
                make_completion(
                    f"c{i}", PROMPT, (token,), logprobs=(float(probabilities[token].log()),)
                ),
                episode_id=f"ep-{i}",
                reward=judge(token),
            )
            for i, token in enumerate(tokens)
        ]
        advantages = [
            episode_advantage(scored_episode(e, 1.0), {}, REWARD).by_completion for e in episodes
        ]
        learner.step(make_request(episodes, advantages, base_version=version))
    return shares[0], statistics.mean(shares[-3:])


def test_the_reward_rises(tmp_path: Path) -> None:
    before, after = _run(tmp_path, lambda token: 1.0 if _is_even(token) else -1.0)
    assert before == pytest.approx(0.5, abs=0.1)
    assert after > 0.9


def test_rewards_that_say_nothing_teach_nothing(tmp_path: Path) -> None:
    by_turns = {even: itertools.cycle((1.0, -1.0)) for even in (True, False)}
    before, after = _run(tmp_path, lambda token: next(by_turns[_is_even(token)]))
    assert after == pytest.approx(before, abs=0.25)
