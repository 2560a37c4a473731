"""The trainer's database, by value."""

from __future__ import annotations

import asyncio
import sqlite3
import struct
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.clock import Clock

from hermes_tui_common.errors import ConfigError
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import CompletionOutcome, Episode, TrainedCompletion
from hermes_tui_training.store.rewards import NoRewardError
from hermes_tui_training.store.store import (
    ConflictError,
    Store,
    UnknownIdError,
    hash_key,
    new_id,
)
from hermes_tui_training.store.transactions import EVENTS_KEPT


def session(
    store: Store, *, task_id: str = "task", key: str = "", group_id: str = "group-1"
) -> str:
    made = store.sessions.create(
        key_hash=hash_key(key or new_id("k")), task_id=task_id, group_id=group_id
    )
    return made.session_id


def begin(store: Store, session_id: str, **kwargs: Any) -> tuple[str, str]:
    """Begin a completion; return its id and its episode's."""
    completion_id = new_id("chatcmpl-")
    episode_id, _ = store.completions.begin(
        **{
            "completion_id": completion_id,
            "session_id": session_id,
            "prompt_token_ids": [1, 2, 3],
            "sampling": {"temperature": 1.0},
            "request_messages": [{"role": "user", "content": "hé \ud800 <"}],
            "tools": [],
            "prefix": {},
            **kwargs,
        }
    )
    return completion_id, episode_id


def finish(store: Store, completion_id: str, **kwargs: Any) -> None:
    store.completions.finish(
        CompletionOutcome(
            completion_id=completion_id,
            **{
                "token_ids": [4, 2],
                "logprobs": [-0.25, -1.5],
                "policy_versions": [0, 0],
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "hi"},
                "latency": {"total_s": 0.5},
                "trainable": True,
                "untrainable_reason": None,
                **kwargs,
            },
        )
    )


def recorded(store: Store, session_id: str, **kwargs: Any) -> str:
    """Record a whole completion; return its episode's id."""
    completion_id, episode_id = begin(store, session_id)
    finish(store, completion_id, **kwargs)
    return episode_id


def scored(store: Store, reward: float = 1.0, **kwargs: Any) -> str:
    """Record and score an episode of its own session and group; return its id."""
    episode_id = recorded(store, session(store, group_id=new_id("group-")), **kwargs)
    store.rewards.set(episode_id, reward)
    return episode_id


def claim(store: Store, **kwargs: Any) -> list[Episode]:
    """Claim lone episodes."""
    units = store.steps.claim(
        **{
            "step": 1,
            "limit": 1,
            "min_count": 1,
            "scored_before": 1e12,
            "min_policy_version": 0,
            **kwargs,
        }
    )
    return [episode for unit in units for episode in unit]


def kinds(store: Store) -> list[str]:
    return [event.kind for event in store.events.stored()]


def test_a_completion_comes_back_as_it_was_recorded(store: Store, clock: Clock) -> None:
    session_id = session(store)
    clock.now = 1001.0
    completion_id, episode_id = begin(
        store,
        session_id,
        sampling={"temperature": 0.5, "seed": 7},
        tools=[{"type": "function", "function": {"name": "f"}}],
        prefix={"parent_completion_id": None},
    )
    finish(store, completion_id, top_logprobs=(((4, -0.25), (5, -2.0)), ((2, -1.5),)))
    episode = store.episodes.get(episode_id)
    (completion,) = episode.completions
    assert completion.prompt_token_ids == (1, 2, 3)
    assert completion.token_ids == (4, 2)
    assert completion.logprobs == (-0.25, -1.5)
    assert completion.policy_versions == (0, 0)
    assert completion.top_logprobs == (((4, -0.25), (5, -2.0)), ((2, -1.5),))
    assert completion.sampling == {"temperature": 0.5, "seed": 7}
    assert completion.request_messages == [{"role": "user", "content": "hé \ud800 <"}]
    assert completion.message == {"role": "assistant", "content": "hi"}
    assert completion.tools[0]["function"]["name"] == "f"
    assert (completion.created_at, completion.turn_index) == (1001.0, 0)
    assert (completion.trainable, completion.status, completion.kind) == (True, "finished", "turn")
    assert (episode.state, episode.task_id, episode.group_id) == ("open", "task", "group-1")
    assert (episode.policy_version_min, episode.policy_version_max) == (0, 0)


