"""A whole stack on a disk that is full or cannot be written."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.fault_stack import FaultStack
from fakes.served import until
from fakes.small_disk import SmallDisk
from fault_results import Cell, Outcome

pytestmark = pytest.mark.timeout(900)

WHAT = "full disk"
PHRASE = "the disk is full"


def cell(fault: str, what: str = WHAT) -> pytest.MarkDecorator:
    """Mark a test as a cell."""
    return pytest.mark.cell(Cell(what=what, fault=fault), short=False)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path_factory.mktemp("disk"), num_bytes=128_000_000)
    try:
        disk.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"mounting is not permitted here: {error.stderr.strip()}")
    yield disk
    disk.unmount()


@pytest.fixture(scope="module")
def on_disk(disk: SmallDisk, byte_model: Path) -> Iterator[FaultStack]:
    stack = FaultStack(disk.path / "run", byte_model)
    stack.start()
    yield stack
    stack.close()


@cell("while a message is answered")
def test_turn(on_disk: FaultStack, disk: SmallDisk, outcome: Outcome) -> None:
    first = on_disk.answered("full-turn")
    disk.fill()
    live = on_disk.turn("full-turn", "again", first.session_key)
    assert live.over.wait(120)
    disk.make_room()
    began = time.monotonic()
    on_disk.answered_at_last("full-turn-after")
    outcome.seconds = time.monotonic() - began
    outcome.texts.append(f"the turn fails: {live.end}")
    assert PHRASE in live.end
    on_disk.require_history("full-turn", ("hello", first.text))
    outcome.kept.append("all earlier turns")


@cell("when a reward is to be trained")
def test_step(on_disk: FaultStack, disk: SmallDisk, outcome: Outcome) -> None:
    judged = on_disk.answered("full-step")
    disk.fill(but_bytes=6_000_000)
    assert not on_disk.reward(judged, 1.0)
    reason = until(
        lambda: PHRASE in (told := on_disk.trainer("GET", "/rl/status").json())["reason"] and told
    )["reason"]
    disk.make_room()
    began = time.monotonic()
    on_disk.wait_trained(judged)
    outcome.seconds = time.monotonic() - began
    outcome.texts.append(f"waiting: {reason.partition(' in /')[0]}")
    on_disk.require_sound(judged)
    outcome.kept.append("the reward, trained once")


@cell("when processes die")
def test_deaths(on_disk: FaultStack, disk: SmallDisk, outcome: Outcome) -> None:
    first = on_disk.answered("full-death")
    disk.fill()
    for name in ("worker-0", "trainer", "router"):
        os.kill(on_disk.pid(name), signal.SIGKILL)
    until(
        lambda: all(PHRASE in (on_disk.status()[n]["reason"] or "") for n in ("trainer", "router"))
    )
    outcome.texts.append(on_disk.status()["trainer"]["reason"].partition(" in /")[0])
    disk.make_room()
    _, outcome.seconds = on_disk.answered_at_last("full-death-after")
    on_disk.wait_all_ready()
    on_disk.require_history("full-death", ("hello", first.text))
    outcome.kept.append("all earlier turns")


@cell("of the run directory, at a start", what="read-only disk")
def test_read_only(tmp_path: Path, byte_model: Path, outcome: Outcome) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir()
    mounts = (("mount", "--bind"), ("mount", "-o", "bind,remount,ro"))
    for command in mounts:
        done = subprocess.run(
            [*command, folder, folder], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    stack = FaultStack(folder / "run", byte_model)
    try:
        served = stack.spawn()
        code = served.wait(120)
        (line,) = served.errors.splitlines()
    finally:
        stack.close()
        subprocess.run(["umount", "--lazy", folder], check=True)
    assert code == 2
    assert line.startswith("error: run.dir: ")
    outcome.texts.append(f"exit 2: {line.replace(str(folder), '…')}")
