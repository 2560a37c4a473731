"""The agent service's roles as real processes, for tests and for the benchmark."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ADMIN_KEY = "admin-key-of-the-tests"
WORKER_KEY = "worker-key-of-the-tests"
START_S = 60.0


@dataclass(slots=True, kw_only=True)
class Process:
    """One role's process."""

    name: str
    module: str
    config: dict[str, Any]
    run_dir: Path
    popen: subprocess.Popen[bytes] | None = None
    port: int = 0
    started_at: float = 0.0
    start_s: float = 0.0
    env: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.run_dir / f"{self.name}.log").read_text(encoding="utf-8")

    def start(self) -> None:
        """Start it, on the port that it had, and return at once."""
        run_file = self.run_dir / f"{self.name}.json"
        run_file.unlink(missing_ok=True)
        serve = {
            "name": self.name,
            "port": self.port,
            "run_file": str(run_file),
            "instance": secrets.token_hex(8),
            "lifeline": True,
        }
        path = self.run_dir / f"{self.name}.config"
        path.write_text(json.dumps({"serve": serve, "admin_key": ADMIN_KEY, **self.config}))
        path.chmod(0o600)
        self.started_at = time.time()
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        with (self.run_dir / f"{self.name}.log").open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module, "--config", str(path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**env, **self.env},
                cwd=self.run_dir,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Return once it answers; raises with its log when it does not."""
        assert self.popen
        began = time.monotonic()
        run_file = self.run_dir / f"{self.name}.json"
        while time.monotonic() < began + START_S:
            if self.popen.poll() is not None:
                break
            if run_file.exists():
                row = json.loads(run_file.read_text())
                self.port, self.start_s = int(row["port"]), row["started_at"] - self.started_at
                return
            time.sleep(0.01)
        raise AssertionError(f"{self.name} did not start: {self.log[-2000:]}")

    def kill(self) -> None:
        """SIGKILL it."""
        assert self.popen
        os.kill(self.popen.pid, signal.SIGKILL)
        self.popen.wait(10)
        assert self.popen.stdin
        self.popen.stdin.close()

    def stop(self) -> None:
        """Close its lifeline and wait until it is gone."""
        if self.popen is None:
            return
        assert self.popen.stdin
        self.popen.stdin.close()
        try:
            self.popen.wait(12)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(5)
            raise AssertionError(f"{self.name} did not stop: {self.log[-2000:]}") from None

    def rss_bytes(self) -> int:
        """Return its resident memory."""
        assert self.popen
        pages = int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True, kw_only=True)
class Services:
    """Gateway, router and pairs."""

    processes: dict[str, Process]

    @property
    def gateway_url(self) -> str:
        return self.processes["agent-gateway"].url

    def __getitem__(self, name: str) -> Process:
        return self.processes[name]

    def client(self) -> httpx.Client:
        """Return a client of the gateway that has the key."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        return httpx.Client(base_url=self.gateway_url, headers=headers, timeout=60)


@contextlib.contextmanager
def running(
    run_dir: Path,
    *,
    pairs: int = 1,
    agent: dict[str, Any] | None = None,
    upstream: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    session_timeout_s: float = 86400.0,
    cage: str = "none",
    gateway_run_file: Path | None = None,
) -> Iterator[Services]:
    """Run the agent service; everything is stopped at the end.

    Args:
        gateway_run_file: of the model server that counts as the stack's own.
        cage: what the workers are told that they run in, though nothing cages them here.
    """
    processes: dict[str, Process] = {}

    def add(name: str, role: str, **config: Any) -> Process:
        process = processes[name] = Process(
            name=name,
            module=f"hermes_tui_services.{role}",
            config=config,
            run_dir=run_dir,
            env=env or {},
        )
        process.start()
        return process

    try:
        router = add("router", "router", poll_s=0.5)
        workers = [
            add(
                f"worker-{i}",
                "worker",
                admin_key=WORKER_KEY,
                agent=agent or {},
                cage=cage,
                home=str(run_dir / f"hermes-{i}"),
                workdir=str(run_dir / "work"),
            )
            for i in range(pairs)
        ]
        router.wait_ready()
        gateway = add("agent-gateway", "gateway", router_url=router.url)
        for index, worker in enumerate(workers):
            worker.wait_ready()
            add(
                f"data-proxy-{index}",
                "data_proxy",
                router_url=router.url,
                worker_url=worker.url,
                worker_key=WORKER_KEY,
                gateway_run_file=str(gateway_run_file) if gateway_run_file else None,
                upstream=upstream or {},
                database=str(run_dir / "conversations.db"),
                session_timeout_s=session_timeout_s,
            )
        for process in processes.values():
            process.wait_ready()
        _wait_registered(router.url, pairs)
        assert gateway.port
        yield Services(processes=processes)
    finally:
        for process in processes.values():
            if process.popen and process.popen.poll() is None and process.popen.stdin:
                process.popen.send_signal(signal.SIGTERM)
        for process in reversed(processes.values()):
            process.stop()


def _wait_registered(router_url: str, pairs: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if httpx.get(f"{router_url}/health").json()["registered_proxies"] == pairs:
            return
        time.sleep(0.02)
    raise AssertionError("the data proxies did not register")
