"""Log files: rotation, tails across it, following across it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hermes_tui.supervisor.logs import (
    LogFollower,
    RotatingLog,
    configure_supervisor_logging,
    tail_lines,
)


def test_rotation_keeps_every_line_of_the_last_files(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    log = RotatingLog(path, max_bytes=40)
    for number in range(9):
        log.write(f"line {number:03} 4567890\n".encode())  # 17 bytes: three fill a file
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "worker.log",
        "worker.log.1",
        "worker.log.2",
        "worker.log.3",
    ]
    assert path.read_bytes() == b""
    lines = [f"line {number:03} 4567890" for number in range(9)]
    assert tail_lines(path, 100) == lines
    assert tail_lines(path, 4) == lines[-4:]
    assert tail_lines(path, 0) == []


def test_oldest_file_goes(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "x.log", max_bytes=1)
    for number in range(6):
        log.write(f"{number}\n".encode())
    log.close()
    assert tail_lines(tmp_path / "x.log", 100) == ["3", "4", "5"]


def test_half_a_line_is_not_torn(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log = RotatingLog(path, max_bytes=4)
    log.write(b"half a ")
    log.write(b"line\nnext\n")
    log.close()
    assert tail_lines(path, 9) == ["half a line", "next"]


def test_tail_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"{number} {'x' * 100}\n" for number in range(5000)))
    assert [line.split()[0] for line in tail_lines(path, 3)] == ["4997", "4998", "4999"]
    assert len(tail_lines(path, 5001)) == 5000


def test_no_log_has_no_lines(tmp_path: Path) -> None:
    assert tail_lines(tmp_path / "none.log", 5) == []


def test_follower_crosses_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    follower = LogFollower(path, 10)
    assert follower.read() == []
    log = RotatingLog(path, max_bytes=8)
    log.write(b"one\ntw")
    assert follower.read() == ["one"]
    log.write(b"o\nthree\n")
    log.write(b"four\n")
    assert follower.read() == ["two", "three", "four"]
    assert follower.read() == []
    follower.close()
    log.close()


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"ok \xff\xfe\n")
    assert tail_lines(path, 1) == ["ok \ufffd\ufffd"]


def test_supervisor_log_masks_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    path = tmp_path / "supervisor.log"
    try:
        configure_supervisor_logging(
            path, level="INFO", max_bytes=10_000, secrets=["sk-control-abc", ""]
        )
        logging.getLogger("x").info("key=%s session=%s", "sk-control-abc", "sk-sess-" + "a" * 43)
        logging.getLogger("x").debug("not shown")
        for handler in root.handlers:
            handler.close()
    finally:
        root.handlers[:], root.level = before
    assert path.read_text().endswith("INFO x key=*** session=sk-sess-***\n")
    assert capsys.readouterr().err == path.read_text()