def test_blobs_are_little_endian(store: Store, tmp_path: Path) -> None:
    recorded(store, session(store))
    with sqlite3.connect(tmp_path / "trajectories.db") as connection:
        ids, logprobs = connection.execute("SELECT token_ids, logprobs FROM completions").fetchone()
    connection.close()
    assert ids == struct.pack("<2i", 4, 2)
    assert logprobs == struct.pack("<2f", -0.25, -1.5)


def test_the_first_outcome_stays(store: Store) -> None:
    completion_id, episode_id = begin(store, session(store))
    finish(store, completion_id)
    finish(store, completion_id, finish_reason=None, trainable=False, error="late")
    assert store.episodes.get(episode_id).completions[0].finish_reason == "stop"


def test_unequal_lengths_are_refused(store: Store) -> None:
    completion_id, _ = begin(store, session(store))
    with pytest.raises(ValueError, match="length"):
        finish(store, completion_id, logprobs=[-0.25])


def test_completions_number_their_turns(store: Store) -> None:
    session_id = session(store)
    episode_id = recorded(store, session_id)
    recorded(store, session_id)
    assert [c.turn_index for c in store.episodes.get(episode_id).completions] == [0, 1]


def test_a_scored_episode_is_followed_by_a_new_one(store: Store) -> None:
    session_id = session(store)
    first = recorded(store, session_id)
    store.rewards.set(first, 1.0)
    second = recorded(store, session_id)
    assert first != second
    assert [row.state for row in store.episodes.summaries(session_id=session_id)] == [
        "scored",
        "open",
    ]
    assert store.episodes.get(second).reward is None
    assert len(store.episodes.get(first).completions) == 1


def test_a_key_taken_into_use_again_ends_the_old_session(store: Store) -> None:
    old = session(store, key="k")
    episode_id = recorded(store, old)
    new = session(store, key="k")
    assert store.episodes.get(episode_id).state == "unscored"
    found = store.sessions.by_key_hash(hash_key("k"))
    assert found is not None
    assert found.session_id == new
    with pytest.raises(ConflictError, match="ended"):
        begin(store, old)


def test_keys_are_stored_as_hashes_only(store: Store, tmp_path: Path) -> None:
    session(store, key="sk-sess-very-secret")
    store.close()
    raw = (tmp_path / "trajectories.db").read_bytes()
    assert b"very-secret" not in raw
    assert hash_key("sk-sess-very-secret").encode() in raw


def test_a_reward_replaces_the_one_before(store: Store, clock: Clock) -> None:
    episode_id = recorded(store, session(store))
    store.rewards.set(episode_id, 1.0)
    clock.now = 1002.0
    episode = store.rewards.set(episode_id, -0.5)
    assert (episode.reward, episode.scored_at, episode.state) == (-0.5, 1002.0, "scored")
    assert [(entry.reward, entry.at) for entry in episode.reward_log] == [
        (1.0, 1000.0),
        (-0.5, 1002.0),
    ]


def test_single_completions_have_rewards_of_their_own(store: Store) -> None:
    session_id = session(store)
    ids = []
    for _ in range(3):
        completion_id, episode_id = begin(store, session_id)
        finish(store, completion_id)
        ids.append(completion_id)
    store.rewards.set(episode_id, 0.5, completion_id=ids[0])
    episode = store.rewards.set(episode_id, -1.0, completion_id=ids[2])
    assert [c.reward for c in episode.completions] == [0.5, None, -1.0]
    assert episode.reward == -1.0
    assert store.rewards.set(episode_id, 1.0).reward == 1.0
    assert store.rewards.set(episode_id, 0.25, completion_id=ids[1]).reward == 1.0


