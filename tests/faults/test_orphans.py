"""What a killed supervisor leaves ends in time, also what is stopped; small faults of a start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.caged import needs_cage
from fakes.served import Served, is_alive, until

GONE_S = 15.0
"""What is promised."""

PROGRAM = [sys.executable, "-P", "-m", "hermes_tui.cli.main"]
NAMES = ("agent-gateway", "router", "worker-0", "data-proxy-0")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served.fakes(tmp_path, "worker-0=forks away") as served:
        served.wait_for("ready")
        yield served


def all_pids(served: Served) -> list[int]:
    grandchild = int((served.run_dir / "run" / "grandchild").read_text())
    return [*served.pids(), grandchild]


@pytest.mark.parametrize("stopped", NAMES)
def test_a_stopped_child_does_not_outlive_its_supervisor(served: Served, stopped: str) -> None:
    pids = all_pids(served)
    os.kill(pids[NAMES.index(stopped)], signal.SIGSTOP)
    served.process.kill()
    until(lambda: not any(map(is_alive, pids)), GONE_S)


@needs_cage
def test_a_stopped_worker_in_a_cage_does_not_outlive_its_supervisor(tmp_path: Path) -> None:
    words = (f"run.dir={tmp_path}", "training.enabled=false")
    with Served([*PROGRAM, "--serve", *words], tmp_path) as served:
        served.wait_for("ready")
        pids = served.pids()
        with served.http() as http:
            status = http.get("/status").json()
        assert status["cage"] == "bubblewrap, network: host"
        worker = next(row["pid"] for row in status["processes"] if row["name"] == "worker-0")
        os.kill(worker, signal.SIGSTOP)
        served.process.kill()
        until(lambda: not any(map(is_alive, pids)), GONE_S)


def test_a_start_does_not_run_beside_orphans(served: Served, tmp_path: Path) -> None:
    pids = all_pids(served)
    with served.http() as http:
        parents = {row["name"]: row["pid"] for row in http.get("/status").json()["processes"]}
    os.kill(parents["router"], signal.SIGSTOP)
    served.process.kill()
    served.process.wait()
    with Served.fakes(tmp_path) as again:
        again.wait_for("starting")
        assert not any(map(is_alive, pids))
        again.wait_for("ready")


def test_a_role_that_hangs_while_it_starts_ends_the_start(tmp_path: Path) -> None:
    agent = tmp_path / "stopping_agent.py"
    agent.write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
        "class Agent:\n    async def run(self, request, *, emitter): ...\n"
    )
    words = (
        f"run.dir={tmp_path / 'run'}",
        "training.enabled=false",
        "services.agent.class=stopping_agent.Agent",
        "run.heartbeat_s=0.25",
        "run.starting_hung_after_s=5",
    )
    began = time.monotonic()
    done = subprocess.run(
        [*PROGRAM, "--serve", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 3
    assert time.monotonic() - began < 60
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: worker-0: hung while it started: no heartbeat for 5 s")


def test_a_directory_in_place_of_a_run_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run" / "router.json").mkdir(parents=True)
    with Served.fakes(tmp_path) as served:
        assert served.wait() == 3
    assert "Traceback" not in served.errors
    (line,) = [line for line in served.errors.splitlines() if line.startswith("error: ")]
    assert line == (f"error: router: cannot be started: {tmp_path}/run/router.json: Is a directory")


def test_a_second_agent_service_of_a_name_is_told_how_to_stop_the_first(tmp_path: Path) -> None:
    home = tmp_path / "agents" / "one"
    with Served.fakes(home) as served:
        served.wait_for("ready")
        done = subprocess.run(
            [*PROGRAM, "agent", "run", "--service", "one"],
            env={**os.environ, "HERMES_TUI_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 4
        assert f"pid {served.process.pid}" in done.stderr
        assert "`hermes-tui agent stop --service one`" in done.stderr
        assert "`hermes-tui stop`" not in done.stderr
        assert json.loads((home / "run" / "supervisor.json").read_text())["pid"]
