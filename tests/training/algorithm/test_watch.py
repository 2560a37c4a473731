"""What the watch sees in replies and steps, by value."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hermes_tui_training.algorithm.watch import (
    WINDOW,
    RecentReply,
    reply_health,
    warnings_of,
)

QUESTIONS = ("Do birds fly?", "Is ice hot?", "What is a sea?", "Who are you?")
ORDINARY = ("Yes, most of them do.", "It is cold.", "A large body of salt water.", "Somebody.")


def _replies(*texts: str, num_tokens: int = 8, questions: int = 4) -> list[RecentReply]:
    return [
        RecentReply(question=QUESTIONS[i % questions], text=text, num_tokens=num_tokens)
        for i, text in enumerate(texts)
    ]


def _ordinary(number: int, num_tokens: int = 8) -> list[RecentReply]:
    return _replies(*(ORDINARY * number)[:number], num_tokens=num_tokens)


def _steps(*entropies: float, reference_kl: float | None = 0.01) -> list[dict[str, Any]]:
    return [{"entropy": entropy, "reference_kl": reference_kl} for entropy in entropies]


def test_ordinary_replies_are_no_matter() -> None:
    health = reply_health(_ordinary(20))
    assert (health.num_replies, health.num_questions) == (10, 4)
    assert health.alike_frac == pytest.approx(0.3)
    assert health.repetition == 0.0
    assert warnings_of(health, _steps(*[1.0] * 30)) == {}


def test_one_answer_for_all_is_seen_whatever_follows_it() -> None:
    replies = _replies("Yes.", *[f"No, birds do not have {i}." for i in range(9)])
    found = warnings_of(reply_health(replies), [])
    assert found == {
        "one_answer": "9 of the last 10 replies begin with 'no', to 4 different questions"
    }
    same_question = _replies(*["No."] * 10, questions=2)
    assert warnings_of(reply_health(same_question), []) == {}
    assert warnings_of(reply_health(replies[1:]), []) == {}, "too few to tell"


def test_empty_replies_are_one_answer() -> None:
    assert list(warnings_of(reply_health(_replies(*[""] * 10)), [])) == ["one_answer"]


def test_repetition_is_seen() -> None:
    # Five words said four times: 18 runs of three words, 5 of them different.
    text = "the sea is very blue " * 4
    health = reply_health(_replies(*[f"{w} {text}" for w in "abcdefghij"]))
    assert health.repetition == pytest.approx(1 - 6 / 19)
    assert list(warnings_of(health, [])) == ["repetition"]


@pytest.mark.parametrize(("before", "now"), [(20, 8), (8, 20)])
def test_lengths_that_run_away_are_seen(before: int, now: int) -> None:
    replies = _ordinary(WINDOW, before) + _ordinary(WINDOW, now)
    found = warnings_of(reply_health(replies), [])
    assert found == {"length": f"replies went from {before} to {now} tokens"}
    assert warnings_of(reply_health(_ordinary(WINDOW, now)), []) == {}, "nothing to compare with"


def test_entropy_that_falls_away_is_seen() -> None:
    health = reply_health(_ordinary(20))
    assert warnings_of(health, _steps(*[2.0] * 10, *[0.7] * 10)) == {}
    assert list(warnings_of(health, _steps(*[2.0] * 10, *[0.5] * 10))) == ["entropy"]


def test_a_reference_text_that_moved_is_seen_and_a_nan_is_not_well() -> None:
    health = reply_health(_ordinary(20))
    assert list(warnings_of(health, _steps(1.0, reference_kl=0.31))) == ["reference"]
    assert list(warnings_of(health, _steps(1.0, reference_kl=math.nan))) == ["reference"]
    assert warnings_of(health, _steps(1.0, reference_kl=None)) == {}