def test_a_reward_while_a_completion_runs_is_a_passing_conflict(store: Store) -> None:
    session_id = session(store)
    recorded(store, session_id)
    running, episode_id = begin(store, session_id)
    with pytest.raises(ConflictError, match=running) as caught:
        store.rewards.set(episode_id, 1.0)
    assert caught.value.passing
    assert store.episodes.get(episode_id).reward_log == ()
    finish(store, running)
    assert store.rewards.set(episode_id, 1.0).state == "scored"


@pytest.mark.parametrize(
    ("state", "text"),
    [("claimed", "being trained as part of step 1"), ("trained", "already trained .* step 1")],
)
def test_a_reward_comes_too_late(store: Store, state: str, text: str) -> None:
    episode_id = scored(store)
    claim(store)
    if state == "trained":
        commit(store, 1, [episode_id])
    with pytest.raises(ConflictError, match=text) as caught:
        store.rewards.set(episode_id, 0.0)
    assert not caught.value.passing
    with pytest.raises(ConflictError):
        store.rewards.unset(episode_id)


def test_a_reward_can_be_taken_back(store: Store) -> None:
    session_id = session(store)
    episode_id = recorded(store, session_id)
    store.rewards.set(episode_id, 1.0)
    episode = store.rewards.unset(episode_id)
    assert (episode.state, episode.reward) == ("open", None)
    assert [(entry.reward, entry.taken_back_at) for entry in episode.reward_log] == [(1.0, 1000.0)]
    assert recorded(store, session_id) == episode_id
    store.rewards.set(episode_id, 1.0)
    recorded(store, session_id)
    assert store.rewards.unset(episode_id).state == "unscored"
    assert claim(store) == []


def test_a_reward_that_was_taken_back_counts_no_more(store: Store) -> None:
    session_id = session(store)
    completion_id, episode_id = begin(store, session_id)
    finish(store, completion_id)
    store.rewards.set(episode_id, 1.0)
    store.rewards.unset(episode_id)
    episode = store.rewards.set(episode_id, 0.25, completion_id=completion_id)
    assert episode.reward == 0.25, "the one of the whole episode is in force no more"


def test_a_sentence_goes_with_a_reward(store: Store, clock: Clock) -> None:
    episode_id = recorded(store, session(store))
    episode = store.rewards.set(episode_id, 0.35, feedback="  too long ")
    assert (episode.reward, episode.feedback) == (0.35, "too long")
    clock.now = 1002.0
    episode = store.rewards.set(episode_id, -0.5)
    assert (episode.reward, episode.feedback) == (-0.5, "too long"), "a new number keeps it"
    clock.now = 1004.0
    episode = store.rewards.set(episode_id, None, feedback="and rude")
    assert (episode.reward, episode.feedback, episode.scored_at) == (-0.5, "and rude", 1004.0)
    assert [(entry.reward, entry.feedback) for entry in episode.reward_log] == [
        (0.35, "too long"),
        (-0.5, "and rude"),
    ]
    (summary,) = store.episodes.summaries()
    assert summary.feedback == "and rude"
    assert store.events.stored()[-1].payload["feedback"] == "and rude"
    assert store.rewards.set(episode_id, None, feedback="").feedback is None


def test_a_sentence_is_taken_back_with_its_reward_and_the_log_keeps_it(store: Store) -> None:
    episode_id = recorded(store, session(store))
    with pytest.raises(NoRewardError):
        store.rewards.set(episode_id, None, feedback="why")
    store.rewards.set(episode_id, 1.0, feedback="why")
    episode = store.rewards.unset(episode_id)
    assert (episode.reward, episode.feedback) == (None, None)
    assert [entry.feedback for entry in episode.reward_log] == ["why"]
    with pytest.raises(NoRewardError):
        store.rewards.set(episode_id, None, feedback="late")
    assert store.rewards.set(episode_id, -1.0).feedback is None


