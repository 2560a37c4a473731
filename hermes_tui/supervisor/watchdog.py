"""Ends what a killed supervisor leaves: a small process of its own beside each stack.

The roles end by themselves once their supervisor has gone. One that is stopped or hangs can't, and
neither do commands that the agent left behind. The watchdog waits for the end of its standard
input, gives everything some time, and kills what still bears the stack's mark.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)

STACK_MARK = "HERMES_TUI_STACK"
"""Environment variable of everything that a stack starts: a token of the supervisor's, ``:``, and
the run directory."""

GRACE_S = 9.0
"""Time to end by themselves: roles take up to 8 s, and all must be gone within 15."""

_POLL_S = 0.2


@contextlib.contextmanager
def watchdog(mark: str) -> Iterator[None]:
    """Watch over what bears a mark until the block ends; this process's death starts the hunt."""
    dropped = ("PYTHONPATH", STACK_MARK)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, "--mark", mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name not in dropped},
        start_new_session=True,  # Ctrl+C in the supervisor's terminal is not meant for it
    )
    assert process.stdin
    try:
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_orphans(run_dir: Path) -> None:
    """End what an earlier supervisor of this run directory left; the caller holds its lock."""
    end_marked(lambda mark: mark.partition(":")[2] == str(run_dir))


def kill_orphans(run_dir: Path) -> None:
    """Kill at once what a supervisor of this run directory left, which was killed itself."""
    while processes := _marked(lambda mark: mark.partition(":")[2] == str(run_dir)):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=_POLL_S)


def end_marked(wanted: Callable[[str], bool]) -> None:
    """Wait until no process bears a wanted mark; those left after ``GRACE_S`` are killed."""
    deadline = time.monotonic() + GRACE_S
    told = False
    while processes := _marked(wanted):
        if not told:
            told = True
            pids = [process.pid for process in processes]
            logger.warning("waiting for what a killed supervisor left pids=%s", pids)
        if time.monotonic() > deadline:
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        time.sleep(_POLL_S)


def _marked(wanted: Callable[[str], bool]) -> list[psutil.Process]:
    """Return the processes with a wanted mark, but this one and those that it runs under."""
    own = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = process.environ().get(STACK_MARK, "")
            if process.pid not in own and wanted(mark):
                found.append(process)
    return found


def main() -> None:
    """Wait for the end of standard input, then for that of everything with the mark."""
    parser = argparse.ArgumentParser(description="ends what a killed supervisor leaves")
    parser.add_argument("--mark", required=True)
    mark = parser.parse_args().mark
    while os.read(0, 4096):
        pass
    end_marked(lambda found: found == mark)


if __name__ == "__main__":
    main()
