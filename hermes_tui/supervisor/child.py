"""One child process: its own session, a lifeline, a rotated log, and an end that leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from hermes_tui.supervisor.logs import RotatingLog
from hermes_tui_common.heartbeat import Beat
from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_common.supervisor_link import CONFIG_ON_INPUT, Report

logger = logging.getLogger(__name__)

NUM_TAIL_LINES = 20
"""Lines that are kept to say why a process ended."""

_READ_BYTES = 65_536
_DRAIN_S = 0.5
"""How long a dead child's last output is waited for; a grandchild may hold the pipe open."""
_POLL_S = 0.02

_ENV_DROPPED = frozenset({"PYTHONPATH", "PYTHONHOME", "ADMIN_KEY", "SESSION_API_KEY"})
"""Never inherited: Hermes would import our packages for its own, or it is a key."""
_ENV_DROPPED_PREFIXES = ("HERMES_TUI__", "HERMES_UPSTREAM_")
"""Settings, keys among them: a child reads its resolved configuration instead."""


_CREDENTIALS = struct.Struct("3i")
"""Linux' ``struct ucred``: pid, uid, gid."""

_MESSAGE: TypeAdapter[Beat | Report] = TypeAdapter(Beat | Report)

MARK = "HERMES_TUI_CHILD"
"""Environment variable that everything a child starts inherits: what outlives its parents, in a
session of its own, is still known by it."""