def commit(store: Store, step: int, episode_ids: list[str]) -> None:
    trained = [
        TrainedCompletion(
            completion_id=completion.completion_id,
            advantage=0.75,
            proximal_logprobs=(-0.5, -1.25),
            after_logprobs=(-0.125, -1.0),
        )
        for episode_id in episode_ids
        for completion in store.episodes.get(episode_id).completions
    ]
    row = {"step": step, "policy_version": step, "episode_ids": episode_ids, "loss": 0.5}
    store.steps.commit(row, trained, {"task": 0.1})


def test_a_step_is_recorded_whole(store: Store) -> None:
    episode_id = scored(store)
    assert [e.episode_id for e in claim(store)] == [episode_id]
    commit(store, 1, [episode_id])
    episode = store.episodes.get(episode_id)
    (completion,) = episode.completions
    assert (episode.state, episode.step) == ("trained", 1)
    assert completion.advantage == 0.75
    assert completion.proximal_logprobs == (-0.5, -1.25)
    assert completion.after_logprobs == (-0.125, -1.0)
    assert store.steps.policy_version() == 1
    assert store.meta.get("baselines") == {"task": 0.1}
    assert [row["loss"] for row in store.steps.rows()] == [0.5]
    assert store.steps.rows(after=1) == []
    assert kinds(store)[-3:] == ["episode.claimed", "episode.trained", "step.finished"]


def test_a_step_cannot_be_recorded_twice(store: Store) -> None:
    first, second = scored(store), scored(store)
    claim(store)
    commit(store, 1, [first])
    with pytest.raises(ConflictError, match="step 1 is recorded already"):
        commit(store, 1, [second])
    with pytest.raises(ConflictError, match="cannot be trained"):
        commit(store, 2, [second, first])
    assert store.episodes.get(second).state == "scored"
    assert [row["step"] for row in store.steps.rows()] == [1]


def test_claims_take_the_oldest_episodes_first(store: Store) -> None:
    early, late = (recorded(store, session(store, group_id=group_id)) for group_id in ("a", "b"))
    store.rewards.set(late, 1.0)
    store.rewards.set(early, 1.0)
    assert [e.episode_id for e in claim(store)] == [early]
    assert [e.episode_id for e in claim(store, step=2)] == [late]
    assert claim(store, step=3) == []


def test_a_claim_waits_for_grace_and_for_enough(store: Store, clock: Clock) -> None:
    scored(store)
    clock.now = 1005.0
    scored(store)
    assert claim(store, limit=2, min_count=2, scored_before=1004.0) == []
    assert len(claim(store, limit=2, min_count=2, scored_before=1005.0)) == 2


def test_released_claims_can_be_claimed_again(store: Store) -> None:
    one, two = scored(store), scored(store)
    claim(store, limit=2, min_count=2)
    store.steps.release_claims(except_ids=[one])
    assert [e.episode_id for e in store.steps.claimed()] == [one]
    assert store.episodes.get(two).step is None
    assert [e.episode_id for e in claim(store, step=2)] == [two]


def test_stale_episodes_are_dropped_on_the_way(store: Store) -> None:
    stale = scored(store, policy_versions=[1, 3])
    fresh = scored(store, policy_versions=[2, 3])
    assert [e.episode_id for e in claim(store, min_policy_version=2)] == [fresh]
    episode = store.episodes.get(stale)
    assert (episode.state, episode.dropped_reason) == ("dropped", "stale")
    assert episode.completions[0].untrainable_reason == "stale"
    assert store.completions.num_untrained() == {"stale": 1}


def test_an_untrainable_episode_is_dropped_with_its_reason(store: Store) -> None:
    episode_id = scored(store, trainable=False, untrainable_reason="truncated")
    assert claim(store) == []
    assert store.episodes.get(episode_id).dropped_reason == "truncated"


