"""What was acknowledged survives SIGKILL, and nothing is trained twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from hermes_tui_training.api.types import CompletionOutcome
from hermes_tui_training.store.store import Store, hash_key

WRITER = """
import json, sys
from pathlib import Path
from hermes_tui_training.api.types import CompletionOutcome
from hermes_tui_training.store.store import Store, hash_key

store = Store(Path(sys.argv[1]))
session = store.sessions.create(key_hash=hash_key("k"), task_id="t", group_id="g")
n = 0
while True:
    episode, _ = store.completions.begin(
        completion_id=f"c{n}", session_id=session.session_id, prompt_token_ids=[n],
        sampling={}, request_messages=[], tools=[], prefix={})
    print(json.dumps(["begun", n, episode]), flush=True)
    store.completions.finish(CompletionOutcome(
        completion_id=f"c{n}", token_ids=[n, 2], logprobs=[-0.5, -n], policy_versions=[0, 0],
        finish_reason="stop", message={}, latency={}, trainable=True, untrainable_reason=None))
    print(json.dumps(["finished", n, episode]), flush=True)
    if n % 3 == 2:
        store.rewards.set(episode, 1.0)
        print(json.dumps(["scored", n, episode]), flush=True)
    n += 1
"""


def acknowledged(path: Path, *, lines: int) -> list[tuple[str, int, str]]:
    """Run the writer until it has acknowledged so much, kill it, return what it said."""
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    said = [child.stdout.readline() for _ in range(lines)]
    os.kill(child.pid, signal.SIGKILL)
    said += child.stdout.readlines()
    child.wait()
    child.stdout.close()
    return [tuple(json.loads(line)) for line in said if line.endswith(b"\n")]


def test_acknowledged_writes_survive(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.db"
    said = acknowledged(path, lines=200)
    store = Store(path)
    completions = {
        completion.completion_id: completion
        for episode in store.episodes.find(limit=-1)
        for completion in episode.completions
    }
    for what, n, episode_id in said:
        if what == "begun":
            assert completions[f"c{n}"].prompt_token_ids == (n,)
        elif what == "finished":
            assert completions[f"c{n}"].token_ids == (n, 2)
            assert completions[f"c{n}"].logprobs == (-0.5, -n)
        else:
            assert store.episodes.get(episode_id).reward == 1.0
    assert not any(completion.status == "running" for completion in completions.values())
    found = store.sessions.by_key_hash(hash_key("k"))
    assert found is not None
    assert found.ended_at is None
    store.close()


CLAIMER = """
import json, sys
from pathlib import Path
from hermes_tui_training.api.types import CompletionOutcome
from hermes_tui_training.store.store import Store

store = Store(Path(sys.argv[1]))
store.steps.release_claims()
step = store.steps.policy_version()
while True:
    step += 1
    units = store.steps.claim(
        step=step, limit=1, min_count=1, scored_before=1e12, min_policy_version=0)
    if not units:
        print("empty", flush=True)
        break
    print("claimed", flush=True)
    store.steps.commit(
        {"step": step, "policy_version": step,
         "episode_ids": [e.episode_id for unit in units for e in unit]}, [], {})
    print("committed", flush=True)
"""


def test_every_episode_is_in_exactly_one_step_whatever_dies(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.db"
    store = Store(path)
    session = store.sessions.create(key_hash=hash_key("k"), task_id="t", group_id="g")
    for n in range(60):
        episode_id, _ = store.completions.begin(
            completion_id=f"c{n}",
            session_id=session.session_id,
            prompt_token_ids=[n],
            sampling={},
            request_messages=[],
            tools=[],
            prefix={},
        )
        store.completions.finish(
            CompletionOutcome(
                completion_id=f"c{n}",
                token_ids=[1],
                logprobs=[-0.5],
                policy_versions=[0],
                finish_reason="stop",
                message={},
                latency={},
                trainable=True,
                untrainable_reason=None,
            )
        )
        store.rewards.set(episode_id, 1.0)
    store.close()

    for lines in (3, 8, 15, 200):
        child = subprocess.Popen([sys.executable, "-c", CLAIMER, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(lines):
            if child.stdout.readline() in (b"", b"empty\n"):
                break
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()

    store = Store(path)
    rows = store.steps.rows()
    consumed = [episode_id for row in rows for episode_id in row["episode_ids"]]
    assert len(consumed) == len(set(consumed)) == 60
    assert [row["step"] for row in rows] == list(range(1, 61))
    assert store.episodes.num_by_state() == {"trained": 60}
    store.close()
