"""The process that keeps a vLLM server, with a program in its place that answers as vLLM does."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fakes.vllm
import httpx
import psutil
import pytest
from fakes.tiny_model import make_tiny_model

from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_common.serving import ServeConfig, stage_file
from hermes_tui_training.api.config import ModelConfig, TrainingConfig, VllmRole
from hermes_tui_training.vllm_server.command import command, environment

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def make_role(root: Path, model_dir: Path, **training: object) -> VllmRole:
    """Return a role whose interpreter runs the program in vLLM's place."""
    python = root / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, fakes.vllm.__file__])} "$@"\n')
    python.chmod(0o755)
    return VllmRole(
        serve=ServeConfig(name="vllm", run_file=root / "vllm.json", instance="i", lifeline=True),
        model=ModelConfig(path=str(model_dir)),
        training=TrainingConfig.model_validate(training),
        python=python,
        socket=root / "vllm.sock",
    )


@contextmanager
def running(role: VllmRole, root: Path) -> Iterator[subprocess.Popen[bytes]]:
    config = root / "config.json"
    config.write_text(role.model_dump_json(context={"reveal": True}))
    log = root / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hermes_tui_training.vllm_server", "--config", config],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        assert process.stdin
        process.stdin.close()  # its lifeline
        process.wait(DEADLINE_S)


def until(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_it_starts_a_server_says_how_far_it_is_and_ends_with_it(
    tmp_path: Path, model_dir: Path
) -> None:
    role = make_role(tmp_path, model_dir)
    with running(role, tmp_path) as process:
        until((tmp_path / "vllm.json").exists, tmp_path / "log")
        found = RoleRunFile.read(tmp_path / "vllm.json")
        assert httpx.get(f"{found.url}/health", trust_env=False).json() == {"status": "ok"}
        assert stat.S_IMODE(role.socket.stat().st_mode) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(role.socket))) as client:
            (model,) = client.get("http://vllm/v1/models").json()["data"]
        assert model["id"].startswith("base-")
        assert "stage vLLM: Loading weights" in (tmp_path / "log").read_text()
        servers = children(process)
    assert servers
    assert not any(server.is_running() for server in servers)
    assert not stage_file(tmp_path / "vllm.json").exists()


def test_a_server_that_does_not_start_says_why(tmp_path: Path, model_dir: Path) -> None:
    broken = tmp_path / "broken_model"
    make_tiny_model(broken)
    (broken / "broken").touch()
    with running(make_role(tmp_path, broken), tmp_path) as process:
        assert process.wait(DEADLINE_S) == 3
    log = (tmp_path / "log").read_text()
    assert "error: vllm: vLLM did not start: ValueError: these weights are broken" in log


def test_it_ends_when_its_server_dies(tmp_path: Path, model_dir: Path) -> None:
    with running(make_role(tmp_path, model_dir), tmp_path) as process:
        until((tmp_path / "vllm.json").exists, tmp_path / "log")
        for server in children(process):
            server.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
    assert "error: vLLM ended:" in (tmp_path / "log").read_text()


def test_the_arguments_follow_the_settings(tmp_path: Path, model_dir: Path) -> None:
    engine = {"max_num_seqs": 5, "max_model_len": 128, "vllm_args": ["--swap-space", "0"]}
    role = make_role(tmp_path, model_dir, engine=engine, lora={"rank": 12})
    words = command(role, model_dir)
    assert words[:4] == [str(role.python), "-P", "-m", "vllm.entrypoints.openai.api_server"]
    options = dict(itertools.pairwise(words))
    assert options["--max-num-seqs"] == "5"
    assert options["--max-model-len"] == "128"
    assert options["--max-lora-rank"] == "16"
    assert options["--logprobs-mode"] == "processed_logprobs"
    assert words[-2:] == ["--swap-space", "0"]
    assert "--enable-lora" not in command(
        make_role(tmp_path, model_dir, lora={"rank": 0}), tmp_path
    )
    assert (
        environment({"VLLM_CPU_KVCACHE_SPACE": "9", "HOME": "/h"})["VLLM_CPU_KVCACHE_SPACE"] == "9"
    )
    assert environment(os.environ)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
