"""A program in a terminal of its own: what it writes, what it leaves behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from types import TracebackType

import psutil

DEADLINE_S = 60.0

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1bP[^\x1b]*\x1b\\|\x1b\[[0-?]*[ -/]*[@-~]"
)
_MODES = re.compile(r"\x1b\[\?(\d+(?:;\d+)*)([hl])")

LEFT_ON = {"25"}
"""Private modes that are on in a terminal at rest: the cursor is seen."""

WATCHED = {"25", "1000", "1002", "1003", "1004", "1006", "1015", "1016", "1049", "2004"}
"""Cursor, mouse, focus reports, alternate screen, bracketed paste."""


class Terminal:
    """One program in a pseudo terminal. A context manager: the program is killed at the end.

    Args:
        command: the program and its arguments.
        size: columns and rows.
    """

    def __init__(
        self, command: list[str], size: tuple[int, int] = (120, 40), **environ: str
    ) -> None:
        self.master, self.slave = os.openpty()
        columns, rows = size
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.output = ""
        self._rest = b""

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=take_terminal,
            env={**os.environ, "TERM": "xterm-256color", "OMP_WAIT_POLICY": "passive", **environ},
        )

    @classmethod
    def hermes(cls, *words: str, size: tuple[int, int] = (120, 40)) -> Terminal:
        """Start the program itself."""
        return cls([sys.executable, "-P", "-m", "hermes_tui.cli.main", *words], size)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for fd in (self.master, self.slave):
            with contextlib.suppress(OSError):
                os.close(fd)

    @property
    def text(self) -> str:
        """What was written, without escape sequences."""
        return _ESCAPES.sub("", self.output)

    def read(self, timeout_s: float = 0.05) -> None:
        """Take what was written until now."""
        while select.select([self.master], [], [], timeout_s)[0]:
            try:
                chunk = os.read(self.master, 65_536)
            except OSError:
                return
            if not chunk:
                return
            self._rest += chunk
            with contextlib.suppress(UnicodeDecodeError):  # half a character
                self.output, self._rest = self.output + self._rest.decode(), b""
            timeout_s = 0.0

    def until(self, text: str, timeout_s: float = DEADLINE_S) -> None:
        """Wait until a text was written."""
        deadline = time.monotonic() + timeout_s
        while text not in self.text:
            assert time.monotonic() < deadline, f"never came: {text!r} in {self.text[-3000:]}"
            assert self.process.poll() is None or text in self.text, self.text[-3000:]
            self.read()

    def until_written(self, sequence: str, timeout_s: float = DEADLINE_S) -> None:
        """Wait until an escape sequence was written."""
        deadline = time.monotonic() + timeout_s
        while sequence not in self.output:
            assert time.monotonic() < deadline, f"never came: {sequence!r}"
            self.read(0.001)

    def is_stopped(self) -> bool:
        """Return whether the program was stopped, to go on later."""
        self.read(0.001)  # else it waits for room in the terminal
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    def wait(self, timeout_s: float = DEADLINE_S) -> tuple[int, float]:
        """Return the exit code (128 + signal where one killed it) and the seconds it took."""
        started = time.monotonic()
        while self.process.poll() is None:
            assert time.monotonic() - started < timeout_s, f"it did not end: {self.text[-3000:]}"
            self.read(0.01)
        took_s = time.monotonic() - started
        self.read()
        code = self.process.returncode
        return (128 - code if code < 0 else code), took_s

    def modes_left_on(self) -> set[str]:
        """Return the private modes that differ from those of a terminal at rest."""
        on = set(LEFT_ON)
        for numbers, how in _MODES.findall(self.output):
            for number in numbers.split(";"):
                (on.add if how == "h" else on.discard)(number)
        return (on ^ LEFT_ON) & WATCHED

    def is_sane(self) -> bool:
        """Return whether lines are edited and echoed as before."""
        return termios.tcgetattr(self.slave) == self.before

    def companions(self) -> list[int]:
        """Return the pids of the other processes of the program's session, dead parents' too."""
        return [pid for pid in psutil.pids() if pid != self.process.pid and self._is_here(pid)]

    def _is_here(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self.process.pid
        except ProcessLookupError:
            return False  # it ended meanwhile
