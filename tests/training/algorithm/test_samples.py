"""Samples: what the loss sees is what the engine was given and sampled."""

from __future__ import annotations

from dataclasses import dataclass

from fakes.episodes import make_completion, make_episode
from hypothesis import given
from hypothesis import strategies as st

from hermes_tui_training.algorithm.samples import flatten, segments, training_samples
from hermes_tui_training.api.types import Completion


def test_turns_that_continue_each_other_are_one_sample() -> None:
    first = make_completion("c1", (1, 2, 3), (4, 5), version=3, logprobs=(-0.5, -0.25))
    second = make_completion(
        "c2", (1, 2, 3, 4, 5, 6), (7,), version=4, logprobs=(-2.0,), temperature=0.5
    )

    (sample,) = training_samples(make_episode(first, second), {"c1": 0.5, "c2": -1.0})

    assert sample.token_ids == (1, 2, 3, 4, 5, 6, 7)
    assert sample.loss_mask == (False, False, False, True, True, False, True)
    assert sample.behavior_logprobs == (0, 0, 0, -0.5, -0.25, 0, -2.0)
    assert sample.policy_versions == (-1, -1, -1, 3, 3, -1, 4)
    assert [(s.completion_id, s.start, s.num_tokens) for s in sample.spans] == [
        ("c1", 3, 2),
        ("c2", 6, 1),
    ]
    assert [(s.advantage, s.temperature) for s in sample.spans] == [(0.5, 1.0), (-1.0, 0.5)]


def test_a_changed_history_begins_a_new_sample() -> None:
    first = make_completion("c1", (1, 2, 3), (4, 5))
    edited = make_completion("c2", (1, 9, 3, 4, 5, 6), (7,))

    samples = training_samples(make_episode(first, edited), {"c1": 1.0, "c2": 1.0})

    assert [s.token_ids for s in samples] == [(1, 2, 3, 4, 5), (1, 9, 3, 4, 5, 6, 7)]


def test_a_call_beside_the_turns_does_not_break_their_sequence() -> None:
    turn = make_completion("c1", (1, 2), (3,))
    title = make_completion("c2", (8, 8), (9,), kind="aux", trainable=False)
    next_turn = make_completion("c3", (1, 2, 3, 4), (5,))

    (sample,) = training_samples(make_episode(turn, title, next_turn), {"c1": 1.0, "c3": 1.0})

    assert sample.token_ids == (1, 2, 3, 4, 5)


def test_untrainable_completions_are_context_and_never_trained() -> None:
    first = make_completion("c1", (1,), (2, 3), trainable=False, untrainable_reason="truncated")
    second = make_completion("c2", (1, 2, 3, 4), (5,))
    last = make_completion("c3", (1, 2, 3, 4, 5, 6), (7,), trainable=False)

    (sample,) = training_samples(make_episode(first, second, last), {"c2": 1.0})

    assert sample.token_ids == (1, 2, 3, 4, 5)  # what follows the last trained token is cut
    assert sample.loss_mask == (False, False, False, False, True)
    assert training_samples(make_episode(first), {}) == []


def test_greedy_completions_have_undivided_logits() -> None:
    (sample,) = training_samples(make_episode(make_completion("c", temperature=0.0)), {"c": 1.0})
    assert [span.temperature for span in sample.spans] == [1.0]


@dataclass(frozen=True)
class _Turn:
    extra_prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    breaks: bool


_ids = st.lists(st.integers(1, 50), min_size=1, max_size=6).map(tuple)
_turns = st.lists(st.builds(_Turn, _ids, _ids, st.booleans()), min_size=1, max_size=8)


def _conversation(turns: list[_Turn]) -> list[Completion]:
    completions, history = [], ()
    for index, turn in enumerate(turns):
        if turn.breaks:
            history = (100 + index,)  # no earlier prompt begins with it
        prompt = history + turn.extra_prompt
        completions.append(make_completion(f"c{index}", prompt, turn.sampled))
        history = prompt + turn.sampled
    return completions


@given(_turns)
def test_samples_hold_exactly_what_was_given_and_sampled(turns: list[_Turn]) -> None:
    completions = _conversation(turns)
    found = segments(completions)
    assert sum(len(s.completions) for s in found) == len(completions)
    assert len(found) == 1 + sum(turn.breaks for turn in turns[1:])

    weights = {c.completion_id: 1.0 for c in completions}
    samples = training_samples(make_episode(*completions), weights)

    by_id = {c.completion_id: c for c in completions}
    seen = set()
    for sample in samples:
        for span in sample.spans:
            completion = by_id[span.completion_id]
            stop = span.start + span.num_tokens
            assert sample.token_ids[: span.start] == completion.prompt_token_ids
            assert sample.token_ids[span.start : stop] == completion.token_ids
            assert sample.behavior_logprobs[span.start : stop] == completion.logprobs
            seen.add(span.completion_id)
        assert sum(sample.loss_mask) == sample.num_trainable_tokens
    assert seen == set(by_id)


def test_a_flat_sequence_marks_what_is_trained_and_tells_all_that_was_sampled() -> None:
    first = make_completion("c1", (1, 2), (3, 4), version=5)
    second = make_completion("c2", (1, 2, 3, 4, 9), (6,), version=7, logprobs=(-2.0,))
    flat = flatten([first, second], {"c2"})
    assert flat.token_ids == (1, 2, 3, 4, 9, 6)
    assert flat.loss_mask == (False, False, False, False, False, True)
    assert flat.logprobs == (0.0, 0.0, -1.0, -1.125, 0.0, -2.0)
    assert flat.policy_versions == (-1, -1, 5, 5, -1, 7)
