"""Logs of all processes as one, by time."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hermes_tui.cli import logs as logs_command
from hermes_tui.cli.main import cli
from hermes_tui.config.paths import RunDir

NOW = time.time()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_command.time, "time", lambda: NOW)


def stamped(ago_s: float, text: str) -> str:
    at = datetime.fromtimestamp(NOW - ago_s, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S%z} INFO {text}\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path)
    run_dir.create()
    run_dir.log("trainer").write_text(
        stamped(900, "old") + stamped(300, "failed") + "Traceback:\n  a line\n" + stamped(60, "end")
    )
    run_dir.log("worker-0").write_text("no time\n" + stamped(200, "turn") + stamped(10, "done"))
    older = run_dir.log("worker-0").with_name("worker-0.log.1")
    older.write_text(stamped(400, "rotated"))
    ancient = run_dir.log("worker-0").with_name("worker-0.log.2")
    ancient.write_text(stamped(5000, "ancient"))
    os.utime(ancient, (NOW - 5000, NOW - 5000))
    return run_dir


def run(run_dir: RunDir, *words: str) -> Result:
    return CliRunner().invoke(cli, ["logs", *words, f"run.dir={run_dir.root}"])


def shown(run_dir: RunDir, *words: str) -> list[str]:
    """Return each line without its time and level."""
    result = run(run_dir, *words)
    assert result.exit_code == 0, result.output
    return [
        " ".join(word for word in line.split() if word[10:11] != "T" and word != "INFO")
        for line in result.output.splitlines()
    ]


def test_all_logs_are_merged_by_time(run_dir: RunDir) -> None:
    assert shown(run_dir, "--all", "--since", "10m") == [
        "worker-0 rotated",
        "worker-0 no time",
        "trainer failed",
        "trainer Traceback:",
        "trainer a line",
        "worker-0 turn",
        "trainer end",
        "worker-0 done",
    ]
    assert shown(run_dir, "--all")[0] == "worker-0 ancient"
    assert shown(run_dir, "--all", "-n", "2") == ["trainer end", "worker-0 done"]


def test_one_log_since_a_time(run_dir: RunDir) -> None:
    assert shown(run_dir, "trainer", "--since", "90s") == ["end"]
    half = datetime.fromtimestamp(NOW - 400, UTC).isoformat()
    assert shown(run_dir, "trainer", "--since", half)[0] == "failed"
    assert shown(run_dir, "trainer", "--since", "1s") == []


def test_what_cannot_be_shown_is_said(run_dir: RunDir) -> None:
    result = run(run_dir, "--all", "--since", "yesterday")
    assert "is neither a duration, such as 10m or 2h, nor a time" in result.output
    assert "not both" in run(run_dir, "trainer", "--all").output
    assert "there is no log of 'nobody'" in str(run(run_dir, "nobody").exception)


def test_all_logs_are_followed(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def write_then_end(_: float) -> None:
        said.append(capsys.readouterr().out)
        if len(said) == 2:
            raise KeyboardInterrupt
        with run_dir.log("trainer").open("a") as file:
            file.write(stamped(0, "new"))

    monkeypatch.setattr(logs_command.time, "sleep", write_then_end)
    logs_command.print_logs(run_dir, ["trainer", "worker-0"], follow=True, lines=1)
    assert [text.split()[0::3] for text in said[0].splitlines()] == [
        ["trainer", "end"],
        ["worker-0", "done"],
    ]
    assert said[1].split()[0::3] == ["trainer", "new"]