def test_what_ran_when_the_process_died_is_lost_and_never_trained(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.db"
    store = Store(path)
    session_id = session(store)
    recorded(store, session_id)
    begin(store, session_id)
    store.close()
    store = Store(path)
    (episode,) = store.episodes.find(session_id=session_id)
    assert [c.status for c in episode.completions] == ["finished", "lost"]
    assert episode.incomplete
    store.rewards.set(episode.episode_id, 1.0)
    assert claim(store) == []
    assert store.episodes.get(episode.episode_id).dropped_reason == "incomplete"
    assert store.completions.num_untrained() == {"lost": 1}
    store.close()


def test_a_retry_takes_the_place_of_an_empty_reply(store: Store) -> None:
    session_id = session(store)
    empty, episode_id = begin(store, session_id)
    finish(store, empty, message={"role": "assistant", "content": ""})
    again, _ = begin(store, session_id, retry_of=empty)
    finish(store, again)
    first, second = store.episodes.get(episode_id).completions
    assert (first.kind, first.trainable, first.untrainable_reason) == ("aux", False, "aux_call")
    assert (second.kind, second.trainable) == ("turn", True)


def test_filters_and_pages(store: Store) -> None:
    ids = [scored(store) for _ in range(3)]
    assert [row.episode_id for row in store.episodes.summaries(after=ids[0], limit=1)] == [ids[1]]
    assert [e.episode_id for e in store.episodes.find(state="scored")] == ids
    assert store.episodes.summaries(state="open") == []
    siblings = [recorded(store, session(store)) for _ in range(3)]
    assert [e.episode_id for e in store.episodes.find(group_id="group-1", limit=2)] == siblings[:2]
    row = store.episodes.summaries(limit=1)[0]
    assert (row.num_completions, row.num_trainable, row.policy_version_max) == (1, 1, 0)


def test_unknown_ids(store: Store) -> None:
    with pytest.raises(UnknownIdError):
        store.episodes.get("ep-none")
    with pytest.raises(UnknownIdError):
        store.rewards.set("ep-none", 1.0)
    with pytest.raises(UnknownIdError):
        store.episodes.id_of_completion("chatcmpl-none")
    with pytest.raises(UnknownIdError):
        store.sessions.end("sess-none")
    assert store.sessions.by_key_hash("0") is None


def test_a_failed_change_leaves_no_event(store: Store) -> None:
    before = kinds(store)
    with pytest.raises(UnknownIdError):
        store.rewards.set("ep-none", 1.0)
    assert kinds(store) == before


async def test_subscribers_get_events_in_order(store: Store) -> None:
    with store.events.subscribe() as subscription:
        episode_id = await asyncio.to_thread(recorded, store, session(store))
        store.events.publish_transient(EventKind.COMPLETION_TOKENS, {"token_ids": [1]})
        await asyncio.to_thread(store.rewards.set, episode_id, 1.0)
        seen: list[Any] = []
        async with asyncio.timeout(5):
            while not seen or seen[-1].kind != "episode.scored":
                events, lost = await subscription.batch()
                assert not lost
                seen += events
    stored = [event for event in seen if event.event_id is not None]
    assert stored == store.events.stored()
    assert [event.kind for event in seen if event.event_id is None] == ["completion.tokens"]


async def test_a_slow_subscriber_is_told_what_it_missed(store: Store) -> None:
    with store.events.subscribe() as subscription:
        for _ in range(6000):
            store.events.publish_transient(EventKind.COMPLETION_TOKENS, {})
        store.meta.set("x", 1)
        async with asyncio.timeout(5):
            _, lost = await subscription.batch()
        assert lost


def test_old_events_are_pruned(store: Store) -> None:
    for _ in range(EVENTS_KEPT + 1024):
        with store._transactions.write(durable=False) as write:
            write.event(EventKind.STEP_STARTED, {})
    oldest, newest = store.events.id_range()
    assert newest == EVENTS_KEPT + 1024
    assert EVENTS_KEPT <= newest - oldest + 1 <= EVENTS_KEPT + 512


def test_a_file_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="newer version"):
        Store(path)
    assert str(path) not in [file.path for file in psutil.Process().open_files()]


def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.db"
    path.write_bytes(b"no database, however you look at it" * 100)
    store = Store(path)
    assert store.notice is not None
    assert "file is not a database): nothing could be recovered" in store.notice
    assert store.sessions.num_running() == 0
    store.close()
