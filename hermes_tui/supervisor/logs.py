"""Log files: writing one that rotates, reading its end, following it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterable
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from hermes_tui_common.auth import RedactingFilter

NUM_OLD_LOGS = 3
"""How many rotated files of a log are kept: ``NAME.log.1`` is the youngest."""

_BLOCK_BYTES = 65_536
FOLLOW_POLL_S = 0.2
"""How often a followed file is looked at; a person does not notice the difference to less."""


class RotatingLog:
    """An append-only log file that starts anew at a size, keeping the last few.

    It takes bytes as a process wrote them, so nothing is lost to decoding.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._file: FileIO | None = None
        self._num_lost = 0
        self._open()

    def write(self, data: bytes) -> None:
        """Append; rotates at the end of a line once the file has its size.

        Raises: OSError: such as a full disk. What could not be written is lost; the next write that
            finds room says how much.
        """
        lost = f"({self._num_lost} bytes are missing here)\n".encode() if self._num_lost else b""
        try:
            self._append(lost + data)
        except OSError:
            self._num_lost += len(data)
            raise
        self._num_lost = 0

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def _open(self) -> FileIO:
        # Without a buffer: one that finds no room would fail again in close().
        self._file = self._file or self.path.open("ab", buffering=0)
        return self._file

    def _append(self, data: bytes) -> None:
        file = self._open()
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        if file.tell() >= self._max_bytes and data.endswith(b"\n"):
            self._rotate(file)

    def _rotate(self, file: FileIO) -> None:
        file.close()
        self._file = None
        for number in range(NUM_OLD_LOGS, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            newer = older.with_suffix(f".{number - 1}") if number > 1 else self.path
            if newer.exists():
                newer.replace(older)
        with contextlib.suppress(OSError):  # the next write tries again
            self._open()


class RotatingLogHandler(logging.Handler):
    """Writes log records to a RotatingLog."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__()
        self._log = RotatingLog(path, max_bytes)

    def emit(self, record: logging.LogRecord) -> None:
        """Append one record as one line."""
        try:
            self._log.write(f"{self.format(record)}\n".encode(errors="replace"))
        except OSError:
            pass  # a full disk: the next line that finds room says how much is missing
        except ValueError:
            self.handleError(record)

    def close(self) -> None:
        """Close the file."""
        self._log.close()
        super().close()


def configure_supervisor_logging(
    path: Path, *, level: str, max_bytes: int, secrets: Iterable[str]
) -> None:
    """Log to standard error and to a rotated file, one line a record, with every key masked."""
    handlers: list[logging.Handler] = [
        logging.StreamHandler(sys.stderr),
        RotatingLogHandler(path, max_bytes),
    ]
    masks = RedactingFilter(tuple(secrets))
    for handler in handlers:
        handler.setFormatter(
            logging.Formatter(
                "%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"
            )
        )
        handler.addFilter(masks)
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(level)
    for chatty in ("httpx", "uvicorn.error"):
        logging.getLogger(chatty).setLevel("WARNING")


def tail_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log, reaching into its rotated files; [] when there is none."""
    lines: list[str] = []
    rotated = (path.with_name(f"{path.name}.{n}") for n in range(1, NUM_OLD_LOGS + 1))
    for file in (path, *rotated):
        if len(lines) >= count or not file.exists():
            break
        lines = _last_lines(file, count - len(lines)) + lines
    return lines


def _last_lines(path: Path, count: int) -> list[str]:
    data = b""
    with path.open("rb") as file:
        position = file.seek(0, 2)
        while position > 0 and data.count(b"\n") <= count:
            size = min(_BLOCK_BYTES, position)
            position -= size
            file.seek(position)
            data = file.read(size) + data
    lines = data.decode("utf-8", "replace").removesuffix("\n").split("\n")
    return lines[-count:] if data and count > 0 else []


class LogFollower:
    """Reads what is appended to a log after its last lines, across rotations."""

    def __init__(self, path: Path, tail: int) -> None:
        self._path = path
        self._lines = tail_lines(path, tail)
        self._file: BinaryIO | None = None
        self._pending = b""
        if path.exists():
            self._file = path.open("rb")
            self._file.seek(0, 2)

    def read(self) -> list[str]:
        """Return the lines that are new since the last call; the first call returns the tail."""
        lines, self._lines = self._lines, []
        while True:
            data = self._file.read(_BLOCK_BYTES) if self._file else b""
            *complete, self._pending = (self._pending + data).split(b"\n")
            lines += [line.decode("utf-8", "replace") for line in complete]
            if not data and not self._reopen():
                return lines

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def _reopen(self) -> bool:
        """Open the file that took the place of the one read so far, if there is one."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        if self._file and os.path.samestat(os.fstat(self._file.fileno()), there):
            return False
        self.close()
        self._file = self._path.open("rb")
        return True


async def follow_lines(path: Path, tail: int) -> AsyncIterator[str]:
    """Yield the last lines of a log, then each new one, until cancelled."""
    follower = LogFollower(path, tail)
    try:
        while True:
            for line in follower.read():
                yield line
            await asyncio.sleep(FOLLOW_POLL_S)
    finally:
        follower.close()
