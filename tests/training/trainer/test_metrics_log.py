"""Steps in ``metrics.jsonl`` and in loggers that somebody configured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hermes_tui_training.api.config import MetricsConfig
from hermes_tui_training.trainer.metrics_log import FILE, MetricsLog, numbers_of


def _row(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "policy_version": step, "moved_nats": 0.5, **more}


def _steps(root: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (root / FILE).read_text().splitlines()]


def test_each_step_is_a_line_once_over_restarts(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, MetricsConfig())
    log.catch_up([])
    log.write(_row(1))
    # Step 2 was recorded, and the process died before its line.
    log = MetricsLog(tmp_path, MetricsConfig())
    log.catch_up([_row(1), _row(2)])
    log.write(_row(3))
    assert _steps(tmp_path) == [1, 2, 3]


def test_a_line_that_a_crash_cut_short_does_not_matter(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, MetricsConfig())
    log.write(_row(1))
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text() + '{"step": 2, "mov')
    log.catch_up([_row(1), _row(2)])
    lines = (tmp_path / FILE).read_text().splitlines()
    assert [json.loads(lines[0])["step"], json.loads(lines[-1])["step"]] == [1, 2]


def test_only_numbers_go_to_loggers() -> None:
    row = _row(
        1, seconds={"save": 0.5, "wait": None}, limit=None, published=True, episode_ids=["e"]
    )
    assert numbers_of(row) == {"moved_nats": 0.5, "seconds/save": 0.5}


def test_a_logger_gets_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    module = SimpleNamespace(
        init=lambda **given: calls.append(given),
        log=lambda values, step: calls.append((step, values)),
    )
    monkeypatch.setitem(sys.modules, "trackio", module)
    log = MetricsLog(tmp_path, MetricsConfig(loggers=("trackio",)))
    log.write(_row(1))
    assert calls == [{"project": "hermes-tui", "name": tmp_path.name}, (1, {"moved_nats": 0.5})]


def test_a_logger_that_is_missing_or_fails_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)  # as if it were not installed

    def fail(values: dict[str, float], step: int) -> None:
        raise RuntimeError("no network")

    module = SimpleNamespace(init=lambda **given: None, log=fail)
    monkeypatch.setitem(sys.modules, "wandb", module)
    log = MetricsLog(tmp_path, MetricsConfig(loggers=("trackio", "wandb")))
    assert "logger=trackio is not used" in caplog.text
    log.write(_row(1))
    log.write(_row(2))
    assert caplog.text.count("logger=wandb gives up: no network") == 1
    assert _steps(tmp_path) == [1, 2]
