"""A full disk and the supervisor: it waits, names the disk, and goes on by itself."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes.served import Served, until
from fakes.small_disk import SmallDisk
from fakes.stack import fake_plan
from fakes.supervised import running
from fakes.supervised import until as until_async

from hermes_tui.config.settings import Config, RunConfig
from hermes_tui.core.stack_status import ProcessState
from hermes_tui.stack_client.launch import ensure_supervisor
from hermes_tui.supervisor import process
from hermes_tui.supervisor.logs import RotatingLog, tail_lines
from hermes_tui_common.errors import StackError

FULL = "the disk is full: 0 MB free, 4 MB needed in "


def row_of(served: Served, name: str) -> dict[str, Any]:
    with served.http() as http:
        rows = http.get("/status").json()["processes"]
    return next(row for row in rows if row["name"] == name)


def test_what_dies_on_a_full_disk_starts_once_there_is_room(small_disk: SmallDisk) -> None:
    """As often as would be a flapping, were it its own fault."""
    run_dir = small_disk.path / "run"
    with Served.fakes(run_dir) as served:
        served.wait_for("ready")
        for number in range(1, 4):
            small_disk.fill()
            os.kill(row_of(served, "router")["pid"], signal.SIGKILL)
            until(lambda: row_of(served, "router")["reason"] == f"waiting: {FULL}{run_dir}")
            assert row_of(served, "router")["state"] == "starting"
            small_disk.make_room()
            until(lambda: row_of(served, "router")["state"] == "ready")
            assert row_of(served, "router")["restarts"] == number
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == 143
        served.wait_for("stopped")
    assert not {row.get("state") for row in served.rows} & {"flapping", "failed"}
    assert "Traceback" not in served.errors


def test_a_stack_that_is_started_on_a_full_disk_waits(small_disk: SmallDisk) -> None:
    run_dir = small_disk.path / "run"
    fake_plan(run_dir)  # a run directory that has been used
    small_disk.fill()
    with Served.fakes(run_dir) as served:
        until(lambda: f"waiting: {FULL}{run_dir}" in served.errors or served.process.poll())
        small_disk.make_room()
        served.wait_for("ready")
        assert "Traceback" not in served.errors


async def test_a_screen_does_not_start_a_stack_that_would_wait(small_disk: SmallDisk) -> None:
    run_dir = small_disk.path / "run"
    (run_dir / "run").mkdir(parents=True)
    (run_dir / "logs").mkdir()
    small_disk.fill()
    config = Config(run=RunConfig(dir=str(run_dir)))
    with pytest.raises(StackError, match=f"^{FULL}{run_dir}$"):
        await ensure_supervisor(config, lambda _: None)
    assert not list((run_dir / "run").glob("supervisor*"))


async def test_a_quota_that_is_used_up_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system says that there is room, and refuses to write."""
    monkeypatch.setattr(process, "_ROOM_POLL_S", 0.02)
    write, refused = process.write_private, []

    def write_some(path: Path, text: str) -> None:
        if len(refused) < 5:
            refused.append(path)
            raise OSError(errno.EDQUOT, "Disk quota exceeded", str(path))
        write(path, text)

    async with running(fake_plan(tmp_path)) as stack:
        router = stack.process("router")
        monkeypatch.setattr(process, "write_private", write_some)
        assert router.pid
        os.kill(router.pid, signal.SIGKILL)
        await until_async(lambda: (router.reason or "").startswith("waiting: the disk is full: "))
        await until_async(lambda: router.state is ProcessState.READY)
        assert router.status().restarts == 1
    assert len(refused) == 5


def test_a_log_says_what_found_no_room(small_disk: SmallDisk) -> None:
    log = RotatingLog(small_disk.path / "x.log", max_bytes=8192)
    log.write(b"before\n")
    small_disk.fill()
    line = b"x" * 5000 + b"\n"  # more than the block that the file has
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            log.write(line)
    small_disk.make_room()
    log.write(b"after\n")
    small_disk.fill()
    with pytest.raises(OSError, match="No space left"):
        log.write(line)
    log.close()
    lines = tail_lines(log.path, 10)
    assert lines[0] == "before"
    assert "(10002 bytes are missing here)" in lines[-3]
    assert lines[-2] == "after"


def test_a_log_that_cannot_be_rotated_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RotatingLog(tmp_path / "x.log", max_bytes=4)
    real = Path.open

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    log.write(b"first\n")  # written, then the file is put aside and no new one can be made
    with pytest.raises(OSError, match="No space left"):
        log.write(b"lost\n")
    monkeypatch.setattr(Path, "open", real)
    log.write(b"last\n")
    log.close()
    assert tail_lines(log.path, 10) == ["first", "(5 bytes are missing here)", "last"]
