"""Finding the supervisor of a run directory, starting one in the background, ending it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress

from hermes_tui.config.paths import RunDir
from hermes_tui.config.settings import Config
from hermes_tui.core.control_api import ControlEvent, StackFailed, StackReady
from hermes_tui.core.errors import EXIT_ALREADY_RUNNING, NotRunningError
from hermes_tui.core.stack_status import SUPERVISOR, ProcessState
from hermes_tui.stack_client.control import ControlClient
from hermes_tui.supervisor.lock import lock_owner
from hermes_tui.supervisor.logs import tail_lines
from hermes_tui.supervisor.watchdog import kill_orphans
from hermes_tui_common.disk import MIN_FREE_BYTES, DiskFullError, require_room
from hermes_tui_common.errors import StackError, UnreachableError
from hermes_tui_common.serving import write_private

CONTROL_TIMEOUT_S = 30.0
"""How long a supervisor may take until its control API answers; interpreters start slowly when
every core is busy."""

_POLL_S = 0.05
_STOP_MARGIN_S = 10.0
"""Beyond the stack's own stop deadline, until a supervisor that does not end is an error."""

_LEFT_RUNNING: list[subprocess.Popen[bytes]] = []
"""Supervisors that are meant to outlive us: kept, since Popen objects that go away complain."""


async def find_supervisor(run_dir: RunDir) -> ControlClient:
    """Return a client for the supervisor that serves a run directory; its API has answered.

    Raises: NotRunningError: none does.
    """
    if lock_owner(run_dir) is None:
        raise NotRunningError(str(run_dir.root))
    client = ControlClient.of(run_dir)
    try:
        await client.status()
    except BaseException:
        await client.aclose()
        raise
    return client


async def ensure_supervisor(
    config: Config, on_event: Callable[[ControlEvent], None]
) -> ControlClient:
    """Return a client for the run directory's supervisor, started first when there is none.

    The supervisor is a process of its own in the background, and outlives its caller. Returns
    once every process is ready.

    Args:
        config: the resolved configuration; a supervisor that already runs keeps its own.
        on_event: called with each event of the start-up, such as ``ProcessChanged``.

    Raises: StackError: it could not be started; says why. Nothing is left running.
    """
    run_dir = RunDir.of(config)
    run_dir.create()
    await _wait_stopping(run_dir, config)
    started = None if lock_owner(run_dir) else _spawn(config, run_dir)
    client = await _connect(run_dir, started)
    try:
        await _wait_ready(client, run_dir, on_event)
    except BaseException as error:
        await client.aclose()
        if isinstance(error, StackError):
            await _wait_gone(run_dir, config.run.stop_timeout_s + _STOP_MARGIN_S)
        raise
    return client


async def stop_supervisor(run_dir: RunDir, stop_timeout_s: float) -> None:
    """End the supervisor of a run directory and everything it owns; returns when it is gone.

    Raises:
        NotRunningError: none serves it.
        StackError: it did not end in time.
    """
    pid = lock_owner(run_dir)
    if pid is None:
        raise NotRunningError(str(run_dir.root))
    try:
        async with ControlClient.of(run_dir) as client:
            await client.shutdown()
    except UnreachableError:  # its API is not up, or no longer: the signal means the same
        os.kill(pid, signal.SIGTERM)
    await _wait_gone(run_dir, stop_timeout_s + _STOP_MARGIN_S)


def kill_stack(run_dir: RunDir) -> None:
    """Kill the supervisor of a run directory and everything it owns, at once.

    Raises: NotRunningError: none serves it.
    """
    pid = lock_owner(run_dir)
    if pid is None:
        raise NotRunningError(str(run_dir.root))
    with suppress(ProcessLookupError):  # it ended by itself just now
        os.kill(pid, signal.SIGKILL)
    kill_orphans(run_dir.root)


async def _wait_gone(run_dir: RunDir, timeout_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while (pid := lock_owner(run_dir)) is not None:
        if asyncio.get_running_loop().time() > deadline:
            raise StackError(f"supervisor: pid {pid} did not end within {timeout_s:.0f} s; kill it")
        await asyncio.sleep(_POLL_S)


async def _wait_stopping(run_dir: RunDir, config: Config) -> None:
    """Let a supervisor that is on its way out finish, so that a new one may start."""
    try:
        async with await find_supervisor(run_dir) as client:
            status = await client.status()
    except UnreachableError:
        return
    if status.state in (ProcessState.STOPPING, ProcessState.STOPPED):
        await _wait_gone(run_dir, config.run.stop_timeout_s + _STOP_MARGIN_S)


def _spawn(config: Config, run_dir: RunDir) -> subprocess.Popen[bytes]:
    """Start the supervisor in a session of its own; its keys are in a file, not in its argv.

    Raises: StackError: the disk is full; nobody would see that it waits for room.
    """
    try:
        require_room(run_dir.root, MIN_FREE_BYTES)
    except DiskFullError as error:
        raise StackError(str(error)) from error
    resolved = run_dir.config_file(SUPERVISOR)
    write_private(resolved, config.to_json())
    run_dir.supervisor.unlink(missing_ok=True)
    with open(os.open(run_dir.serve_output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)) as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "hermes_tui.supervisor.serve",
                "--resolved",
                str(resolved),
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    _LEFT_RUNNING.append(process)
    return process


async def _connect(run_dir: RunDir, started: subprocess.Popen[bytes] | None) -> ControlClient:
    deadline = asyncio.get_running_loop().time() + CONTROL_TIMEOUT_S
    while True:
        try:
            return await find_supervisor(run_dir)
        except UnreachableError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise StackError(f"supervisor: {error}; see {run_dir.serve_output}") from error
        code = started.poll() if started else None
        # Two views that start at once: the one that lost the race uses the other's supervisor.
        if code is not None and code != EXIT_ALREADY_RUNNING:
            raise StackError(_why_not_started(run_dir))
        await asyncio.sleep(_POLL_S)


async def _wait_ready(
    client: ControlClient, run_dir: RunDir, on_event: Callable[[ControlEvent], None]
) -> None:
    if (await client.status()).state is ProcessState.READY:
        return
    async with aclosing(client.events()) as events:
        async for event in events:
            on_event(event)
            if isinstance(event, StackReady):
                return
            if isinstance(event, StackFailed):
                raise StackError(event.error)
    raise StackError(_why_not_started(run_dir))


def _why_not_started(run_dir: RunDir) -> str:
    lines = tail_lines(run_dir.serve_output, 50)
    errors = [line for line in lines if line.startswith("error: ")]
    last = (errors or lines or ["ended without a word"])[-1]
    return f"{last.removeprefix('error: ')} (see {run_dir.serve_output})"
