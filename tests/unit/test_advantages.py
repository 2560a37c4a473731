"""Advantages by value."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.episodes import make_completion, make_episode

from hermes_tui_training.advantages import (
    RUN,
    completion_returns,
    episode_advantage,
    updated_baselines,
)
from hermes_tui_training.config import RewardConfig


def _three(**rewards: float) -> list:
    return [make_completion(f"c{i}", reward=rewards.get(f"c{i}")) for i in (1, 2, 3)]


def test_a_final_reward_is_discounted_back() -> None:
    episode = make_episode(*_three(), reward=1.0)
    assert completion_returns(episode, 0.5) == {"c1": 0.25, "c2": 0.5, "c3": 1.0}
    assert completion_returns(episode, 1.0) == {"c1": 1.0, "c2": 1.0, "c3": 1.0}


def test_rewards_of_single_completions_all_arrive() -> None:
    episode = make_episode(*_three(c1=1.0, c3=-0.5), reward=-0.5, whole=False)
    assert completion_returns(episode, 0.0) == {"c1": 1.0, "c2": 0.0, "c3": -0.5}
    assert completion_returns(episode, 0.5) == {"c1": 0.875, "c2": -0.25, "c3": -0.5}


def test_a_reward_of_the_whole_joins_those_of_single_completions() -> None:
    episode = make_episode(*_three(c1=1.0), reward=-1.0)
    assert completion_returns(episode, 0.0) == {"c1": 1.0, "c2": 0.0, "c3": -1.0}


def test_calls_beside_the_turns_take_no_part() -> None:
    turn, title = make_completion("c1"), make_completion("aux", kind="aux", trainable=False)
    assert completion_returns(make_episode(turn, title, reward=1.0), 0.5) == {"c1": 1.0}


def test_a_reward_on_an_untrainable_reply_goes_to_what_led_there() -> None:
    turn, cut = make_completion("c1"), make_completion("c2", trainable=False)
    assert completion_returns(make_episode(turn, cut, reward=-1.0), 0.5) == {"c1": -1.0}
    assert completion_returns(make_episode(cut, turn, reward=-1.0), 0.5) == {"c1": -1.0}
    assert completion_returns(make_episode(cut, reward=-1.0), 0.5) == {}


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_a_lone_episode_keeps_its_signal(reward: float) -> None:
    advantage = episode_advantage(make_episode(make_completion("c"), reward=reward), {}, _config())
    assert advantage.by_completion == {"c": reward}
    assert advantage.baseline == 0.0


def test_the_advantage_is_measured_against_the_tasks_baseline() -> None:
    episode = make_episode(make_completion("c"), reward=1.0, task_id="a")
    assert episode_advantage(episode, {"a": 0.25, RUN: 0.5}, _config()).mean == 0.75
    assert episode_advantage(episode, {"b": 0.25, RUN: 0.5}, _config()).mean == 0.5


def test_nothing_to_learn_is_nothing() -> None:
    episode = make_episode(make_completion("c"), reward=0.5)
    assert episode_advantage(episode, {"task": 0.5}, _config()).by_completion == {}


@pytest.mark.parametrize(("reward", "expected"), [(1.0, 5.0), (0.0, -5.0), (-1.0, -15.0)])
def test_areals_example_has_its_numbers(reward: float, expected: float) -> None:
    config = RewardConfig(bias=-0.5, scale=10, clip=20, baseline_decay=1.0)
    episode = make_episode(make_completion("c"), reward=reward)
    assert episode_advantage(episode, {}, config).mean == expected
    assert updated_baselines({}, [episode], config) == {"task": 0.0, RUN: 0.0}


def test_the_advantage_is_clipped() -> None:
    config = RewardConfig(scale=100.0, clip=20.0)
    assert episode_advantage(make_episode(make_completion("c")), {}, config).mean == 20.0


def test_the_baseline_is_a_moving_average_from_zero() -> None:
    first = make_episode(make_completion("c"), reward=1.0, task_id="a")
    second = replace(first, reward=-1.0)
    other = replace(first, task_id="b")

    baselines = updated_baselines({}, [first, second, other], _config())

    assert baselines["a"] == pytest.approx(0.9 * 0.1 - 0.1)
    # A task's first episode starts from the run's baseline, which saw the same two rewards.
    assert baselines["b"] == pytest.approx(0.9 * (0.9 * 0.1 - 0.1) + 0.1)
    assert baselines[RUN] == baselines["b"]
    assert updated_baselines(baselines, [], _config()) == baselines


def _config() -> RewardConfig:
    return RewardConfig(baseline_decay=0.9)
