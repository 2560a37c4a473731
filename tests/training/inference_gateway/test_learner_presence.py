"""What ``/rl/status`` says of the learner's process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.inference import Gateway, running_gateway

from hermes_tui_common.run_file import RoleRunFile


@pytest.fixture
def learner() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def send(process: subprocess.Popen[bytes], number: signal.Signals, change: int) -> None:
    """Send a signal and wait until it has taken effect."""
    process.send_signal(number)
    os.waitid(os.P_PID, process.pid, change | os.WNOWAIT)


async def reachable(gateway: Gateway) -> bool:
    answer = await gateway.call("GET", "/rl/status")
    return bool(answer.json()["learner"]["reachable"])


async def test_a_learner_that_is_stopped_or_dead_is_not_reachable(
    tmp_path: Path, learner: subprocess.Popen[bytes]
) -> None:
    row = RoleRunFile(
        name="learner",
        pid=learner.pid,
        url="http://127.0.0.1:1",
        started_at=0.0,
        host="127.0.0.1",
        port=1,
        instance="token",
    )
    async with running_gateway(tmp_path) as gateway:
        assert not await reachable(gateway)  # it has not started yet
        (tmp_path / "learner.json").write_text(row.model_dump_json())
        assert await reachable(gateway)
        send(learner, signal.SIGSTOP, os.WSTOPPED)
        assert not await reachable(gateway)
        send(learner, signal.SIGCONT, os.WCONTINUED)
        assert await reachable(gateway)
        send(learner, signal.SIGKILL, os.WEXITED)
        assert not await reachable(gateway)
