"""A supervisor of fake roles in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import psutil
from fakes.stack import FakePlan

from hermes_tui.supervisor.events import EventLog
from hermes_tui.supervisor.stack import Stack

DEADLINE_S = 30.0


async def until(condition: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fail when it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.asynccontextmanager
async def running(plan: FakePlan, environ: dict[str, str] | None = None) -> AsyncIterator[Stack]:
    """Start a plan's processes; they are stopped at the end."""
    async with Stack(plan, EventLog(), environ) as stack:
        await stack.start()
        yield stack
