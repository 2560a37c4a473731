"""What a session is about: the rule, and that scores are compared within a topic."""

from __future__ import annotations

import pytest

from hermes_tui_training.algorithm.step_batch import make_step_batch
from hermes_tui_training.algorithm.topics import topic_of
from hermes_tui_training.api.config import RewardConfig, TopicsConfig, TrainingConfig, is_topic
from hermes_tui_training.api.types import Completion, Episode


@pytest.mark.parametrize(
    ("message", "topic"),
    [
        ("Why does my Python script fail?", "code"),
        ("WHAT is this?", "questions"),
        ("How many legs have two dogs?", "numbers"),
        ("A codebase, whatsoever", "chat"),
        ("", "chat"),
    ],
)
def test_the_first_topic_with_a_word_of_the_message(message: str, topic: str) -> None:
    assert topic_of("chat", message, TopicsConfig()) == topic


def test_a_task_that_somebody_named_is_its_own_topic() -> None:
    assert topic_of("invoices", "Write a function", TopicsConfig()) == "invoices"


def test_a_person_has_other_words() -> None:
    config = TopicsConfig(words={"Garten": ("Rose", "Beet")})
    assert topic_of("chat", "Was tut der Rose gut?", config) == "Garten"
    assert topic_of("chat", "Write a function", config) == "chat"


@pytest.mark.parametrize("text", ["", "  ", "a#2", "two\nlines", "x" * 41])
def test_what_is_no_topic(text: str) -> None:
    assert not is_topic(text)
    with pytest.raises(ValueError, match="words"):
        TopicsConfig(words={text: ("w",)})


def episode(number: int, topic: str, reward: float) -> Episode:
    completion = Completion(
        completion_id=f"c-{number}",
        episode_id=f"ep-{number}",
        turn_index=0,
        created_at=0.0,
        prompt_token_ids=(1,),
        token_ids=(2,),
        logprobs=(-1.0,),
        policy_versions=(0,),
        finish_reason="stop",
        sampling={"temperature": 1.0},
        request_messages=[],
        message={},
        trainable=True,
    )
    return Episode(
        episode_id=f"ep-{number}",
        session_id=f"s-{number}",
        group_id=f"g-{number}",
        task_id="chat",
        topic=topic,
        state="claimed",
        reward=reward,
        created_at=0.0,
        completions=(completion,),
    )


def test_a_score_is_measured_against_its_topic_not_against_the_task() -> None:
    training = TrainingConfig(reward=RewardConfig(baseline_decay=0.9))
    before = {"": 0.5, "code": 0.8, "chat": -1.0}
    batch = make_step_batch([[episode(1, "code", 1.0)], [episode(2, "", 1.0)]], before, training)
    advantages = [one.by_completion for one in batch.advantages]
    assert advantages == [{"c-1": pytest.approx(0.2)}, {"c-2": pytest.approx(2.0)}]
    assert batch.baselines["code"] == pytest.approx(0.82)
    assert batch.baselines["chat"] == pytest.approx(-0.8), "without a topic it is the task's"
