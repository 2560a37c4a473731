"""Completions are stored as what their parent has not got, and read as a whole."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from hermes_tui_training.api.types import CompletionOutcome, PrefixRef
from hermes_tui_training.store.database import MIGRATIONS, ints_to_blob
from hermes_tui_training.store.store import Store, hash_key


def say(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def record(
    store: Store,
    session_id: str,
    name: str,
    prompt: list[int],
    messages: list[dict[str, Any]],
    base: PrefixRef | None = None,
) -> None:
    """Record a completion that sampled [90, 91]."""
    store.completions.begin(
        completion_id=name,
        session_id=session_id,
        prompt_token_ids=prompt,
        sampling={},
        request_messages=messages,
        tools=[],
        prefix={},
        prefix_ref=base,
    )
    store.completions.finish(
        CompletionOutcome(
            completion_id=name,
            token_ids=[90, 91],
            logprobs=[-1.0, -1.0],
            policy_versions=[0, 0],
            finish_reason="stop",
            message={"role": "assistant", "content": "x"},
            latency={},
            trainable=True,
            untrainable_reason=None,
        )
    )


def test_a_chain_with_a_fork_reads_as_it_was_sent(tmp_path: Path) -> None:
    store = Store(tmp_path / "trajectories.db")
    session_id = store.sessions.create(key_hash=hash_key("k"), task_id="t", group_id="g").session_id
    sent = {
        "a": ([1, 2], [say("a")]),
        "b": ([1, 2, 90, 91, 3], [say("a"), say("b")]),
        "c": ([1, 2, 90, 91, 3, 90, 91, 4], [say("a"), say("b"), say("c")]),
        "fork": ([1, 2, 90, 5], [say("a"), say("f")]),
    }
    record(store, session_id, "a", *sent["a"])
    record(
        store,
        session_id,
        "b",
        *sent["b"],
        PrefixRef(completion_id="a", num_tokens=4, num_messages=1),
    )
    store.rewards.set(store.episodes.find()[0].episode_id, 1.0)  # what follows is another episode's
    record(
        store,
        session_id,
        "c",
        *sent["c"],
        PrefixRef(completion_id="b", num_tokens=7, num_messages=2),
    )
    record(
        store,
        session_id,
        "fork",
        *sent["fork"],
        PrefixRef(completion_id="a", num_tokens=3, num_messages=1),
    )
    read = [
        {c.completion_id: (list(c.prompt_token_ids), c.request_messages) for c in completions}
        for completions in (
            [c for episode in store.episodes.find() for c in episode.completions],
            store.completions.of_session(session_id),
            store.completions.of_session(session_id, limit=2),
            store.episodes.find()[1].completions,
        )
    ]
    assert read == [sent, sent, *[{name: sent[name] for name in ("c", "fork")}] * 2]
    store.close()
    with sqlite3.connect(tmp_path / "trajectories.db") as connection:
        stored = connection.execute(
            "SELECT length(prompt_token_ids) / 4, request_messages FROM completions ORDER BY seq"
        ).fetchall()
    assert [number for number, _ in stored] == [2, 1, 1, 1]
    assert stored[2][1] == '[{"role":"user","content":"c"}]'


def test_a_file_of_the_first_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.db"
    connection = sqlite3.connect(path)
    connection.executescript(f"{MIGRATIONS[0]} PRAGMA user_version = 1;")
    connection.executescript(
        "INSERT INTO sessions VALUES ('s', 'k', 't', 'g', 0.0, NULL, 0.0);"
        "INSERT INTO episodes (episode_id, session_id, group_id, task_id, state, created_at) "
        "VALUES ('e', 's', 'g', 't', 'open', 0.0);"
    )
    connection.execute(
        "INSERT INTO completions (completion_id, episode_id, session_id, turn_index, created_at, "
        "status, kind, sampling, request_messages, tools, prefix, prompt_token_ids, token_ids) "
        "VALUES ('c', 'e', 's', 0, 0.0, 'finished', 'turn', '{}', ?, '[]', '{}', ?, ?)",
        ('[{"role":"user","content":"a"}]', ints_to_blob([1, 2]), ints_to_blob([3])),
    )
    connection.commit()
    connection.close()
    store = Store(path)
    (completion,) = store.completions.of_session("s")
    assert (completion.prompt_token_ids, completion.token_ids) == ((1, 2), (3,))
    assert completion.request_messages == [say("a")]
    record(
        store,
        "s",
        "d",
        [1, 2, 3, 4],
        [say("a"), say("b")],
        PrefixRef(completion_id="c", num_tokens=3, num_messages=1),
    )
    assert store.episodes.find()[0].completions[1].prompt_token_ids == (1, 2, 3, 4)
    store.close()
