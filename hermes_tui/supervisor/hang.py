"""Tells a hung child from one that works: by its heartbeat, never by the clock alone."""

from __future__ import annotations

import asyncio

from hermes_tui.config.settings import RunConfig
from hermes_tui.supervisor.child import Child
from hermes_tui_common.heartbeat import Beat


async def until_hung(child: Child, settings: RunConfig, *, starting: bool) -> str:
    """Return how a child is hung once it is, such as ``no heartbeat for 20 s``.

    Silence is counted in the supervisor's own looks: when the supervisor itself or the whole
    machine stood still, the child is not blamed for it.

    Args:
        child: the child.
        settings: the thresholds of ``[run]``.
        starting: a start has a threshold of its own, and may compute in the event loop.
    """
    limit_s = settings.starting_hung_after_s if starting else settings.hung_after_s
    num_seen, silent_s = child.num_beats, 0.0
    while True:
        await asyncio.sleep(settings.heartbeat_s)
        silent_s = silent_s + settings.heartbeat_s if child.num_beats == num_seen else 0.0
        num_seen = child.num_beats
        if limit_s and silent_s >= limit_s:
            return f"no heartbeat for {silent_s:.0f} s"
        if not starting and (why := _stalled(child.beat, settings)):
            return why


def _stalled(beat: Beat, settings: RunConfig) -> str:
    """Return what in a child does not get on though the child lives; empty when all does."""
    if settings.hung_after_s and beat.loop_silent_s >= settings.hung_after_s:
        return f"its event loop has not run for {beat.loop_silent_s:.0f} s"
    for task in beat.tasks:
        if settings.work_hung_after_s and task.silent_s >= settings.work_hung_after_s:
            return f"no progress for {task.silent_s:.0f} s in: {task.task}"
    return ""


def work_of(beat: Beat) -> str | None:
    """Return what a child is at work on, such as ``training version 5, batch 3 of 8, 12 s``."""
    rows = (
        ", ".join(filter(None, (task.task, task.progress, f"{task.busy_s:.0f} s")))
        for task in beat.tasks
    )
    return "; ".join(rows) or None
