"""Advantages by value."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from fakes.episodes import make_completion, make_episode
from pydantic import ValidationError

from hermes_tui_training.algorithm import advantages as algorithm
from hermes_tui_training.algorithm.advantages import (
    RUN,
    EpisodeAdvantage,
    completion_returns,
    scored_episode,
)
from hermes_tui_training.algorithm.step_batch import make_step_batch
from hermes_tui_training.api.config import GroupConfig, RewardConfig, TrainingConfig
from hermes_tui_training.api.types import Episode


def episode_advantage(
    episode: Episode, baselines: dict[str, float], config: RewardConfig
) -> EpisodeAdvantage:
    scored = scored_episode(episode, config.turn_discount)
    return algorithm.episode_advantage(scored, baselines, config)


def group_advantages(
    episodes: list[Episode], reward: RewardConfig, group: GroupConfig
) -> list[EpisodeAdvantage]:
    scored = [scored_episode(episode, reward.turn_discount) for episode in episodes]
    return algorithm.group_advantages(scored, reward, group)


def updated_baselines(
    baselines: dict[str, float], episodes: list[Episode], config: RewardConfig
) -> dict[str, float]:
    scored = [scored_episode(episode, config.turn_discount) for episode in episodes]
    return algorithm.updated_baselines(baselines, scored, config)


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
    assert updated_baselines({}, [episode], config) == {}


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


def _config(**changes: float) -> RewardConfig:
    return RewardConfig(**{"baseline_decay": 0.9, **changes})


def _chat(*rewards: float | None) -> Episode:
    """Return a chat of judged turns; None for a turn without a score of its own."""
    turns = [make_completion(f"c{i}", reward=reward) for i, reward in enumerate(rewards, 1)]
    return make_episode(*turns, whole=False)


@pytest.mark.parametrize(
    ("rewards", "discount", "expected"),
    [
        ((1.0, -1.0, 1.0), 1.0, [1.0, -1.0, 1.0]),
        ((1.0, 1.0, 1.0), 1.0, [1.0, 1.0, 1.0]),
        ((None, None, 1.0), 0.5, [0.25, 0.5, 1.0]),
        ((None, -1.0, None, 1.0), 0.5, [-0.5, -1.0, 0.5, 1.0]),
        ((1.0, None), 1.0, [1.0]),
    ],
)
def test_a_judged_turn_has_its_own_score_and_hands_it_back_to_those_before(
    rewards: tuple[float | None, ...], discount: float, expected: list[float]
) -> None:
    config = RewardConfig(turn_discount=discount)
    assert list(episode_advantage(_chat(*rewards), {}, config).by_completion.values()) == expected


def test_praise_is_never_punished_however_often_it_was_given() -> None:
    config, baselines = RewardConfig(), {}
    for _ in range(50):
        baselines = updated_baselines(baselines, [_chat(1.0, 1.0, 1.0)], config)
        advantage = episode_advantage(_chat(0.2, 1.0, 0.1), baselines, config)
        assert list(advantage.by_completion.values()) == [0.2, 1.0, 0.1]


def test_a_turn_is_measured_against_the_baseline_of_its_position() -> None:
    baselines: dict[str, float] = {}
    for _ in range(100):
        baselines = updated_baselines(baselines, [_chat(1.0, 0.0, -1.0)], _config())
    advantage = episode_advantage(_chat(1.0, 1.0, 1.0), baselines, _config())
    assert list(advantage.by_completion.values()) == pytest.approx([0.0, 1.0, 2.0], abs=0.01)
    # Measured first, discounted then: an unjudged turn gets half of what the next one has.
    halved = _config(turn_discount=0.5)
    advantage = episode_advantage(_chat(None, 1.0), baselines, halved)
    assert list(advantage.by_completion.values()) == pytest.approx([0.5, 1.0], abs=0.01)


def test_a_reply_that_was_cut_is_trained_when_a_score_names_it() -> None:
    cut = make_completion("c2", trainable=False, untrainable_reason="truncated")
    inherited = make_episode(make_completion("c1"), cut, reward=-1.0)
    assert episode_advantage(inherited, {}, RewardConfig()).by_completion == {"c1": -1.0}
    named = make_episode(make_completion("c1"), replace(cut, reward=-1.0), whole=False)
    advantage = episode_advantage(named, {}, RewardConfig())
    assert advantage.by_completion == {"c1": -1.0, "c2": -1.0}
    mismatch = replace(cut, reward=-1.0, untrainable_reason="sampling_mismatch")
    assert episode_advantage(make_episode(mismatch, whole=False), {}, _config()).by_completion == {}


def _siblings(*rewards: float) -> list[Episode]:
    return [
        make_episode(make_completion(f"c{i}"), episode_id=f"ep-{i}", reward=reward)
        for i, reward in enumerate(rewards)
    ]


def _group(*rewards: float, **group: object) -> list[float]:
    """Return the advantages of siblings with these rewards; none for nothing to learn."""
    config = GroupConfig(**group)  # type: ignore[arg-type]
    found = group_advantages(_siblings(*rewards), _config(), config)
    assert [one.episode_id for one in found] == [f"ep-{i}" for i in range(len(rewards))]
    return [value for one in found for value in one.by_completion.values()]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        # 1 against the mean of (0, -1), 0 against that of (1, -1), -1 against that of (1, 0).
        ({}, [1.5, 0.0, -1.5]),
        ({"advantage": "mean"}, [1.0, 0.0, -1.0]),
        # The standard deviation of (1, 0, -1) is the root of 2/3.
        ({"advantage": "mean", "divide_by_std": True}, [1.5**0.5, 0.0, -(1.5**0.5)]),
        ({"divide_by_std": True}, [1.5**1.5, 0.0, -(1.5**1.5)]),
    ],
)
def test_siblings_are_measured_against_each_other(
    group: dict[str, object], expected: list[float]
) -> None:
    assert _group(1.0, 0.0, -1.0, **group) == pytest.approx(expected)


@pytest.mark.parametrize("divide_by_std", [False, True])
@pytest.mark.parametrize("advantage", ["leave_one_out", "mean"])
@pytest.mark.parametrize("reward", [1.0, 0.7, 0.1, -0.3])
def test_siblings_that_all_did_well_or_all_badly_are_measured_against_zero(
    reward: float, advantage: str, divide_by_std: bool
) -> None:
    for size in (2, 3, 7):
        rewards = [reward] * size
        assert _group(*rewards, advantage=advantage, divide_by_std=divide_by_std) == rewards
        # The least praised of a praised group is not pushed down for it.
        rewards[0] /= 2
        assert _group(*rewards, advantage=advantage, divide_by_std=divide_by_std) == rewards


def test_siblings_that_are_all_neutral_have_nothing_to_learn() -> None:
    assert _group(0.0, 0.0, 0.0) == []


def test_a_groups_advantages_do_not_depend_on_the_order() -> None:
    rewards = [0.3, -0.8, 0.1, 0.9]
    forward, backward = _group(*rewards), _group(*reversed(rewards))
    assert forward == pytest.approx(backward[::-1], abs=1e-12)
    assert sum(forward) == pytest.approx(0.0, abs=1e-12)


def test_scale_and_clip_hold_for_groups_and_a_bias_cancels() -> None:
    config = _config(scale=10.0, bias=-0.5, clip=12.0)
    found = group_advantages(_siblings(1.0, 0.0), config, GroupConfig())
    assert [one.mean for one in found] == [10.0, -10.0]
    found = group_advantages(_siblings(1.0, -1.0), config, GroupConfig())
    assert [one.mean for one in found] == [12.0, -12.0]


def test_each_completion_of_a_sibling_is_measured_against_the_others_mean() -> None:
    long = make_episode(make_completion("a"), make_completion("b"), episode_id="long", reward=1.0)
    short = make_episode(make_completion("c"), episode_id="short", reward=0.0)
    found = group_advantages([long, short], _config(turn_discount=0.5), GroupConfig())
    assert found[0].by_completion == {"a": 0.5, "b": 1.0}
    assert found[1].by_completion == {"c": -0.75}
    assert (found[0].baseline, found[1].baseline) == (0.0, 0.75)


def test_a_centred_group_of_one_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValidationError, match=r"min_size(.|\n)*a group of one.*always zero"):
        GroupConfig(min_size=1)
    with pytest.raises(AssertionError, match="never centred"):
        group_advantages(_siblings(1.0), _config(), GroupConfig())


def test_a_lesson_of_groups_and_lone_episodes() -> None:
    good, bad, alike = _siblings(1.0, -1.0), _siblings(0.0, 0.0), _siblings(1.0)
    ids = itertools.count()
    groups = [
        [replace(episode, episode_id=f"e{next(ids)}") for episode in members]
        for members in (good, bad, alike)
    ]
    running = TrainingConfig(reward=RewardConfig(baseline_decay=0.9))
    batch = make_step_batch(groups, {"task": 0.25}, running)
    assert [episode.episode_id for episode in batch.episodes] == ["e0", "e1", "e4"]
    assert [one.mean for one in batch.advantages] == [2.0, -2.0, 0.75]
    assert batch.unlearnable == ["e2", "e3"]
    assert batch.num_groups == 1
    # With a larger least size the same siblings are lone episodes.
    alone = running.model_copy(update={"group": GroupConfig(min_size=3)})
    batch = make_step_batch(groups, {"task": 0.25}, alone)
    assert [one.mean for one in batch.advantages] == [0.75, -1.25, -0.25, -0.25, 0.75]
    assert batch.num_groups == 0
