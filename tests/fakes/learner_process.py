"""A real learner process on a tiny model, to start, watch, kill and start again."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import httpx

from hermes_tui_common.serving import ServeConfig
from hermes_tui_training.api.config import LearnerRole, ModelConfig, TrainingConfig

ADMIN_KEY = "test-admin-key-0123456789"
START_S = 110.0
"""Generous: other work may share the cores."""


class LearnerProcess:
    """``python -P -m hermes_tui_training.learner`` with its files under one directory."""

    def __init__(
        self, root: Path, model: str | Path, training: TrainingConfig, *, threads: int | None = 1
    ) -> None:
        """
        Args:
            root: where its files go.
            model: ``model.path``.
            training: how to train.
            threads: of torch; None leaves the choice to it.
        """
        self.root = root
        self.run_file = root / "learner.json"
        self.log = root / "learner.log"
        self.checkpoints = root / "checkpoints"
        self.model, self._training = str(model), training
        self._environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        if threads is not None:
            self._environment["OMP_NUM_THREADS"] = str(threads)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return str(json.loads(self.run_file.read_text())["url"])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the process without waiting for it."""
        self.run_file.unlink(missing_ok=True)
        role = LearnerRole(
            serve=ServeConfig(
                name="learner",
                run_file=self.run_file,
                instance=secrets.token_hex(8),
                lifeline=True,
            ),
            admin_key=ADMIN_KEY,
            model=ModelConfig(path=self.model),
            training=self._training,
            checkpoints=self.checkpoints,
        )
        config = self.root / "learner.config.json"
        config.write_text(json.dumps(role.model_dump(mode="json", context={"reveal": True})))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hermes_tui_training.learner", "--config", config],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        return self._process

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        process = self.spawn()
        deadline = time.monotonic() + START_S
        while not self.run_file.exists():
            assert process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def health(self) -> httpx.Response:
        return httpx.get(f"{self.url}/health", timeout=10)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def close_lifeline(self) -> int:
        """Close its standard input, as its dying supervisor would; return its exit code."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        code = self._process.wait(timeout=30)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        return code
