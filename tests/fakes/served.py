"""A ``--serve`` of fake roles as a real process, and what its users' programs see of it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

STACK = Path(__file__).with_name("stack.py")
DEADLINE_S = 60.0


def is_alive(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> Any:
    """Return the condition's value once it is true; fail when it does not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)
    return value


class Served:
    """One running supervisor. A context manager: what is left of it is killed at the end.

    Args:
        command: the program and its arguments.
        run_dir: its run directory.
        cwd: where it is started; None is here.
    """

    def __init__(
        self, command: list[str], run_dir: Path, *, cwd: Path | None = None, **environ: str
    ) -> None:
        self.run_dir = run_dir
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_WAIT_POLICY": "passive", **environ},
        )
        self.rows: list[dict[str, Any]] = []
        self.errors = ""
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @classmethod
    def fakes(cls, run_dir: Path, *words: str) -> Served:
        """Serve fake roles: ``NAME=BEHAVIOUR`` words."""
        return cls([sys.executable, "-P", str(STACK), str(run_dir), *words], run_dir)

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream
            stream.close()

    def wait_for(self, kind: str, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        """Return the first event of a kind; every line until then must be JSON."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"it ended: {self.errors}"
            self.rows.append(json.loads(line))
            if self.rows[-1]["event"] == kind:
                return self.rows[-1]

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Return the exit code once it and its output have ended."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def http(self) -> httpx.Client:
        """Return a client of the control API that knows the key."""
        url = json.loads((self.run_dir / "run" / "supervisor.json").read_text())["url"]
        key = json.loads((self.run_dir / "keys.json").read_text())["control_key"]
        return httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=DEADLINE_S
        )

    def pids(self) -> list[int]:
        """Return the process ids of the stack's live processes."""
        with self.http() as http:
            rows = http.get("/status").json()["processes"]
        return [row["pid"] for row in rows if row["pid"]]

    def _read_output(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.errors += line
