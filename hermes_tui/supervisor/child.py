"""One child process: its own session, a lifeline, a rotated log, and an end that leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import psutil
from pydantic import ValidationError

from hermes_tui.supervisor.logs import RotatingLog
from hermes_tui_common.heartbeat import Beat

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


MARK = "HERMES_TUI_CHILD"
"""Environment variable that everything a child starts inherits: what outlives its parents, in a
session of its own, is still known by it."""


def child_environment(environ: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the environment of a child: the user's, without our settings and keys."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _ENV_DROPPED and not name.startswith(_ENV_DROPPED_PREFIXES)
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
    ) -> None:
        self.pid = process.pid
        self.tail: deque[str] = deque(maxlen=NUM_TAIL_LINES)
        """Its last lines of output."""
        self.beat = Beat()
        """Its last sign of life."""
        self.num_beats = 0
        """How many there have been."""
        self._process = process
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
        config_file: Path,
        *,
        log: RotatingLog,
        environ: Mapping[str, str],
    ) -> Child:
        """Start ``python -P COMMAND --config FILE`` in a session of its own.

        Args:
            command: what to run, such as ``("-m", MODULE)``.
            config_file: its resolved configuration.
            log: takes what it writes; closed with the child.
            environ: what the child's environment is made from.
        """
        mark = secrets.token_hex(8)
        theirs, lifeline = socket.socketpair()
        lifeline.setblocking(False)
        output, output_write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                *command,
                "--config",
                str(config_file),
                stdin=theirs.fileno(),
                stdout=output_write,
                stderr=output_write,
                env=child_environment(environ, mark),
                start_new_session=True,
            )
        except BaseException:
            log.close()
            lifeline.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(output_write)
        return cls(process, mark, lifeline, output, log)

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it lives."""
        return self._process.returncode

    async def wait(self) -> int:
        """Return the exit status once it has ended and its last output is in the log."""
        code = await self._process.wait()
        await asyncio.wait({self._pump}, timeout=_DRAIN_S)
        return code

    def terminate(self) -> None:
        """Ask it and what it started to end: SIGTERM to the group, and the lifeline closes."""
        self._known |= _descendants(self.pid)
        self._signal(signal.SIGTERM)
        self._close_lifeline()

    def kill(self) -> None:
        """End it and everything that it started, without asking."""
        self._known |= _descendants(self.pid)
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
                    or os.getsid(process.pid) == self.pid
                    or process.environ().get(MARK) == self._mark
                ):
                    members.append(process.pid)
        return members

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _close_lifeline(self) -> None:
        if self._lifeline is not None:
            asyncio.get_running_loop().remove_reader(self._lifeline)
            self._lifeline.close()
            self._lifeline = None

    def _read_beats(self, lifeline: socket.socket) -> None:
        try:
            data = lifeline.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # it has ended, or closed its standard input
            asyncio.get_running_loop().remove_reader(lifeline)
            return
        *lines, self._unread = (self._unread + data)[-_READ_BYTES:].split(b"\n")
        for line in lines:
            with contextlib.suppress(ValidationError):  # half a line, sent into a full buffer
                self.beat = Beat.model_validate_json(line)
                self.num_beats += 1

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


def _descendants(pid: int) -> set[int]:
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.Error:
        return set()
