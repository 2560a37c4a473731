"""A tiny real role process for the supervisor's tests; its name tells it how to behave.

Started as ``python -P role.py --config FILE``, as the product's roles are.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
import time

from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from hermes_tui_common.errors import ConfigError, StackError
from hermes_tui_common.heartbeat import advance, working
from hermes_tui_common.serving import RoleConfig, report_stage, run_role, write_private


class FakeRole(RoleConfig):
    """What a fake role is told."""

    behaviour: str = ""
    """"", "dies" (soon after it is ready), "broken" (cannot start), "misconfigured", "stubborn"
    (ignores SIGTERM and its lifeline), "slow" (never ready), "forks" (starts a child), "forks away"
    (one in a session of its own), "busy" (its session has a turn running until its run directory
    holds a file ``rest``), "blocks" (its event loop, once), "stuck" (its work does not get on,
    once), "gets on" (with work that takes long)."""
    seen: dict[str, str] = Field(default_factory=dict)
    """Addresses of the processes it comes after."""


WARM_UP_S = 0.3
"""Real roles take a moment to start; the supervisor looks at their stage twenty times a second."""


def build(config: FakeRole) -> Starlette:
    print(f"hello from {config.serve.name}", flush=True)
    behaviour = config.behaviour
    report_stage(config.serve, "warming up")
    time.sleep(WARM_UP_S)
    if behaviour == "broken":
        raise StackError("the flux capacitor is empty")
    if behaviour == "misconfigured":
        raise ConfigError("no such flux")
    if behaviour == "slow":
        time.sleep(600)
    if behaviour == "stubborn":
        _ignore_everything()
    if behaviour == "dies":
        threading.Timer(0.05, _die).start()
    if behaviour.startswith("forks"):
        _fork(config)
    if behaviour == "gets on" or (behaviour == "stuck" and _is_first(config)):
        threading.Thread(target=_work, args=(behaviour,), daemon=True).start()

    async def health(_: Request) -> JSONResponse:
        if behaviour == "blocks" and _is_first(config):
            asyncio.get_running_loop().call_later(WARM_UP_S, time.sleep, 600)
        return JSONResponse({"status": "ok"})

    async def environment(_: Request) -> JSONResponse:
        return JSONResponse({"environ": dict(os.environ), "argv": sys.orig_argv})

    async def seen(_: Request) -> JSONResponse:
        return JSONResponse(config.seen)

    async def sessions(_: Request) -> JSONResponse:
        return JSONResponse({"data": []})

    async def turns(_: Request) -> JSONResponse:
        assert config.serve.run_file
        running = behaviour == "busy" and not (config.serve.run_file.parent / "rest").exists()
        turn = {"session_key": "s", "run_id": "run-1", "started_at": 0.0}
        return JSONResponse({"data": [turn] if running else []})

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/environment", environment),
            Route("/seen", seen),
            Route("/sessions", sessions),
            Route("/turns", turns),
        ]
    )


def _is_first(config: FakeRole) -> bool:
    """Return whether this process was not started before."""
    assert config.serve.run_file
    mark = config.serve.run_file.with_suffix(".started")
    started = mark.exists()
    mark.touch()
    return not started


def _work(behaviour: str) -> None:
    """Train, with a batch every now and then, or none."""
    with working("training version 5"):
        for number in itertools.count(1):
            if behaviour == "gets on":
                advance(f"batch {number}")
            time.sleep(0.1)


def _die() -> None:
    print("ValueError: the end is near", flush=True)
    os._exit(7)


def _fork(config: FakeRole) -> None:
    """Start a grandchild that ignores SIGTERM, and leave its pid in the run directory."""
    assert config.serve.run_file
    pid = os.fork()
    if pid == 0:
        if config.behaviour == "forks away":
            os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    write_private(config.serve.run_file.parent / "grandchild", str(pid))


def _ignore_everything() -> None:
    """Let SIGTERM and the end of the lifeline pass, whatever the server sets up."""
    real = signal.signal

    def keep_ignoring(number: int, handler: object) -> object:
        return real(number, signal.SIG_IGN if number == signal.SIGTERM else handler)  # type: ignore[arg-type]

    signal.signal = keep_ignoring  # type: ignore[assignment]
    real(signal.SIGTERM, signal.SIG_IGN)


if __name__ == "__main__":
    run_role(FakeRole, build)
