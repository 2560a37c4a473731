"""A child that hangs though it lives is found and replaced; one that works long is left alone."""

from __future__ import annotations

import re
from pathlib import Path

from fakes.stack import fake_plan
from fakes.supervised import running, until

from hermes_tui.core.stack_status import ProcessState
from hermes_tui.supervisor.process import ManagedProcess

HUNG_AFTER_S = 3.0
WATCH = {"heartbeat_s": 0.1, "hung_after_s": HUNG_AFTER_S, "work_hung_after_s": HUNG_AFTER_S}


def is_replaced(process: ManagedProcess) -> bool:
    row = process.status()
    return row.state is ProcessState.READY and row.restarts == 1


def busy_s(process: ManagedProcess) -> float:
    """Return for how long its task has been at work."""
    found = re.search(r", (\d+) s$", process.status().work or "")
    return float(found[1]) if found else 0.0


async def test_what_blocks_or_is_stuck_is_replaced_and_long_work_is_not(tmp_path: Path) -> None:
    behaviours = {"worker_0": "blocks", "router": "stuck", "agent_gateway": "gets on"}
    async with running(fake_plan(tmp_path, watch=WATCH, **behaviours)) as stack:
        blocked, stuck, busy = map(stack.process, ("worker-0", "router", "agent-gateway"))
        await until(lambda: is_replaced(blocked) and is_replaced(stuck))
        loop, work = blocked.status().last_exit or "", stuck.status().last_exit or ""
        assert loop.startswith("SIGKILL (its event loop has not run for 3 s"), loop
        assert work.startswith("SIGKILL (no progress for 3 s in: training version 5"), work
        # Three times as long as what hangs may take, with progress all the time.
        await until(lambda: busy_s(busy) > 3 * HUNG_AFTER_S)
        row = busy.status()
        assert (row.state, row.restarts) == (ProcessState.READY, 0)
        assert (row.work or "").startswith("training version 5, batch ")
        assert stack.process("data-proxy-0").status().restarts == 0


async def test_zero_switches_the_watch_off(tmp_path: Path) -> None:
    watch = {"heartbeat_s": 0.05, "hung_after_s": 0.0, "work_hung_after_s": 0.0}
    async with running(fake_plan(tmp_path, watch=watch, router="stuck")) as stack:
        await until(lambda: busy_s(stack.process("router")) > 1)
        assert stack.process("router").status().restarts == 0
