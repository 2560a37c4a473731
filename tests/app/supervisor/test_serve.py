"""``--serve`` as a real process: its lines, its control API, its ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fakes.served import STACK, Served, is_alive, until

from hermes_tui.config.paths import RunDir
from hermes_tui.core.control_api import ProcessChanged, StackReady
from hermes_tui.core.errors import NotRunningError
from hermes_tui.core.stack_status import ProcessState
from hermes_tui.stack_client.control import ControlClient
from hermes_tui.stack_client.launch import find_supervisor, stop_supervisor
from hermes_tui.supervisor.lock import lock_owner
from hermes_tui_common.errors import RefusedError


def test_ready_line_then_sigterm(tmp_path: Path) -> None:
    with Served.fakes(tmp_path) as served:
        ready = served.wait_for("ready")
        assert set(ready) == {
            "event",
            "agent_gateway",
            "inference_gateway",
            "control",
            "run_dir",
            "pid",
        }
        assert (ready["pid"], ready["run_dir"]) == (served.process.pid, str(tmp_path))
        assert httpx.get(f"{ready['agent_gateway']}/health").status_code == 200
        assert ready["inference_gateway"] is None
        stages = [row["reason"] for row in served.rows if row["event"] == "process"]
        assert "warming up" in stages
        pids = served.pids()
        assert len(pids) == 4
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == 143
        assert not [pid for pid in pids if is_alive(pid)]
        served.wait_for("stopped")
    assert not (tmp_path / "run" / "supervisor.json").exists()
    assert "stopped" in (tmp_path / "logs" / "supervisor.log").read_text()


def test_interrupt_is_130(tmp_path: Path) -> None:
    with Served.fakes(tmp_path) as served:
        served.wait_for("ready")
        served.process.send_signal(signal.SIGINT)
        assert served.wait() == 130


def test_stop_while_starting_leaves_nothing(tmp_path: Path) -> None:
    with Served.fakes(tmp_path, "worker-0=slow") as served:
        served.wait_for("starting")
        pids = until(lambda: [pid for pid in served.pids() if pid])
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == 143
        assert not [pid for pid in pids if is_alive(pid)]


def test_second_one_exits_4_and_names_the_first(tmp_path: Path) -> None:
    with Served.fakes(tmp_path) as first:
        first.wait_for("starting")
        with Served.fakes(tmp_path) as second:
            assert second.wait() == 4
            assert f"already served by pid {first.process.pid};" in second.errors
        assert lock_owner(RunDir(tmp_path)) == first.process.pid
        first.wait_for("ready")


def test_failed_start_is_one_line_and_exit_3(tmp_path: Path) -> None:
    with Served.fakes(tmp_path, "worker-0=broken") as served:
        assert served.wait() == 3
        last = served.errors.splitlines()[-1]
    assert last == "error: worker-0: the flux capacitor is empty (exit 3)"
    assert not list((tmp_path / "run").glob("worker-0.json"))
    assert lock_owner(RunDir(tmp_path)) is None


def test_sigkill_of_the_supervisor_takes_the_children(tmp_path: Path) -> None:
    with Served.fakes(tmp_path) as served:
        served.wait_for("ready")
        pids = served.pids()
        os.kill(served.process.pid, signal.SIGKILL)
        until(lambda: not any(is_alive(pid) for pid in pids), timeout_s=15)
    with Served.fakes(tmp_path) as again:  # its lock and its run file died with it
        again.wait_for("ready")


def test_reader_that_goes_away_does_not_end_the_stack(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", str(STACK), str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        log = tmp_path / "logs" / "supervisor.log"
        until(lambda: "ready agent_gateway=" in log.read_text())
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(30) == 143


class TestControlApi:
    @pytest.fixture(scope="class")
    def served(self, tmp_path_factory: pytest.TempPathFactory) -> Served:
        with Served.fakes(tmp_path_factory.mktemp("control")) as served:
            served.wait_for("ready")
            yield served

    def test_every_route_but_health_needs_the_key(self, served: Served) -> None:
        with served.http() as http:
            bare = httpx.Client(base_url=http.base_url)
            with bare:
                assert bare.get("/health").json() == {"status": "ok"}
                for method, path in (
                    ("GET", "/status"),
                    ("GET", "/events"),
                    ("GET", "/system"),
                    ("GET", "/services/router/logs"),
                    ("POST", "/services/router/restart"),
                    ("POST", "/services/pairs"),
                    ("POST", "/shutdown"),
                ):
                    for headers in ({}, {"Authorization": "Bearer nope"}):
                        answer = bare.request(method, path, headers=headers)
                        assert answer.status_code == 401, path
                        assert answer.json()["error"]["type"] == "authentication_error"

    def test_bad_requests_name_the_field(self, served: Served) -> None:
        with served.http() as http:
            for answer, status, param in (
                (http.post("/services/pairs", json={"count": 0}), 400, "count"),
                (http.post("/services/pairs", json={"count": "2"}), 400, "count"),
                (http.post("/services/pairs", json={"count": 2, "x": 1}), 400, "x"),
                (http.get("/services/router/logs?tail=-1"), 400, "tail"),
                (http.get("/events?after=x"), 400, "after"),
                (http.get("/services/nope/logs"), 404, None),
                (http.get("/nope"), 404, None),
            ):
                assert answer.status_code == status
                assert answer.json()["error"]["param"] == param

    async def test_events_are_live_and_resume(self, served: Served) -> None:
        async with ControlClient.of(RunDir(served.run_dir)) as client:
            seen = []
            async for event in client.events():
                seen.append(event)
                if isinstance(event, StackReady):
                    break
            assert [event.id for event in seen] == list(range(1, len(seen) + 1))
            await client.restart("router")
            states = []
            async for event in client.events(after=seen[-1].id):
                assert isinstance(event, ProcessChanged)
                states.append((event.name, event.state))
                if event.state == "ready":
                    break
        assert states[0] == ("router", "stopping")
        assert states[-1] == ("router", "ready")

    async def test_client_reads_status_system_and_logs(self, served: Served) -> None:
        async with await find_supervisor(RunDir(served.run_dir)) as client:
            status = await client.status()
            system = await client.system()
            lines = await client.logs("worker-0", tail=2)
            followed = []
            async for line in client.follow_logs("worker-0"):
                followed.append(line)
                if "ready role=worker-0" in line:
                    break
            with pytest.raises(RefusedError, match="no process 'nope'"):
                await client.restart("nope")
        assert status.state is ProcessState.READY
        assert status.pid == served.process.pid
        assert system.memory_total_bytes > system.memory_used_bytes > 0
        assert set(system.process_rss_bytes) == {
            "supervisor",
            *(row.name for row in status.processes),
        }
        assert len(lines) == 2
        assert followed[0] == "hello from worker-0"

    async def test_scale(self, served: Served) -> None:
        async with ControlClient.of(RunDir(served.run_dir)) as client:
            names = [row.name for row in (await client.scale(2)).processes]
            assert names[-2:] == ["worker-1", "data-proxy-1"]
            assert len((await client.scale(1)).processes) == 4


async def test_stop_from_another_program(tmp_path: Path) -> None:
    with Served.fakes(tmp_path) as served:
        served.wait_for("ready")
        await stop_supervisor(RunDir(tmp_path), 5.0)
        assert served.wait() == 0
    with pytest.raises(NotRunningError):
        await stop_supervisor(RunDir(tmp_path), 5.0)


def test_port_in_use_names_the_key(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = [sys.executable, "-P", "-m", "hermes_tui.cli.main", "--serve"]
        words = [f"run.dir={tmp_path}", f"services.gateway.port={port}", "training.enabled=false"]
        done = subprocess.run(
            [*program, *words], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: agent-gateway: cannot listen on 127.0.0.1:{port}: ")
    assert f"(in use by pid {os.getpid()})" in last
    assert "set services.gateway.port" in last
    assert json.loads(done.stdout.splitlines()[0])["event"] == "starting"
