"""The oldest sessions make room, in whole groups, and never what may still be trained."""

from __future__ import annotations

import time

import pytest
from fakes.clock import Clock
from fakes.siblings import complete, scored, sibling

from hermes_tui_training.api.config import StoreConfig
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import CompletionOutcome
from hermes_tui_training.store.retention import forget_excess
from hermes_tui_training.store.store import Store, UnknownIdError


def group_ids(store: Store) -> list[str]:
    return sorted({session.group_id for session in store.sessions.newest()})


def used(store: Store, clock: Clock, group_id: str, at: float) -> str:
    """Start a session of a group and use it once; return its episode's id."""
    clock.now = at
    return complete(store, sibling(store, group_id))


def test_the_group_that_was_used_the_longest_ago_goes_whole(store: Store, clock: Clock) -> None:
    first, second = sibling(store, "a"), sibling(store, "a")
    gone = [complete(store, first), complete(store, second)]
    kept = used(store, clock, "b", 2000.0)

    assert store.retention.forget_oldest(idle_since=3000.0) == [first, second]

    assert group_ids(store) == ["b"]
    assert [episode.episode_id for episode in store.episodes.find()] == [kept]
    for episode_id in gone:
        with pytest.raises(UnknownIdError):
            store.episodes.get(episode_id)
    told = [e.payload for e in store.events.stored() if e.kind == EventKind.SESSION_FORGOTTEN]
    assert told == [{"session_id": first}, {"session_id": second}]


def test_a_group_of_which_one_sibling_is_in_use_stays(store: Store, clock: Clock) -> None:
    complete(store, sibling(store, "a"))
    used(store, clock, "a", 2000.0)
    assert store.retention.forget_oldest(idle_since=2000.0) == []
    assert group_ids(store) == ["a"]


def test_what_waits_for_a_step_or_is_in_one_stays(store: Store, clock: Clock) -> None:
    session_id = sibling(store, "a")
    episode_id = scored(store, session_id)
    assert store.retention.forget_oldest(idle_since=9e9) == []
    store.steps.claim(step=1, limit=1, min_count=1, scored_before=9e9, min_policy_version=0)
    assert store.retention.forget_oldest(idle_since=9e9) == []
    row = {"step": 1, "policy_version": 1, "episode_ids": [episode_id]}
    store.steps.commit(row, trained=[], baselines={})

    assert store.retention.forget_oldest(idle_since=9e9) == [session_id]
    assert store.steps.rows() == [row]
    assert store.steps.policy_version() == 1


def begin(store: Store, session_id: str, num_prompt_tokens: int = 1) -> None:
    """Begin a completion, which then runs."""
    store.completions.begin(
        completion_id=f"completion-of-{session_id}",
        session_id=session_id,
        prompt_token_ids=[7] * num_prompt_tokens,
        sampling={},
        request_messages=[],
        tools=[],
        prefix={},
    )


def finish(store: Store, session_id: str) -> None:
    """End the completion that ``begin`` began."""
    store.completions.finish(
        CompletionOutcome(
            completion_id=f"completion-of-{session_id}",
            token_ids=(4, 5),
            logprobs=(-1.0, -1.0),
            policy_versions=(0, 0),
            finish_reason="stop",
            message={},
            latency={},
            trainable=True,
            untrainable_reason=None,
        )
    )


def test_a_completion_that_runs_keeps_its_group(store: Store) -> None:
    begin(store, sibling(store, "a"))
    assert store.retention.forget_oldest(idle_since=9e9) == []


async def test_the_oldest_go_until_the_rest_fits(store: Store, clock: Clock) -> None:
    for number in range(20):
        clock.now = 1000.0 + number
        session_id = sibling(store, f"group-{number:02}")
        begin(store, session_id, num_prompt_tokens=10_000)
        finish(store, session_id)
    before = store.retention.num_bytes()

    gone = await forget_excess(store, StoreConfig(max_bytes=int(before * 0.8), keep_s=0.0))

    assert 0 < gone < 8
    assert store.retention.num_bytes() <= before * 0.8
    assert group_ids(store) == [f"group-{number:02}" for number in range(gone, 20)]


async def test_the_bound_gives_way_to_what_is_in_use(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    used(store, clock, "a", time.time())
    assert await forget_excess(store, StoreConfig(max_bytes=1, keep_s=3600.0)) == 0
    assert group_ids(store) == ["a"]
    assert "max_bytes=1" in caplog.text


async def test_without_a_bound_nothing_is_forgotten(store: Store, clock: Clock) -> None:
    used(store, clock, "a", 1000.0)
    assert await forget_excess(store, StoreConfig(max_bytes=0, keep_s=0.0)) == 0
    assert group_ids(store) == ["a"]
