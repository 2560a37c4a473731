"""One supervised process: started, watched, restarted on the port it had, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx

from hermes_tui.config.paths import RunDir
from hermes_tui.config.settings import RunConfig
from hermes_tui.core.errors import EXIT_CONFIG
from hermes_tui.core.stack_status import ProcessState, ProcessStatus
from hermes_tui.supervisor.child import Child
from hermes_tui.supervisor.hang import until_hung, work_of
from hermes_tui.supervisor.logs import RotatingLog
from hermes_tui.supervisor.specs import ProcessSpec, Urls
from hermes_tui.supervisor.system_sampler import rss_bytes
from hermes_tui_common.disk import MIN_FREE_BYTES, DiskFullError, require_room
from hermes_tui_common.errors import StackError
from hermes_tui_common.limits import HttpConfig
from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_common.serving import (
    INSTANCE_HEADER,
    ServeConfig,
    bind,
    notice_file,
    stage_file,
    write_private,
)

logger = logging.getLogger(__name__)

FLAPPING_DEATHS = 3
FLAPPING_WINDOW_S = 60.0
"""Three deaths within a minute: something is wrong that a restart does not mend."""

_BACKOFF_S = 0.5
_BACKOFF_CAP_S = 30.0
_POLL_S = 0.05
"""How often a starting process is looked at."""
_ROOM_POLL_S = 1.0
"""How often a full disk is looked at."""
_HEALTH_TIMEOUT_S = 5.0
_ERROR_LINE = re.compile(r"(^error: |\b(ERROR|CRITICAL)\b|^[A-Za-z_.]*(Error|Exception)\b)")


class ManagedProcess:
    """One process of the stack and its life.

    Args:
        spec: what to run.
        run_dir: where its files go.
        settings: log size, start and stop deadlines.
        limits: what its server lets in.
        urls: where the processes it comes after answer; read at each start.
        on_change: called after every change of its state or its reason.
        environ: what the child's environment is made from; None is the process's own.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        run_dir: RunDir,
        settings: RunConfig,
        limits: HttpConfig,
        urls: Urls,
        on_change: Callable[[ManagedProcess], None],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.spec = spec
        self.state = ProcessState.STOPPED
        self.url: str | None = None
        self.reason: str | None = None
        self._run_dir = run_dir
        self._settings = settings
        self._limits = limits
        self._urls = urls
        self._on_change = on_change
        self._environ = os.environ if environ is None else environ
        self._child: Child | None = None
        self._port: int | None = None
        self._started_at = 0.0
        self._restarts = 0
        self._last_exit: str | None = None
        self._hang = ""
        """How the child was hung that is killed for it; empty when it was not."""
        self._deaths: deque[float] = deque(maxlen=FLAPPING_DEATHS)
        self._stopping = False
        self._restart_asked = False
        self._wake = asyncio.Event()
        """Cuts a pause before a restart short."""
        self._settled = asyncio.Event()
        """Set once a restart that was asked for has come to its end, good or bad."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    @property
    def pid(self) -> int | None:
        """Its process id while it lives."""
        child = self._child
        return child.pid if child and child.returncode is None else None

    def status(self) -> ProcessStatus:
        """Return what the control API tells about it; reads the system's process table."""
        pid, child = self.pid, self._child
        return ProcessStatus(
            name=self.name,
            role=self.spec.role,
            state=self.state,
            pid=pid,
            port=self._port,
            url=self.url,
            restarts=self._restarts,
            uptime_s=time.monotonic() - self._started_at if pid else None,
            rss_bytes=rss_bytes(pid) if pid else None,
            last_exit=self._last_exit,
            reason=self._notices() if self.state is ProcessState.READY else self.reason,
            work=work_of(child.beat) if pid and child else None,
        )

    async def start(self) -> None:
        """Start it and return once it is ready; on a full disk, once there is room.

        Raises: StackError: it ended, or was not ready in time; names its last error line.
        """
        self._set(ProcessState.STARTING, f"replaced: {self._hang}" if self._hang else "starting")
        instance = secrets.token_urlsafe(16)
        self._child = child = await self._spawn_with_room(instance)
        self._started_at = time.monotonic()
        if self._stopping:  # asked for while the child was being made: nobody else would end it
            await child.finish()
            raise StackError(f"{self.name}: stopped while it was starting")
        await self._wait_ready(child, instance)
        self._set(ProcessState.READY, self._notices())

    async def _spawn_with_room(self, instance: str) -> Child:
        while True:
            full = self._full_disk()
            try:
                if full is None:
                    return await self._spawn(instance)
            except OSError as error:
                full = DiskFullError.of(error, self._run_dir.root, MIN_FREE_BYTES)
                if full is None:  # such as no more processes: a death like any other
                    cause = f"{error.filename}: {error.strerror}" if error.filename else error
                    raise StackError(f"{self.name}: cannot be started: {cause}") from error
            self._set(ProcessState.STARTING, f"waiting: {full}")
            await self._until_woken(_ROOM_POLL_S)
            if self._stopping:
                raise StackError(f"{self.name}: stopped while it was starting")

    async def _spawn(self, instance: str) -> Child:
        """Write the resolved configuration and start the process that reads it."""
        cage = self.spec.cage
        serve = ServeConfig(
            name=self.name,
            host=self.spec.host,
            port=self._port or self.spec.port,
            port_key=self.spec.port_key,
            run_file=None if cage else self._run_dir.run_file(self.name),
            instance=instance,
            lifeline=True,
            heartbeat_s=self._settings.heartbeat_s,
            log_level=self._settings.log_level,
            limits=self._limits,
        )
        self._forget_run_file()
        with contextlib.ExitStack() as exits:
            inherited: tuple[int, ...] = ()
            if cage and cage.relay:  # a socket belongs to the network that it was made in
                sock = exits.enter_context(bind(serve))
                inherited = (sock.fileno(),)
                serve = serve.model_copy(update={"descriptor": sock.fileno()})
            role = self.spec.resolve(serve, self._urls)
            text = role.model_dump_json(by_alias=True, context={"reveal": True})
            file = self._run_dir.config_file(self.name)
            if cage is None:
                write_private(file, text)
            return await Child.spawn(
                self.spec.command,
                text if cage else file,
                log=RotatingLog(self._run_dir.log(self.name), self._settings.log_max_bytes),
                environ=self._environ,
                only=self.spec.environment,
                cage=cage.command() if cage else (),
                inherited=inherited,
            )

    async def watch(self) -> None:
        """Keep it running until it is stopped; to be called once it was ready."""
        while True:
            assert self._child is not None
            code = await self._until_ended(self._child)
            await self._child.finish()
            hang = f" ({self._hang})" if self._hang else ""
            self._last_exit = describe_exit(code) + hang
            with contextlib.suppress(OSError):  # the next start says what is wrong with it
                self._forget_run_file()
            if self._stopping:
                self._set(ProcessState.STOPPED, None)
                return
            if not self._restart_asked:
                await self._pause_after_death(code)
            if self._stopping:
                self._set(ProcessState.STOPPED, None)
                return
            self._restart_asked = False
            self._restarts += 1
            try:
                await self.start()
            except StackError as error:
                logger.warning("restart failed process=%s %s", self.name, error)
                await self._abandon()
            else:
                self._settled.set()

    async def _until_ended(self, child: Child) -> int:
        """Return its exit status once it has ended; a hung one is killed."""
        self._hang = ""
        async with _cancelled_at_exit(asyncio.create_task(self._kill_hung(child))):
            return await child.wait()

    async def _kill_hung(self, child: Child) -> None:
        hang = await until_hung(child, self._settings, starting=False)
        if self._stopping or self._restart_asked or child.returncode is not None:
            return  # whoever asked for its end sees to it
        self._hang = hang
        logger.error("hung process=%s pid=%s %s", self.name, child.pid, hang)
        self._set(ProcessState.HUNG, f"{hang}; it is replaced")
        child.kill()

    async def restart(self) -> None:
        """Restart it on purpose, on the port it had; returns once it is ready.

        Raises: StackError: it did not come back; says why.
        """
        self._settled.clear()
        self._restart_asked = True
        self._deaths.clear()
        self._wake.set()
        if self._child and self.pid:
            self._set(ProcessState.STOPPING, "restart")
            self._child.terminate()
            await self._kill_late(self._child)
        await self._settled.wait()
        if self.state is not ProcessState.READY:
            raise StackError(f"{self.name}: {self.reason or self.state.value}")

    def begin_stop(self) -> None:
        """Ask it to end and stay down; ``finish_stop`` sees to it."""
        self._stopping = True
        self._wake.set()
        self._settled.set()
        self._set(ProcessState.STOPPING, None)
        if self._child and self.pid:
            self._child.terminate()

    async def finish_stop(self, deadline: float) -> None:
        """Wait until it has ended; what lives at the deadline (event loop time) is killed."""
        child = self._child
        if child is not None:
            left_s = max(0.0, deadline - asyncio.get_running_loop().time())
            try:
                await asyncio.wait_for(child.wait(), left_s)
            except TimeoutError:
                logger.warning("killed after the stop deadline process=%s", self.name)
            await child.finish()
            if child.returncode is not None:
                self._last_exit = describe_exit(child.returncode)
        with contextlib.suppress(OSError):  # nothing is left that needs it
            self._forget_run_file()
        self._set(ProcessState.STOPPED, None)

    async def _kill_late(self, child: Child) -> None:
        try:
            await asyncio.wait_for(child.wait(), self._settings.stop_timeout_s)
        except TimeoutError:
            child.kill()

    async def _abandon(self) -> None:
        """End a child that did not become ready in time; one that has ended stays as it is."""
        if self._child and self._child.returncode is None:
            self._child.terminate()
            await self._kill_late(self._child)

    async def _pause_after_death(self, code: int) -> None:
        """Record a death nobody asked for and wait: a moment, or until a person restarts it."""
        if self._full_disk():
            return  # no fault of its own: the start waits for room
        now = time.monotonic()
        self._deaths.append(now)
        is_flapping = (
            len(self._deaths) == FLAPPING_DEATHS and now - self._deaths[0] <= FLAPPING_WINDOW_S
        )
        if is_flapping or code == EXIT_CONFIG:
            state = ProcessState.FLAPPING if is_flapping else ProcessState.FAILED
            self._set(state, self._why_down(is_flapping))
            logger.error("stays down process=%s state=%s", self.name, state)
            self._settled.set()
            await self._until_woken(None)
            return
        died = f"{self._last_exit}: {self._last_error()}"
        self._set(ProcessState.FAILED, f"replaced: {self._hang}" if self._hang else died)
        logger.warning("died process=%s %s", self.name, self.reason)
        recent = sum(now - death <= FLAPPING_WINDOW_S for death in self._deaths)
        await self._until_woken(min(_BACKOFF_CAP_S, _BACKOFF_S * 2 ** (recent - 1)))

    async def _until_woken(self, timeout_s: float | None) -> None:
        """Pause until somebody restarts or stops it, at most for some time."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout_s)

    def _full_disk(self) -> DiskFullError | None:
        """Return the error of a disk without room for a start; None when there is room."""
        try:
            require_room(self._run_dir.root, MIN_FREE_BYTES)
        except DiskFullError as error:
            return error
        return None

    def _why_down(self, is_flapping: bool) -> str:
        assert self._child is not None
        head = (
            f"died {FLAPPING_DEATHS} times within {FLAPPING_WINDOW_S:.0f} s"
            if is_flapping
            else "its configuration is wrong"
        )
        return "\n".join(
            (f"{head}, last with {self._last_exit}; its last lines:", *self._child.tail)
        )

    async def _wait_ready(self, child: Child, instance: str) -> None:
        deadline = time.monotonic() + self._settings.start_timeout_s
        hang = asyncio.create_task(until_hung(child, self._settings, starting=True))
        async with (
            _cancelled_at_exit(hang),
            httpx.AsyncClient(timeout=_HEALTH_TIMEOUT_S, trust_env=False) as http,
        ):
            while True:
                if child.returncode is not None:
                    code = await child.wait()
                    self._last_exit = describe_exit(code)
                    raise StackError(f"{self.name}: {self._last_error()} ({self._last_exit})")
                if await self._is_ready(child, http, instance):
                    return
                if hang.done():
                    child.kill()
                    raise StackError(
                        f"{self.name}: hung while it started: {hang.result()} ({self.reason}); "
                        f"see {self._run_dir.log(self.name)}"
                    )
                if self._full_disk():  # it waits for room itself: not a slow start
                    deadline = time.monotonic() + self._settings.start_timeout_s
                if time.monotonic() > deadline:
                    raise StackError(
                        f"{self.name}: not ready after {self._settings.start_timeout_s:.0f} s "
                        f"({self.reason}); see {self._run_dir.log(self.name)}"
                    )
                await asyncio.sleep(_POLL_S)

    async def _is_ready(self, child: Child, http: httpx.AsyncClient, instance: str) -> bool:
        """Look for the run file of this very start, and ask /health who answers there."""
        file = self._run_dir.run_file(self.name)
        if child.ready and not file.exists():
            with contextlib.suppress(OSError):  # a full disk: tried again
                write_private(file, child.ready.model_dump_json())
        try:
            role = RoleRunFile.read(self._run_dir.run_file(self.name))
        except FileNotFoundError:
            self._read_stage(child)
            return False
        if role.instance != instance:
            return False
        try:
            answer = await http.get(f"{role.url}/health")
        except httpx.HTTPError:
            return False
        if answer.is_error or answer.headers.get(INSTANCE_HEADER) != instance:
            return False
        self.url, self._port = role.url, role.port
        return True

    def _read_stage(self, child: Child) -> None:
        """Say what it is doing; on a full disk it cannot write that down."""
        if full := self._full_disk():
            self._set(ProcessState.STARTING, f"waiting: {full}")
            return
        try:
            stage = child.stage or stage_file(self._run_dir.run_file(self.name)).read_text("utf-8")
        except FileNotFoundError:
            return
        if stage != self.reason:
            self._set(ProcessState.STARTING, stage)

    def _notices(self) -> str | None:
        """Return what a person should know of it, such as data that was damaged; a line each."""
        if self._child and self._child.notice:
            return self._child.notice
        try:
            file = notice_file(self._run_dir.run_file(self.name))
            return file.read_text(encoding="utf-8")
        except OSError:
            return None

    def _last_error(self) -> str:
        """Return the last line of the child's output that tells of an error, else the last one."""
        lines = [line for line in (self._child.tail if self._child else ()) if line.strip()]
        errors = [line for line in lines if _ERROR_LINE.search(line)]
        last = (errors or lines or ["ended without a word"])[-1]
        own = f"{self.name}: "
        last = last.strip().removeprefix("error: ").removeprefix(own)
        hint = '; services.agent.cage = "off" goes without a cage'
        return last + hint if last.startswith("bwrap: ") else last

    def _forget_run_file(self) -> None:
        """Remove what a start left. Raises: OSError: such as a directory of that name."""
        file = self._run_dir.run_file(self.name)
        file.unlink(missing_ok=True)
        stage_file(file).unlink(missing_ok=True)
        notice_file(file).unlink(missing_ok=True)

    def _set(self, state: ProcessState, reason: str | None) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            self._on_change(self)


@contextlib.asynccontextmanager
async def _cancelled_at_exit(task: asyncio.Task[Any]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def describe_exit(code: int) -> str:
    """Return an exit status in words: ``exit 3``, ``SIGKILL``."""
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