def child_environment(
    environ: Mapping[str, str], mark: str, only: Collection[str] | None = None
) -> dict[str, str]:
    """Return the environment of a child: the user's, without our settings and keys.

    Args:
        environ: what it is made from.
        mark: what the child is known by.
        only: names that it may inherit, with ``LC_*``; None: all others too.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _ENV_DROPPED
        and not name.startswith(_ENV_DROPPED_PREFIXES)
        and (only is None or name in only or name.startswith("LC_"))
    }
    # Spinning OpenMP threads of two torch processes starve each other on a small machine.
    kept.setdefault("OMP_WAIT_POLICY", "passive")
    kept["PYTHONUNBUFFERED"] = "1"
    kept[MARK] = mark
    return kept


class Child:
    """A running child process. Make one with ``spawn``; always ``end`` it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        mark: str,
        lifeline: socket.socket,
        output: int,
        log: RotatingLog,
        *,
        caged: bool = False,
    ) -> None:
        self.pid = process.pid
        """Its process id; that of its cage, as long as it has not said its own."""
        self.tail: deque[str] = deque(maxlen=NUM_TAIL_LINES)
        """Its last lines of output."""
        self.beat = Beat()
        """Its last sign of life."""
        self.num_beats = 0
        """How many there have been."""
        self.stage = ""
        """What it last said that it is doing; empty where it writes that to a file."""
        self.notice: str | None = None
        """What it said that a person should know."""
        self.ready: RoleRunFile | None = None
        """Where it answers, with its pid as seen from here; None where it writes a run file."""
        self._process = process
        self._group = process.pid
        self._caged = caged
        self._mark = mark
        self._lifeline: socket.socket | None = lifeline
        self._unread = b""
        self._log = log
        self._log_failed = False
        self._known: set[int] = set()
        """Descendants that were seen; some may have cleared their environment."""
        asyncio.get_running_loop().add_reader(lifeline, self._read_beats, lifeline)
        self._pump = asyncio.create_task(self._read_output(output), name=f"log-{process.pid}")

    @classmethod
    async def spawn(
        cls,
        command: tuple[str, ...],
        config: Path | str,
        *,
        log: RotatingLog,
        environ: Mapping[str, str],
        only: Collection[str] | None = None,
        cage: tuple[str, ...] = (),
        inherited: tuple[int, ...] = (),
    ) -> Child:
        """Start ``python -P COMMAND --config FILE`` in a session of its own.

        Args:
            command: what to run, such as ``("-m", MODULE)``.
            config: the file of its resolved configuration, or that configuration as one line.
            log: takes what it writes; closed with the child.
            environ: what the child's environment is made from.
            only: names of it that the child may inherit; None: all that are not ours.
            cage: the command that it is run under.
            inherited: descriptors that it gets, under the same numbers.
        """
        mark = secrets.token_hex(8)
        theirs, lifeline = socket.socketpair()
        if sys.platform == "linux":
            lifeline.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        output, output_write = os.pipe()
        file = config if isinstance(config, Path) else CONFIG_ON_INPUT
        try:
            process = await asyncio.create_subprocess_exec(
                *cage,
                sys.executable,
                "-P",
                *command,
                "--config",
                str(file),
                stdin=theirs.fileno(),
                stdout=output_write,
                stderr=output_write,
                env=child_environment(environ, mark, only),
                start_new_session=True,
                pass_fds=inherited,
            )
            if isinstance(config, str):
                with contextlib.suppress(OSError):  # it has ended: its output says why
                    lifeline.sendall(f"{config}\n".encode())
        except BaseException:
            log.close()
            lifeline.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(output_write)
        lifeline.setblocking(False)
        return cls(process, mark, lifeline, output, log, caged=bool(cage))

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it lives."""
        return self._process.returncode

    async def wait(self) -> int:
        """Return the exit status once it has ended and its last output is in the log."""
        code = await self._process.wait()
        await asyncio.wait({self._pump}, timeout=_DRAIN_S)
        # A cage ends with what a shell would say of a signal.
        return 128 - code if self._caged and code > 128 else code

    def terminate(self) -> None:
        """Ask it and what it started to end: SIGTERM to the group, and the lifeline closes.

        A cage gets no signal: it would end at once, with everything in it. Its role ends by the
        lifeline.
        """
        self._known |= _descendants(self._group)
        if not self._caged:
            self._signal(signal.SIGTERM)
        self._close_lifeline()

    def kill(self) -> None:
        """End it and everything that it started, without asking."""
        self._known |= _descendants(self._group)
        self._signal(signal.SIGKILL)
        for pid in self._members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def end(self, timeout_s: float) -> None:
        """Ask it to end, then kill what is left; returns when nothing of it lives."""
        self.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout_s)
        await self.finish()

    async def finish(self) -> None:
        """Kill what is left of it, and close its pipes and its log."""
        self.kill()
        await self._process.wait()
        await asyncio.wait({self._pump}, timeout=_DRAIN_S)
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self._close_lifeline()
        self._log.close()
        if left := await self._survivors():
            logger.error("processes survived SIGKILL pids=%s", left)

    async def _survivors(self) -> list[int]:
        """Return what still lives a moment after SIGKILL, which takes effect a little later."""
        deadline = asyncio.get_running_loop().time() + 2.0
        while left := self._members():
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_POLL_S)
        return left

    def _members(self) -> list[int]:
        """Return what lives of its session, of its known descendants, and what bears its mark."""
        members = []
        for process in psutil.process_iter(["status"]):
            if process.info["status"] == psutil.STATUS_ZOMBIE:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
                if (
                    process.pid in self._known
                    or os.getsid(process.pid) == self._group
                    or process.environ().get(MARK) == self._mark
                ):
                    members.append(process.pid)
        return members

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, number)

    def _close_lifeline(self) -> None:
        if self._lifeline is not None:
            asyncio.get_running_loop().remove_reader(self._lifeline)
            self._lifeline.close()
            self._lifeline = None

    def _read_beats(self, lifeline: socket.socket) -> None:
        try:
            data, pid = _receive(lifeline)
        except BlockingIOError:
            return
        except OSError:
            data, pid = b"", None
        if not data:  # it has ended, or closed its standard input
            asyncio.get_running_loop().remove_reader(lifeline)
            return
        *lines, self._unread = (self._unread + data)[-_READ_BYTES:].split(b"\n")
        for line in lines:
            with contextlib.suppress(ValidationError):  # half a line, sent into a full buffer
                self._take(_MESSAGE.validate_json(line), pid)

    def _take(self, message: Beat | Report, pid: int | None) -> None:
        if isinstance(message, Beat):
            self.beat = message
            self.num_beats += 1
        elif message.ready:
            self.pid = pid or self.pid
            self.ready = message.ready.model_copy(update={"pid": self.pid})
        elif message.report == "notice":
            self.notice = message.text
        else:
            self.stage = message.text

    async def _read_output(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        line = b""
        try:
            while data := await reader.read(_READ_BYTES):
                self._record(data)
                *complete, line = (line + data).split(b"\n")
                line = line[-_READ_BYTES:]
                self.tail.extend(part.decode("utf-8", "replace") for part in complete)
        finally:
            if line:
                self.tail.append(line.decode("utf-8", "replace"))
            transport.close()

    def _record(self, data: bytes) -> None:
        """Write to the log; a full disk must not stop the child, whose pipe would fill up."""
        try:
            self._log.write(data)
        except OSError as error:
            if not self._log_failed:
                logger.error("log lost pid=%s path=%s %s", self.pid, self._log.path, error)
            self._log_failed = True
        else:
            self._log_failed = False


def _receive(link: socket.socket) -> tuple[bytes, int | None]:
    """Return what was sent, and the sender's process id as it is here, where Linux tells it.

    In a cage a process knows itself by another one.
    """
    if sys.platform != "linux":
        return link.recv(_READ_BYTES), None
    data, notes, *_ = link.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
    pids = [
        _CREDENTIALS.unpack(note)[0]
        for level, kind, note in notes
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
    ]
    return data, pids[0] if pids else None


def _descendants(pid: int) -> set[int]:
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.Error:
        return set()
