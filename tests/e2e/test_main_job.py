"""The main job on the embedded model, through ``--serve`` and the commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.served import Served, is_alive, until

from hermes_tui_services.api.client import AgentClient
from hermes_tui_services.api.events import TextArrived
from hermes_tui_training.api.client import InferenceClient

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(600)]

PROGRAM = [sys.executable, "-P", "-m", "hermes_tui.cli.main"]
START_S = 300.0
STEP_S = 240.0
WORDS = (
    "services.agent.max_tokens=48",
    "training.reward.grace_s=0.2",
    "training.train_truncated=true",
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("main-job")


@pytest.fixture(scope="module")
def served(run_dir: Path) -> Iterator[Served]:
    with Served([*PROGRAM, "--serve", f"run.dir={run_dir}", *WORDS], run_dir) as served:
        served.wait_for("ready", START_S)
        yield served


@pytest.fixture(scope="module")
def ready(served: Served) -> dict[str, Any]:
    return next(row for row in served.rows if row["event"] == "ready")


@pytest.fixture(scope="module")
def keys(served: Served) -> dict[str, str]:
    return dict(json.loads((served.run_dir / "keys.json").read_text()))


def command(run_dir: Path, *args: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *args],
        input=typed,
        capture_output=True,
        text=True,
        env={**os.environ, "HERMES_TUI_HOME": str(run_dir)},
        timeout=STEP_S,
        check=False,
    )


async def test_a_conversation_a_score_and_new_weights(
    ready: dict[str, Any], keys: dict[str, str]
) -> None:
    gateway, key = ready["inference_gateway"], keys["inference_admin_key"]
    async with (
        InferenceClient(gateway, key) as trainer,
        AgentClient(ready["agent_gateway"], keys["agent_admin_key"]) as hermes,
    ):
        session = await trainer.start_session("greet")
        before = (await trainer.status()).policy_version
        updates = [
            update
            async for update in hermes.turn(
                "Greet Ada in one short sentence.",
                session_key="e2e",
                inf_base_url=gateway,
                session_api_key=session.api_key,
            )
        ]
        assert sum(isinstance(update, TextArrived) for update in updates) > 1
        (row,) = await trainer.episodes(session_id=session.session_id)
        episode = await trainer.episode(row.episode_id)
        completion = episode.completions[0]
        assert len(completion.token_ids) == len(completion.logprobs) > 0
        assert set(completion.policy_versions) == {before}

        await trainer.set_reward(1.0, episode_id=row.episode_id)
        async for event in trainer.events(after=0):
            if event.kind == "version.published":
                break
        status = await trainer.status()
        assert status.policy_version == before + 1
        (step,) = await trainer.steps()
        assert step.episode_ids == (row.episode_id,)
        assert step.grad_norm > 0
        assert step.logprob_after > step.logprob_before
        answer = await trainer.chat(
            session.api_key, [{"role": "user", "content": "Hello."}], max_tokens=4
        )
        assert answer["usage"]["completion_tokens"] > 0
        newest = (await trainer.episodes(session_id=session.session_id))[-1]
        assert newest.policy_version_max == before + 1


def test_learner_is_a_process_of_its_own(served: Served) -> None:
    with served.http() as http:
        rows = {row["name"]: row for row in http.get("/status").json()["processes"]}
    assert list(rows) == [
        "agent-gateway",
        "router",
        "worker-0",
        "data-proxy-0",
        "trainer",
        "learner",
    ]
    assert len({row["pid"] for row in rows.values()}) == len(rows)
    assert {row["state"] for row in rows.values()} == {"ready"}


def test_areal_s_line_is_in_the_log(served: Served, ready: dict[str, Any]) -> None:
    log = (served.run_dir / "logs" / "supervisor.log").read_text()
    assert f"Proxy gateway available at {ready['inference_gateway']}\n" in log


def test_commands_talk_to_the_running_stack(served: Served, run_dir: Path) -> None:
    shown = command(run_dir, "status")
    assert shown.returncode == 0, shown.stderr
    assert "\nlearner " in shown.stdout
    started = command(run_dir, "session", "start", "--task-id", "by.hand=1")
    assert started.returncode == 0, started.stderr
    named = dict(line.split("=", 1) for line in started.stderr.splitlines() if "=" in line)
    key, session_id = named["SESSION_API_KEY"], named["SESSION_ID"]
    assert f"API Key    : {key}\n" in started.stdout
    early = command(run_dir, "reward", "--api-key", key)
    assert early.returncode == 1
    assert "No interactions in session" in early.stderr
    rows = json.loads(command(run_dir, "session", "list", "--json").stdout)
    assert rows[-1]["task_id"] == "by.hand=1"
    ended = command(run_dir, "session", "end", session_id)
    assert ended.stdout == f"ended {session_id}: 0 completions recorded\n"


def test_chat_records_and_reward_teaches(served: Served, run_dir: Path) -> None:
    talk = command(run_dir, "chat", typed="Name a colour.\nquit\n")
    assert talk.returncode == 0, talk.stderr
    assert "Self-evolution: routing LLM calls via http://" in talk.stdout
    key = talk.stdout.partition("--api-key`): ")[2].split()[0]
    judged = command(run_dir, "reward", "--api-key", key, "--reward", "-1.0")
    assert judged.returncode == 0, judged.stderr
    assert judged.stdout.startswith("Reward -1.0 applied to ep-")
    rows = json.loads(command(run_dir, "session", "list", "--json").stdout)
    shown = command(run_dir, "session", "show", rows[-1]["session_id"]).stdout
    assert "reward -1.0 " in shown
    assert "user       Name a colour." in shown


def test_no_key_leaks_and_stop_leaves_nothing(
    served: Served, run_dir: Path, keys: dict[str, str]
) -> None:
    """The last one: it ends the stack."""
    pids = served.pids()
    argv = b" ".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    logs = b" ".join(file.read_bytes() for file in (run_dir / "logs").iterdir())
    assert not [key for key in keys.values() if key.encode() in argv + logs]
    assert command(run_dir, "stop").returncode == 0
    assert served.wait() == 0
    until(lambda: not any(is_alive(pid) for pid in pids), 1)
    control = next(row for row in served.rows if row["event"] == "ready")["control"]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{control}/health")
