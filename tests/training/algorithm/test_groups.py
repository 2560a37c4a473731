"""Siblings are claimed together, wait for each other for a while, and never mix."""

from __future__ import annotations

import pytest
from fakes.clock import Clock
from fakes.siblings import complete, scored, sibling

from hermes_tui_training.algorithm.groups import waiting_text
from hermes_tui_training.store.store import ConflictError, Store


def claim(store: Store, *, limit: int = 10, timed_out: bool = False) -> list[list[str]]:
    groups = store.steps.claim(
        step=1,
        limit=limit,
        min_count=1,
        scored_before=1e12,
        group_scored_before=1e12 if timed_out else 0.0,
        min_policy_version=0,
    )
    return [[episode.episode_id for episode in group] for group in groups]


def awaited(store: Store) -> list[int]:
    return [group.num_awaited for group in store.steps.sibling_groups()]


def test_siblings_are_claimed_together_once_all_are_scored(store: Store) -> None:
    one, two, three = (sibling(store) for _ in range(3))
    first = scored(store, one)
    assert awaited(store) == [2]
    assert claim(store) == []
    second, third = scored(store, two), complete(store, three)
    assert claim(store) == []
    store.rewards.set(third, -1.0)
    assert awaited(store) == [0]
    assert claim(store) == [[first, second, third]]
    assert {store.episodes.get(i).state for i in (first, second, third)} == {"claimed"}


def test_after_the_timeout_those_go_that_have_a_reward(store: Store, clock: Clock) -> None:
    one, two, three = (sibling(store) for _ in range(3))
    first, second, late = scored(store, one), scored(store, two), complete(store, three)
    (group,) = store.steps.sibling_groups()
    assert (group.num_siblings, group.num_awaited) == (3, 1)
    assert group.ready_at(grace_s=2.0, timeout_s=60.0) == 1060.0
    assert claim(store) == []
    assert claim(store, timed_out=True) == [[first, second]]
    store.rewards.set(late, 1.0)  # too late for its group: a lone episode
    assert claim(store) == [[late]]


def test_the_timeout_counts_from_the_first_reward_and_grace_from_the_last(
    store: Store, clock: Clock
) -> None:
    one, two, _ = (sibling(store) for _ in range(3))
    scored(store, one)
    clock.now = 1059.0
    scored(store, two)
    (group,) = store.steps.sibling_groups()
    assert group.ready_at(grace_s=2.0, timeout_s=60.0) == 1061.0
    assert group.ready_at(grace_s=0.5, timeout_s=60.0) == 1060.0


@pytest.mark.parametrize("begun", [False, True])
def test_a_closed_sibling_is_not_waited_for(store: Store, begun: bool) -> None:
    one, two = sibling(store), sibling(store)
    if begun:  # then it may still be judged, unless it was closed without a reward
        complete(store, two)
    first = scored(store, one)
    assert awaited(store) == [1]
    store.sessions.end(two)
    assert awaited(store) == [int(begun)]
    assert claim(store, timed_out=begun) == [[first]]


def test_a_sibling_that_left_its_key_is_not_waited_for(store: Store) -> None:
    made = store.sessions.create(key_hash="k", task_id="t", group_id="siblings")
    complete(store, made.session_id)
    first = scored(store, sibling(store))
    assert awaited(store) == [1]
    store.sessions.create(key_hash="k", task_id="t", group_id="another")  # the key goes on
    assert awaited(store) == [0]
    assert claim(store) == [[first]]


def test_groups_of_different_tasks_never_mix(store: Store) -> None:
    sessions = [sibling(store, group, f"task {group}") for group in ("a", "b", "a", "b")]
    ids = [scored(store, session_id) for session_id in sessions]
    assert claim(store) == [[ids[0], ids[2]], [ids[1], ids[3]]]
    with pytest.raises(ConflictError, match="belongs to the task"):
        sibling(store, "a", "task b")


def test_rounds_of_one_group_are_held_apart(store: Store) -> None:
    one, two, three = (sibling(store) for _ in range(3))
    first = [scored(store, session_id) for session_id in (one, two, three)]
    # A person goes on with the second alone, then with the first and the third as well.
    alone = scored(store, two)
    assert claim(store, limit=1) == [first]
    assert claim(store) == [[alone]]
    again, open_ = scored(store, one), complete(store, three)
    assert awaited(store) == [1]
    store.rewards.set(open_, 1.0)
    assert claim(store) == [[again, open_]]


def test_a_batch_counts_groups_and_lone_episodes_oldest_first(store: Store) -> None:
    lone, one, two = sibling(store, "lone"), sibling(store), sibling(store)
    ids = [scored(store, session_id) for session_id in (one, lone, two)]
    later = scored(store, sibling(store, "later"))
    assert [group.episode_ids for group in store.steps.sibling_groups()] == [
        (ids[0], ids[2]),
        (ids[1],),
        (later,),
    ]
    assert claim(store, limit=2) == [[ids[0], ids[2]], [ids[1]]]


def test_an_episode_that_cannot_be_trained_leaves_its_group(store: Store) -> None:
    one, two, three = (sibling(store) for _ in range(3))
    cut = complete(store, one, truncated=True)
    store.rewards.set(cut, -1.0)
    rest = [scored(store, two), scored(store, three)]
    assert claim(store) == [rest]
    assert store.episodes.get(cut).dropped_reason == "truncated"


def test_taking_a_reward_back_makes_the_group_wait_again(store: Store) -> None:
    one, two = sibling(store), sibling(store)
    first, second = scored(store, one), scored(store, two)
    store.rewards.unset(second)
    assert awaited(store) == [1]
    store.rewards.set(second, 1.0)
    assert claim(store) == [[first, second]]


def test_released_siblings_are_claimed_together_again(store: Store) -> None:
    ids = [scored(store, session_id) for session_id in (sibling(store), sibling(store))]
    assert claim(store) == [ids]
    store.steps.release_claims()
    assert claim(store) == [ids]


def test_what_is_waited_for_is_said(store: Store, clock: Clock) -> None:
    def said(now: float, batch_size: int = 1) -> str:
        return waiting_text(
            store.steps.sibling_groups(),
            batch_size=batch_size,
            grace_s=2.0,
            timeout_s=60.0,
            now=now,
        )

    assert said(1000.0) == "0 of 1 scored"
    scored(store, sibling(store))
    two, _ = sibling(store), sibling(store)
    assert said(1018.0) == (
        "0 of 1 scored; group siblings has 1 of 3 scored and waits up to 42 s for the others"
    )
    scored(store, two)
    assert said(1061.0) == "0 of 1 scored"
    scored(store, sibling(store, "lone"))
    assert said(1000.5, 2).startswith("1 of 2 scored; group siblings has 2 of 3 scored")
    assert said(1000.5).startswith("1 of 1 scored; 1.5 s left to take it back; group siblings has")
