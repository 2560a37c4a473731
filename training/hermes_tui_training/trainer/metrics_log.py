"""Steps as lines of ``metrics.jsonl``, and to loggers that somebody configured. Free of torch.

The store has every step's row; the file is for plots and scripts, without a running stack.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hermes_tui_training.api.config import MetricsConfig, MetricsLogger

logger = logging.getLogger(__name__)

Sink = Callable[[int, dict[str, float]], None]
"""Takes a step's number and its numbers by name."""

FILE = "metrics.jsonl"
"""In the run directory: one JSON object a line, as ``/rl/steps`` answers it."""


class MetricsLog:
    """Writes each recorded step once."""

    def __init__(self, run_dir: Path, config: MetricsConfig) -> None:
        """
        Args:
            run_dir: where ``metrics.jsonl`` and TensorBoard's files go.
            config: loggers beside the file.
        """
        self._path = run_dir / FILE
        self._sinks = {name: sink for name in config.loggers if (sink := _opened(name, run_dir))}

    def catch_up(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the steps that the file lacks: the last may have been recorded just before a crash.

        Args:
            rows: of all recorded steps, oldest first.
        """
        last = self._last_step()
        for row in rows:
            if row["step"] > last:
                self.write(row)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a step; what cannot be written is said in the log, and training goes on."""
        try:
            with self._path.open("a+b") as file:
                file.seek(max(0, file.tell() - 1))
                cut_short = file.read() not in (b"", b"\n")  # by a crash
                file.write(b"\n" * cut_short + json.dumps(row).encode() + b"\n")
        except OSError as error:
            logger.warning("metrics cannot be written path=%s error=%s", self._path, error)
        values = numbers_of(row)
        for name, sink in list(self._sinks.items()):
            try:
                sink(row["step"], values)
            except Exception as error:
                # Somebody else's library: whatever it raises, learning must not end for it.
                logger.warning("logger=%s gives up: %s", name, error)
                del self._sinks[name]

    def _last_step(self) -> int:
        """Return the number of the last whole line's step; -1 without any."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except OSError:
            return -1
        for line in reversed(lines):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                continue  # cut short by a crash
        return -1


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a step's row by name; those of ``seconds`` as ``seconds/<name>``."""
    flat = {f"seconds/{name}": value for name, value in (row.get("seconds") or {}).items()}
    flat |= {name: value for name, value in row.items() if name not in ("step", "policy_version")}
    return {
        name: float(value)
        for name, value in flat.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _opened(name: MetricsLogger, run_dir: Path) -> Sink | None:
    """Return a logger's sink; None, said in the log, when it is not installed or does not start."""
    try:
        return _tensorboard(run_dir) if name == "tensorboard" else _tracker(name, run_dir)
    except Exception as error:
        # A missing package, no login, no network: none of these may keep the trainer from starting.
        logger.warning("logger=%s is not used (training.metrics.loggers): %s", name, error)
        return None


def _tensorboard(run_dir: Path) -> Sink:
    module = importlib.import_module("torch.utils.tensorboard")
    writer = module.SummaryWriter(str(run_dir / "tensorboard"))

    def write(step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    return write


def _tracker(name: str, run_dir: Path) -> Sink:
    """Return the sink of trackio or W&B, which share a way of being called."""
    module = importlib.import_module(name)
    module.init(project="hermes-tui", name=run_dir.name)
    return lambda step, values: module.log(values, step=step)
