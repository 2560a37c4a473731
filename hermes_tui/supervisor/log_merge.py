"""Several logs as one, in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hermes_tui.supervisor.logs import NUM_OLD_LOGS

_TIME_CHARS = len("2026-01-31T12:00:00+0000")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A line that begins with a time, and those after it that have none, such as a traceback."""

    at: float
    """When it was written, seconds since the epoch; 0.0 for lines before the first time."""
    name: str
    """Process that wrote it."""
    lines: tuple[str, ...]
    """The lines, as they are in the log."""


def log_entries(name: str, lines: Iterable[str]) -> Iterator[LogEntry]:
    """Yield the entries of one process's log, oldest first."""
    at, held = 0.0, list[str]()
    for line in lines:
        time = _time_of(line)
        if time is not None:
            if held:
                yield LogEntry(at=at, name=name, lines=tuple(held))
            at, held = time, []
        held.append(line)
    if held:
        yield LogEntry(at=at, name=name, lines=tuple(held))


def merged(logs: Mapping[str, Path], since: float = 0.0) -> Iterator[LogEntry]:
    """Yield the entries of several logs, rotated files included, in the order of their times.

    Args:
        logs: each process's log, by its name.
        since: only entries from then on, seconds since the epoch.
    """
    found = (log_entries(name, _all_lines(path, since)) for name, path in logs.items())
    for entry in heapq.merge(*found, key=lambda entry: entry.at):
        if entry.at >= since:
            yield entry


def _all_lines(path: Path, since: float) -> Iterator[str]:
    rotated = [path.with_name(f"{path.name}.{n}") for n in range(NUM_OLD_LOGS, 0, -1)]
    for file in (*rotated, path):
        try:
            if file.stat().st_mtime < since:
                continue
            with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                yield from (line.removesuffix("\n") for line in lines)
        except FileNotFoundError:
            continue  # it was rotated meanwhile


def _time_of(line: str) -> float | None:
    """Return the time at the beginning of a line; None when there is none."""
    if line[10:11] != "T" or line[_TIME_CHARS : _TIME_CHARS + 1] != " ":
        return None
    try:
        return datetime.fromisoformat(line[:_TIME_CHARS]).timestamp()
    except ValueError:
        return None
