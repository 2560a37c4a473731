"""All processes of one run directory: started in order, watched, scaled, stopped together."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from hermes_tui import __version__
from hermes_tui.core.control_api import ProcessChanged
from hermes_tui.core.stack_status import SUPERVISOR, ProcessState, StackStatus, SystemSample
from hermes_tui.supervisor.drain import drain
from hermes_tui.supervisor.events import EventLog
from hermes_tui.supervisor.process import ManagedProcess
from hermes_tui.supervisor.specs import (
    AGENT_GATEWAY,
    DATA_PROXY,
    TRAINER,
    WORKER,
    ProcessSpec,
    StackPlan,
)
from hermes_tui.supervisor.system_sampler import SystemSampler, sample_disk
from hermes_tui_common.errors import ApiError, StackError

logger = logging.getLogger(__name__)

SAMPLE_S = 1.0
"""A sample of the machine serves every view for this long."""


class Stack:
    """Owns every child of the supervisor. An async context manager: leaving it stops everything.

    Args:
        plan: which processes to run.
        events: takes every change.
        environ: what the children's environments are made from; None is the process's own.
    """

    def __init__(
        self, plan: StackPlan, events: EventLog, environ: Mapping[str, str] | None = None
    ) -> None:
        self.plan = plan
        self.state = ProcessState.STARTING
        self._events = events
        self._environ = environ
        self._urls: dict[str, str] = {}
        self._started_at = time.monotonic()
        self._sampler = SystemSampler()
        self._sampling = threading.Lock()
        self._sample: SystemSample | None = None
        self._tasks = asyncio.TaskGroup()
        self._scaling = asyncio.Lock()
        self._processes: dict[str, ManagedProcess] = {}
        for spec in plan.specs():
            self._add(spec)

    async def __aenter__(self) -> Stack:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.stop()
        finally:
            if isinstance(error, asyncio.CancelledError):
                await self._tasks.__aexit__(kind, error, trace)
            else:  # the body's own error goes on as it is, not wrapped in a group
                await self._tasks.__aexit__(None, None, None)

    async def start(self) -> None:
        """Start every process, in parallel where nothing is waited for, and watch them.

        Raises: StackError: one could not be started; by then all have been stopped.
        """
        try:
            await self._start(list(self._processes.values()))
        except StackError:
            await self.stop()
            raise
        self.state = ProcessState.READY

    async def stop(self) -> None:
        """End every process under one deadline; nothing is left when this returns."""
        if self.state is ProcessState.STOPPED:
            return
        self.state = ProcessState.STOPPING
        await self._stop(list(self._processes.values()))
        self.state = ProcessState.STOPPED

    async def restart(self, name: str) -> None:
        """Restart one process on the port it had.

        Raises: ApiError: 404 unknown; 409 while the stack starts or stops; 502 not back again.
        """
        process = self.process(name)
        self._require_ready()
        try:
            await process.restart()
        except StackError as error:
            raise ApiError(502, str(error)) from error

    async def scale(self, count: int) -> None:
        """Run this many pairs: start new ones, or stop those with the highest numbers.

        Raises: ApiError: 409 without an agent service, or while the stack starts or stops;
            502 when a new pair cannot be started, which leaves the others as they were.
        """
        self._require_ready()
        if not self.plan.config.services.enabled:
            raise ApiError(409, "This stack runs no agent service, so it has no pairs.")
        async with self._scaling:
            have = sum(process.spec.role == WORKER for process in self._processes.values())
            new = [spec for i in range(have, count) for spec in self.plan.pair(i)]
            surplus = [spec for i in range(count, have) for spec in self.plan.pair(i)]
            if surplus:
                leaving = [self._processes[spec.name] for spec in surplus]
                await self._drain(leaving)
                await self._remove(leaving)
            if new:
                await self._grow([self._add(spec) for spec in new])

    def process(self, name: str) -> ManagedProcess:
        """Return a process by its name.

        Raises: ApiError: 404, there is none of that name.
        """
        if name not in self._processes:
            known = ", ".join(self._processes)
            raise ApiError(404, f"There is no process {name!r}; there are {known}.")
        return self._processes[name]

    @property
    def problem(self) -> str:
        """Which processes are not ready, in a sentence; empty when all are."""
        down = [
            f"{process.name} is {process.state.value}"
            for process in list(self._processes.values())
            if process.state is not ProcessState.READY
        ]
        return "; ".join(down)

    def status(self, control: str) -> StackStatus:
        """Return the state of every process; reads the system's process table.

        May be called in a thread, as may ``system``: the processes are copied first.
        """
        return StackStatus(
            version=__version__,
            run_dir=str(self.plan.run_dir.root),
            state=self.state,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._started_at,
            agent_gateway=self._urls.get(AGENT_GATEWAY),
            inference_gateway=self._urls.get(TRAINER),
            control=control,
            cage=str(self.plan.confinement) if self.plan.config.services.enabled else "",
            processes=tuple(process.status() for process in list(self._processes.values())),
        )

    def system(self) -> SystemSample:
        """Return a sample of the machine, at most ``SAMPLE_S`` old.

        Any number of views may ask: use is measured since the sample before, and two of them in
        quick succession would leave the second nothing to measure.
        """
        with self._sampling:
            if self._sample is None or time.time() - self._sample.at >= SAMPLE_S:
                pids = {name: process.pid for name, process in list(self._processes.items())}
                sample = self._sampler.sample({SUPERVISOR: os.getpid(), **pids})
                self._sample = sample.model_copy(
                    update={
                        "disk": sample_disk(self.plan.run_dir, self.plan.config),
                        "supervisor_pid": os.getpid(),
                        "supervisor_uptime_s": time.monotonic() - self._started_at,
                    }
                )
            return self._sample

    def _add(self, spec: ProcessSpec) -> ManagedProcess:
        process = ManagedProcess(
            spec,
            self.plan.run_dir,
            self.plan.config.run,
            self.plan.config.http,
            self._urls,
            self._changed,
            self._environ,
        )
        self._processes[spec.name] = process
        return process

    def _changed(self, process: ManagedProcess) -> None:
        if process.url and process.state is ProcessState.READY:
            self._urls[process.name] = process.url
        self._events.emit(
            ProcessChanged(
                name=process.name,
                role=process.spec.role,
                state=process.state,
                pid=process.pid,
                reason=process.reason,
            )
        )

    async def _start(self, processes: list[ManagedProcess]) -> None:
        """Start processes, each after those it needs, and watch those that became ready.

        Raises: StackError: the first that failed; the others are as they happen to be.
        """
        ready = {process.name: asyncio.Event() for process in processes}

        async def start(process: ManagedProcess) -> None:
            for name in process.spec.after:
                if name in ready:
                    await ready[name].wait()
            await process.start()
            ready[process.name].set()

        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for process in processes:
                    group.create_task(start(process), name=f"start-{process.name}")
        except* StackError as failures:
            failure = failures.exceptions[0]  # raised in here it would be wrapped in a group
        if failure:
            raise failure
        for process in processes:
            self._tasks.create_task(process.watch(), name=f"watch-{process.name}")

    async def _stop(self, processes: list[ManagedProcess]) -> None:
        deadline = asyncio.get_running_loop().time() + self.plan.config.run.stop_timeout_s
        for process in processes:
            process.begin_stop()
        await asyncio.gather(*(process.finish_stop(deadline) for process in processes))

    async def _grow(self, processes: list[ManagedProcess]) -> None:
        try:
            await self._start(processes)
        except StackError as error:
            await self._remove(processes)
            raise ApiError(502, str(error)) from error

    async def _drain(self, processes: list[ManagedProcess]) -> None:
        """Let the data proxies among these finish their turns."""
        timeout_s = self.plan.config.services.pairs.drain_timeout_s
        key = self.plan.keys.agent_admin_key
        urls = [p.url for p in processes if p.spec.role == DATA_PROXY and p.url]
        await asyncio.gather(*(drain(url, key, timeout_s) for url in urls))

    async def _remove(self, processes: list[ManagedProcess]) -> None:
        await self._stop(processes)
        for process in processes:
            del self._processes[process.name]
            self._urls.pop(process.name, None)

    def _require_ready(self) -> None:
        if self.state is not ProcessState.READY:
            raise ApiError(409, f"The stack is {self.state.value}.", retry_after_s=2.0)
