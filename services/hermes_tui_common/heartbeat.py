"""The heartbeat: how a supervisor knows that a role lives and gets on with its work.

A thread of its own writes a ``Beat`` a second, as a JSON line, to the supervisor. A process that is
stopped writes none. A beat also says for how long the event loop has not run, and which tasks are
at work and when each of them last got on.

All durations are counted in beats, not read from a clock: after a machine was suspended no process
seems to have been silent for the time in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

MAX_TASKS = 8
"""Tasks that a beat names at most, those that were silent the longest first: a line stays small."""


class TaskBeat(BaseModel):
    """One task that is at work."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    task: str
    """What it does, such as ``training version 5``."""
    progress: str = ""
    """How far it is, in words; empty when it does not say."""
    busy_s: float = 0.0
    """Seconds since it began."""
    silent_s: float = 0.0
    """Seconds since it last got on."""


class Beat(BaseModel):
    """One sign of life."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    loop_silent_s: float = 0.0
    """Seconds for which the event loop has not run; 0.0 before there is one."""
    tasks: tuple[TaskBeat, ...] = ()
    """What was at work at the last beat and is so still, at most ``MAX_TASKS``."""


@dataclass(slots=True, eq=False)
class _Task:
    name: str
    progress: str = ""
    num_advances: int = 0
    num_seen: int = 0
    """``num_advances`` at the last beat."""
    num_beats: int = 0
    """Beats since it began."""
    num_silent: int = 0
    """Beats since it last got on."""


_tasks: dict[_Task, None] = {}
_lock = threading.Lock()
_current: ContextVar[_Task | None] = ContextVar("task", default=None)


@contextlib.contextmanager
def working(task: str) -> Iterator[None]:
    """Report a task for as long as the block runs; ``advance`` says that it gets on."""
    row = _Task(task)
    outer = _current.set(row)
    with _lock:
        _tasks[row] = None
    try:
        yield
    finally:
        with _lock:
            del _tasks[row]
        _current.reset(outer)


def advance(progress: str = "") -> None:
    """Say that this thread's task got on, and how far it is; nothing happens without a task."""
    if task := _current.get():
        task.progress = progress or task.progress
        task.num_advances += 1


class Heartbeat:
    """Writes beats until the supervisor has gone.

    Args:
        descriptor: a socket to the supervisor; it is duplicated.
        every_s: time between two beats.
    """

    def __init__(self, descriptor: int, every_s: float) -> None:
        self._socket = socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM)
        self._every_s = every_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticked = True
        self._num_unticked = 0

    def start(self) -> None:
        """Beat from now on, in a thread of its own."""
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say from now on when the event loop does not run."""
        self._loop = loop

    def beat(self) -> Beat:
        """Return the next beat; each call counts as ``every_s`` seconds."""
        with _lock:
            tasks = [self._task_beat(task) for task in _tasks]
        lasting = [task for task in tasks if task.busy_s > self._every_s]
        lasting.sort(key=lambda task: -task.silent_s)
        return Beat(loop_silent_s=self._loop_silence_s(), tasks=tuple(lasting[:MAX_TASKS]))

    def _run(self) -> None:
        while True:
            line = self.beat().model_dump_json(exclude_defaults=True).encode() + b"\n"
            try:
                self._socket.send(line, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass  # the supervisor is stopped or very busy, and has beats enough to read
            except OSError:
                return  # it has gone; the lifeline says so too
            time.sleep(self._every_s)

    def _loop_silence_s(self) -> float:
        if self._loop is None:
            return 0.0
        self._num_unticked = 0 if self._ticked else self._num_unticked + 1
        if self._ticked:
            self._ticked = False
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._tick)
        return self._num_unticked * self._every_s

    def _tick(self) -> None:
        self._ticked = True

    def _task_beat(self, task: _Task) -> TaskBeat:
        task.num_beats += 1
        task.num_silent = task.num_silent + 1 if task.num_advances == task.num_seen else 0
        task.num_seen = task.num_advances
        return TaskBeat(
            task=task.name,
            progress=task.progress,
            busy_s=task.num_beats * self._every_s,
            silent_s=task.num_silent * self._every_s,
        )
