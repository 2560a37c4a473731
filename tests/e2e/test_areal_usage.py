"""AReaL's documented usage, step by step, against real processes: written by us, as black boxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fakes.served import Served, is_alive
from fakes.tiny_model import make_tiny_model

PROGRAM = [sys.executable, "-P", "-m", "hermes_tui.cli.main"]
START_S = 100.0

YAML = """
experiment_name: online-rl
cluster: {n_gpus_per_node: 2}
rollout: {max_concurrent_rollouts: 2, admin_api_key: sk-xxx, agent: {mode: online}}
actor: {path: Qwen/Qwen2.5-1.5B-Instruct, admin_api_key: gsm8k-123, eps_clip: 0.4}
train_dataset: {batch_size: 1}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def test_train_with_its_yaml_and_its_words(tmp_path: Path, model: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(YAML)
    words = [f"actor.path={model}", "actor.admin_api_key=sk-1", "rollout.admin_api_key=sk-123456"]
    command = [*PROGRAM, "train", "--config", str(config), *words, f"run.dir={tmp_path / 'run'}"]
    with Served(command, tmp_path / "run") as served:
        ready = served.wait_for("ready", START_S)
        gateway, admin = ready["inference_gateway"], {"Authorization": "Bearer sk-123456"}
        assert ready["agent_gateway"] is None
        started = httpx.post(
            f"{gateway}/rl/start_session", json={"task_id": "demo-task"}, headers=admin
        )
        assert started.status_code == 201
        session = {"Authorization": f"Bearer {started.json()['api_key']}"}
        body = {"model": "m", "messages": [{"role": "user", "content": "w1"}], "max_tokens": 4}
        answer = httpx.post(f"{gateway}/chat/completions", json=body, headers=session, timeout=60)
        assert answer.status_code == 200, answer.text
        judged = httpx.post(f"{gateway}/rl/set_reward", json={"reward": 1.0}, headers=session)
        assert judged.json()["message"] == "success"
        second = httpx.post(f"{gateway}/rl/start_session", json={"task_id": "t"}, headers=admin)
        third = httpx.post(f"{gateway}/rl/start_session", json={"task_id": "t"}, headers=admin)
        assert (second.status_code, third.status_code) == (201, 429)
        log = (tmp_path / "run" / "logs" / "supervisor.log").read_text()
        assert f"Proxy gateway available at {gateway}" in log
    assert "settings of" in served.errors
    assert "cluster" in served.errors
    assert "actor.admin_api_key is left out" in served.errors


def test_an_inference_service_from_its_start_to_its_end(tmp_path: Path, model: Path) -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, "inf", *args],
            capture_output=True,
            text=True,
            env={**os.environ, "HERMES_TUI_HOME": str(tmp_path), "OTHER_KEY": "sk-theirs"},
            timeout=START_S,
            check=False,
        )

    service = ("--service", "one")
    own = ("--admin-api-key", "sk-123456", "--model-path", str(model))
    started = run("run", *service, "--host", "127.0.0.1", *own, "--scheduler", "local", "--detach")
    try:
        assert started.returncode == 0, started.stderr
        status = json.loads(run("status", *service, "--json").stdout)
        assert status["gateway"]["url"] in started.stdout
        assert {row["name"] for row in status["processes"]} == {"trainer", "learner"}
        (row,) = json.loads(run("ps", "--json").stdout)
        assert (row["service"], row["gateway"]) == ("one", status["gateway"]["url"])
        assert run("models", *service).stdout.split() == [str(model)]
        there = ("--api-url", "http://127.0.0.1:1/v1", "--provider-api-key-env", "OTHER_KEY")
        assert run("register", "theirs", *there, *service).returncode == 0
        assert json.loads(run("models", *service, "--json").stdout)["models"][1] == "theirs"
        assert run("deregister", *service, "--model-name", "theirs").returncode == 0
        assert run("register", "theirs", *service).returncode == 2
        assert "ready" in run("logs", *service, "--component", "gateway").stdout
    finally:
        stopped = run("stop", *service, "--force")
    assert stopped.returncode == 0
    assert not any(is_alive(row["pid"]) for row in status["processes"])
    assert json.loads(run("ps", "--json").stdout) == []
