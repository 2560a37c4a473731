"""``logs``: of one process, or of all of them by time."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_tui.cli.overrides import Invocation, OverridesCommand
from hermes_tui_common.errors import ConfigError

if TYPE_CHECKING:
    from hermes_tui.config.paths import RunDir
    from hermes_tui.supervisor.log_merge import LogEntry

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DEFAULT_LINES = 200
_SUPERVISOR = "supervisor"
_NAME_CELLS = 14
"""The longest name, ``agent-gateway``, and a space."""


def _seconds(_: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return a duration such as ``10m``, or a time, as seconds since the epoch."""
    if value is None:
        return None
    if match := _DURATION.fullmatch(value):
        return time.time() - float(match[1]) * _SECONDS[match[2]]
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        text = f"{value!r} is neither a duration, such as 10m or 2h, nor a time"
        raise click.BadParameter(text, param=param) from None


@click.command(cls=OverridesCommand)
@click.argument("name", required=False)
@click.option("-a", "--all", "every", is_flag=True, help="All processes, in the order of time.")
@click.option(
    "--since",
    metavar="WHEN",
    callback=_seconds,
    help="From then on: 30s, 10m, 2h, 1d ago, or 2026-01-31T12:00.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with each new line.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    help=f"Lines to begin with.  [default: {_DEFAULT_LINES}; all of them with --since]",
)
@click.pass_obj
def logs(
    invocation: Invocation,
    name: str | None,
    every: bool,
    since: float | None,
    follow: bool,
    lines: int | None,
) -> None:
    """Print the log of one process, or of all.

    NAME is the process, such as worker-0; the supervisor when not given. Works without a running
    stack, too.
    """
    if name and every:
        raise click.UsageError(f"Name a process ({name}) or say --all, not both.")
    run_dir = invocation.run_dir()
    if every:
        names = sorted(file.stem for file in run_dir.logs.glob("*.log"))
        print_logs(run_dir, names or [_SUPERVISOR], follow=follow, lines=lines, since=since)
    else:
        print_logs(run_dir, [name or _SUPERVISOR], follow=follow, lines=lines, since=since)


def print_logs(
    run_dir: RunDir,
    names: list[str],
    *,
    follow: bool,
    lines: int | None = None,
    since: float | None = None,
) -> None:
    """Print the end of logs, and what is added to them when followed.

    Args:
        run_dir: where they are.
        names: their processes; with more than one, each line begins with the name.
        follow: whether to go on with each new line.
        lines: how many to begin with; None is the default.
        since: only what was written from then on, seconds since the epoch.

    Raises: ConfigError: there is no such log.
    """
    paths = {name: run_dir.log(name) for name in names}
    for name, path in paths.items():
        if not path.exists():
            known = ", ".join(sorted(file.stem for file in run_dir.logs.glob("*.log")))
            hint = f"there are: {known}" if known else "start a stack first with `hermes-tui`"
            raise ConfigError(f"there is no log of {name!r} in {run_dir.logs}; {hint}")
    if follow:
        _follow(paths, lines, since or 0.0)
        return
    from hermes_tui.supervisor.log_merge import merged

    texts = _texts(merged(paths, since or 0.0), len(paths) > 1)
    keep = _DEFAULT_LINES if lines is None and since is None else lines
    for text in texts if keep is None else deque(texts, maxlen=keep):
        click.echo(text)


def _follow(paths: Mapping[str, Path], lines: int | None, since: float) -> None:
    from hermes_tui.supervisor.log_merge import log_entries
    from hermes_tui.supervisor.logs import FOLLOW_POLL_S, LogFollower

    count = _DEFAULT_LINES if lines is None else lines
    followers = {name: LogFollower(path, count) for name, path in paths.items()}
    try:
        while True:
            news = [
                entry
                for name, follower in followers.items()
                for entry in log_entries(name, follower.read())
                if not entry.at or entry.at >= since
            ]
            news.sort(key=lambda entry: entry.at)
            for text in _texts(news, len(paths) > 1):
                click.echo(text)
            time.sleep(FOLLOW_POLL_S)
    except KeyboardInterrupt:
        return
    finally:
        for follower in followers.values():
            follower.close()


def _texts(entries: Iterable[LogEntry], named: bool) -> Iterable[str]:
    from hermes_tui.core.sanitize import clean

    for entry in entries:
        head = f"{entry.name:<{_NAME_CELLS}}" if named else ""
        for line in entry.lines:
            yield head + clean(line)
