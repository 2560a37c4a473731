"""A run directory and a hermes.toml that an earlier version wrote: both go on being used.

``fixtures/old_run`` is what commit 1099fe5 left behind after some minutes with a tiny random model:
its hermes.toml, the model, and the run directory, with the databases as SQL text. Three
conversations of one turn each and one of three; three steps, the last of them on a group of two;
one episode open, one scored while training was paused. All keys in it are made up.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomli
from fakes.old_run import OLD_RUN, copy_old_run
from fakes.served import Served, until

from hermes_tui.config.settings import load_config

pytestmark = pytest.mark.timeout(300)

FIXTURES = Path(__file__).parents[1] / "fixtures"
START_S = 120.0
ADA = "sk-sess-made-up-for-the-tests"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what the earlier version left, its databases as files again."""
    return copy_old_run(tmp_path_factory.mktemp("old") / "copy")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    # The running mean that was the default then: its values in the old checkpoints go on.
    decay = "training.reward.baseline_decay=0.9"
    command = [sys.executable, "-P", "-m", "hermes_tui.cli.main", "--serve", decay]
    with Served(command, folder / "run-dir", cwd=folder) as served:
        served.wait_for("ready", START_S)
        yield served


@pytest.fixture(scope="module")
def keys() -> dict[str, str]:
    return dict(json.loads((OLD_RUN / "run-dir" / "keys.json").read_text()))


@pytest.fixture(scope="module")
def trainer(served: Served, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with client(served.rows[-1]["inference_gateway"], keys["inference_admin_key"]) as http:
        yield http


@pytest.fixture(scope="module")
def agent(served: Served, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with client(served.rows[-1]["agent_gateway"], keys["agent_admin_key"]) as http:
        yield http


def client(url: str, key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)


def get(http: httpx.Client, path: str) -> Any:
    answer = http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def asked(agent: httpx.Client, session: str) -> list[str]:
    """Return what the person said in a conversation."""
    messages = get(agent, f"/sessions/{session}/history")["messages"]
    return [
        row["content"] for row in messages if row["role"] == "user" and not row.get("synthetic")
    ]


def test_the_keys_stay(served: Served, folder: Path, keys: dict[str, str]) -> None:
    assert json.loads((folder / "run-dir" / "keys.json").read_text()) == keys
    with client(served.rows[-1]["control"], keys["control_key"]) as control:
        states = {row["state"] for row in get(control, "/status")["processes"]}
    assert states == {"ready"}


def test_episodes_and_steps_are_read(trainer: httpx.Client) -> None:
    episodes = get(trainer, "/rl/episodes")["data"]
    assert [(row["task_id"], row["state"], row["reward"], row["step"]) for row in episodes] == [
        ("greet", "trained", 1.0, 1),
        ("greet", "trained", -0.5, 2),
        ("greet", "open", None, None),
        ("joke", "trained", 1.0, 3),
        ("joke", "trained", -1.0, 3),
        ("greet", "scored", 0.5, None),
    ]
    assert episodes[3]["group_id"] == episodes[4]["group_id"] == "jokes"
    episode = get(trainer, f"/rl/episodes/{episodes[0]['episode_id']}")
    (trained,) = (row for row in episode["completions"] if row["trainable"])
    assert len(trained["token_ids"]) == len(trained["logprobs"]) == 6
    assert trained["policy_versions"] == [0] * 6
    assert trained["advantage"] == 1.0
    steps = get(trainer, "/rl/steps")["data"]
    assert [row["policy_version"] for row in steps] == [1, 2, 3]
    assert steps[0]["episode_ids"] == [episodes[0]["episode_id"]]
    canaries = get(trainer, "/rl/canaries")["data"]  # of the two newest versions
    assert [row["policy_version"] for row in canaries] == [2, 3]


def test_a_conversation_goes_on(served: Served, agent: httpx.Client, trainer: httpx.Client) -> None:
    rows = get(agent, "/sessions")["data"]
    assert {row["session_key"] for row in rows} == {"ada", "alan", "joke-0", "joke-1"}
    before = ["Greet Ada.", "And Grace: 数 😀", "A last one."]
    assert asked(agent, "ada") == before
    answer = agent.post(
        "/v1/responses",
        headers={"X-AReaL-Session-Key": "ada"},
        json={
            "model": "hermes-agent",
            "input": "Go on.",
            "inf_base_url": served.rows[-1]["inference_gateway"],
            "session_api_key": ADA,
        },
    )
    assert answer.status_code == 200, answer.text
    assert asked(agent, "ada") == [*before, "Go on."]
    (episode,) = (row for row in get(trainer, "/rl/episodes")["data"] if row["state"] == "open")
    completions = get(trainer, f"/rl/episodes/{episode['episode_id']}")["completions"]
    newest = completions[-1]["request_messages"]
    assert [text for text in before if text in str(newest)] == before
    assert completions[-1]["policy_versions"] == [3] * len(completions[-1]["token_ids"])


def test_training_goes_on_from_the_newest_checkpoint(trainer: httpx.Client, folder: Path) -> None:
    status = get(trainer, "/rl/status")
    assert (status["policy_version"], status["pause_reason"]) == (3, "looked at by a person")
    assert trainer.post("/rl/resume").status_code == 200
    until(lambda: get(trainer, "/rl/status")["served_version"] == 4)
    step = get(trainer, "/rl/steps")["data"][-1]
    (scored,) = (row for row in get(trainer, "/rl/episodes")["data"] if row["step"] == 4)
    assert (step["policy_version"], step["episode_ids"]) == (4, [scored["episode_id"]])
    # The baseline of the task and the optimizer's count come from before.
    assert step["baseline"] == pytest.approx(0.04)
    state = folder / "run-dir" / "checkpoints" / "policy_version_4" / "training_state.json"
    assert json.loads(state.read_text())["num_updates"] == 4


def test_every_old_setting_still_loads(tmp_path: Path) -> None:
    """The old reference file names each setting that there was, with its default."""
    old = FIXTURES / "old_reference.toml"
    config = load_config([], path=old, environ={}).model_dump(mode="json", by_alias=True)
    assert _differences(tomli.loads(old.read_text(encoding="utf-8")), config) == []
    assert load_config([], path=old, environ={}) == load_config(
        CHANGED_DEFAULTS, environ={}, cwd=tmp_path
    )
    shutil.copy(OLD_RUN / "hermes.toml", tmp_path)
    assert load_config([], environ={}, cwd=tmp_path).training.lora.rank == 1


CHANGED_DEFAULTS = [
    "training.max_staleness=4",
    "training.reward.grace_s=2.0",
    "training.reward.baseline_decay=0.9",
    "training.loss.tis_cap=5.0",
    "training.loss.max_step_kl=0.3",
]
"""What the old defaults were where a newer one is better."""


def _differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    """Return the keys whose loaded value is not what the file says."""
    found = []
    for key, value in old.items():
        if isinstance(value, dict):
            found += _differences(value, new.get(key) or {}, f"{path}{key}.")
        elif isinstance(value, str) and key.endswith("api_key"):
            continue  # hidden when written out
        elif new.get(key) != value:
            found.append(f"{path}{key}: {value!r} is {new.get(key)!r}")
    return found
