"""The supervisor with real, tiny role processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
from fakes.stack import fake_plan
from fakes.supervised import DEADLINE_S, is_alive, running, until

from hermes_tui.core.control_api import StackFailed, event_to_json
from hermes_tui.core.stack_status import ProcessState
from hermes_tui.supervisor.events import EventLog
from hermes_tui.supervisor.stack import Stack
from hermes_tui_common.errors import ApiError, StackError


async def test_starts_in_order_and_leaves_nothing(tmp_path: Path) -> None:
    async with running(fake_plan(tmp_path)) as stack:
        rows = stack.status("http://control").processes
        assert [row.name for row in rows] == ["agent-gateway", "router", "worker-0", "data-proxy-0"]
        assert {row.state for row in rows} == {ProcessState.READY}
        urls = {row.name: row.url for row in rows}
        async with httpx.AsyncClient() as http:
            seen = (await http.get(f"{urls['data-proxy-0']}/seen")).json()
        assert seen == {"router": urls["router"], "worker-0": urls["worker-0"]}
        pids = [row.pid for row in rows if row.pid]
        assert len(pids) == 4
        assert all(row.rss_bytes and row.rss_bytes > 1_000_000 for row in rows)
    assert not [pid for pid in pids if is_alive(pid)]
    assert {row.state for row in stack.status("").processes} == {ProcessState.STOPPED}
    assert not list((tmp_path / "run").glob("*-0.json"))


async def test_children_get_no_pythonpath_and_no_keys(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path)
    environ = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "HERMES_TUI__TRAINING__ADMIN_API_KEY": "k" * 20,
        "HERMES_UPSTREAM_API_KEY": "secret-upstream",
        "ADMIN_KEY": "secret-admin",
        "MINE": "kept",
    }
    environ.pop("OMP_WAIT_POLICY", None)
    async with running(plan, environ) as stack, httpx.AsyncClient() as http:
        url = stack.process("worker-0").url
        body = (await http.get(f"{url}/environment")).json()
    assert body["environ"]["MINE"] == "kept"
    assert body["environ"]["OMP_WAIT_POLICY"] == "passive"
    hidden = ("PYTHONPATH", "ADMIN_KEY", "HERMES_UPSTREAM_API_KEY")
    assert not [name for name in body["environ"] if name in hidden or "HERMES_TUI__" in name]
    assert "-P" in body["argv"]
    assert not [key for key in plan.keys.values() if key in " ".join(body["argv"])]
    mode = (tmp_path / "run" / "worker-0.config.json").stat().st_mode
    assert mode & 0o077 == 0


async def test_killed_process_comes_back_on_its_port(tmp_path: Path) -> None:
    async with running(fake_plan(tmp_path)) as stack:
        before = stack.process("router").status()
        assert before.pid
        os.kill(before.pid, signal.SIGKILL)
        await until(lambda: stack.process("router").pid not in (None, before.pid))
        await until(lambda: stack.process("router").state is ProcessState.READY)
        after = stack.process("router").status()
    assert (after.port, after.restarts, after.last_exit) == (before.port, 1, "SIGKILL")


async def test_restart_on_request_keeps_the_port(tmp_path: Path) -> None:
    async with running(fake_plan(tmp_path)) as stack:
        before = stack.process("worker-0").status()
        await stack.restart("worker-0")
        after = stack.process("worker-0").status()
        with pytest.raises(ApiError) as unknown:
            await stack.restart("worker-9")
    assert after.state is ProcessState.READY
    assert (after.port, after.restarts) == (before.port, 1)
    assert after.pid != before.pid
    assert unknown.value.status == 404


async def test_flapping_stays_down_and_says_why(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path)
    async with running(plan) as stack:
        worker = stack.process("worker-0")
        plan.behaviours["worker-0"] = "dies"
        assert worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        await until(lambda: worker.state is ProcessState.FLAPPING)
        assert stack.problem == "worker-0 is flapping"
        row = worker.status()
        assert row.pid is None
        assert row.reason
        assert row.reason.startswith("died 3 times within 60 s, last with exit 7")
        assert row.restarts == 2
        assert "ValueError: the end is near" in row.reason
        assert len(row.reason.splitlines()) <= 21
        plan.behaviours["worker-0"] = ""
        await stack.restart("worker-0")
        assert worker.state is ProcessState.READY


async def test_restart_that_the_system_refuses_is_a_death(tmp_path: Path) -> None:
    async with running(fake_plan(tmp_path)) as stack:
        worker = stack.process("worker-0")
        (tmp_path / "logs" / "worker-0.log").unlink()
        (tmp_path / "logs" / "worker-0.log").mkdir()  # opening it fails, as on a broken disk
        assert worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        await until(lambda: worker.state is ProcessState.FLAPPING)
        assert stack.process("router").state is ProcessState.READY
        (tmp_path / "logs" / "worker-0.log").rmdir()
        await stack.restart("worker-0")
        assert worker.state is ProcessState.READY


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("broken", "worker-0: the flux capacitor is empty (exit 3)"),
        ("misconfigured", "worker-0: no such flux (exit 2)"),
    ],
)
async def test_failed_start_names_the_process_and_leaves_nothing(
    tmp_path: Path, behaviour: str, message: str
) -> None:
    async with Stack(fake_plan(tmp_path, worker_0=behaviour), EventLog()) as stack:
        with pytest.raises(StackError) as failure:
            await stack.start()
        assert str(failure.value) == message
        assert not [row.pid for row in stack.status("").processes if row.pid]


async def test_one_deadline_for_a_stubborn_child(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, stop_timeout_s=0.5, worker_0="stubborn", router="stubborn")
    async with running(plan) as stack:
        pids = [row.pid for row in stack.status("").processes if row.pid]
        begun = time.monotonic()
        await stack.stop()
        took_s = time.monotonic() - begun
        rows = {row.name: row for row in stack.status("").processes}
    assert took_s < 3.0
    assert rows["worker-0"].last_exit == rows["router"].last_exit == "SIGKILL"
    assert rows["agent-gateway"].last_exit != "SIGKILL"
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize("behaviour", ["forks", "forks away"])
async def test_stop_takes_what_a_child_started(tmp_path: Path, behaviour: str) -> None:
    async with running(fake_plan(tmp_path, worker_0=behaviour)):
        grandchild = int((tmp_path / "run" / "grandchild").read_text())
        assert is_alive(grandchild)
    assert not is_alive(grandchild)


async def test_a_child_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "run" / "grandchild"
    async with running(fake_plan(tmp_path, worker_0="forks away")) as stack:
        grandchild = int(file.read_text())
        worker = stack.process("worker-0")
        assert worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        await until(lambda: not is_alive(grandchild))
        await until(lambda: int(file.read_text()) != grandchild)  # it was started again
        assert is_alive(int(file.read_text()))


async def test_pairs_grow_and_shrink(tmp_path: Path) -> None:
    async with running(fake_plan(tmp_path)) as stack:
        await stack.scale(2)
        names = [row.name for row in stack.status("").processes]
        assert names[-2:] == ["worker-1", "data-proxy-1"]
        gone = stack.process("worker-1").pid
        assert gone
        await stack.scale(1)
        assert [row.name for row in stack.status("").processes] == names[:-2]
        assert not is_alive(gone)


async def test_pair_that_is_taken_away_finishes_its_turns(tmp_path: Path) -> None:
    async with running(fake_plan(tmp_path, pairs=2, data_proxy_1="busy")) as stack:
        proxy = stack.process("data-proxy-1")
        shrinking = asyncio.create_task(stack.scale(1))
        done, _ = await asyncio.wait({shrinking}, timeout=0.6)
        assert not done
        assert proxy.state is ProcessState.READY
        (tmp_path / "run" / "rest").write_text("")
        await asyncio.wait_for(shrinking, DEADLINE_S)
        assert proxy.state is ProcessState.STOPPED


async def test_pair_that_cannot_start_leaves_the_others(tmp_path: Path) -> None:
    async with running(fake_plan(tmp_path, worker_1="broken")) as stack:
        with pytest.raises(ApiError) as failure:
            await stack.scale(2)
        assert failure.value.status == 502
        assert "flux capacitor" in failure.value.message
        rows = stack.status("").processes
        assert len(rows) == 4
        assert {row.state for row in rows} == {ProcessState.READY}


async def test_events_resume_and_tell_what_was_missed() -> None:
    log = EventLog(capacity=3)
    for number in range(5):
        log.emit(StackFailed(error=str(number)))
    log.close()
    seen = [event_to_json(event) async for event in log.follow(after=1)]
    assert seen[0] == {"event": "missed", "count": 1, "id": 2}
    assert [event["error"] for event in seen[1:]] == ["2", "3", "4"]
    assert [event.id async for event in log.follow(after=4)] == [5]
    assert len([event async for event in log.follow(after=99)]) == 4


async def test_views_share_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(fake_plan(tmp_path)) as stack:
        first = stack.system()
        assert (first.supervisor_pid, first.process_rss_bytes["router"] is not None) == (
            os.getpid(),
            True,
        )
        assert stack.system() is first
        monkeypatch.setattr("hermes_tui.supervisor.stack.SAMPLE_S", 0.0)
        assert stack.system().at > first.at
