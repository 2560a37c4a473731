"""Errors of the application itself, and the exit code that each kind of error means."""

from __future__ import annotations

import signal

from hermes_tui_common.errors import ConfigError, HermesTuiError, StackError, UnreachableError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_NOT_STARTED = 3
EXIT_ALREADY_RUNNING = 4
EXIT_HUNG_UP = 129
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

EXIT_BY_SIGNAL = {
    signal.SIGHUP: EXIT_HUNG_UP,
    signal.SIGINT: EXIT_INTERRUPTED,
    signal.SIGTERM: EXIT_TERMINATED,
}
"""Exit codes of a program that a signal ended: 128 and the signal's number, as shells have it."""


class AlreadyRunningError(StackError):
    """Another supervisor owns the run directory.

    Args:
        run_dir: the run directory.
        pid: the other supervisor's process id, or None when it is not known.
        service: name of the agent service that it runs, when it was started as one.
    """

    def __init__(self, run_dir: str, pid: int | None, service: str = "") -> None:
        owner = f"pid {pid}" if pid else "another process"
        way_out = (
            f"end it with `hermes-tui agent stop --service {service}`, or replace it with --force"
            if service
            else "use it with `hermes-tui attach`, end it with `hermes-tui stop`, or set run.dir "
            "to another directory"
        )
        super().__init__(f"{run_dir} is already served by {owner}; {way_out}")
        self.pid = pid


class NotRunningError(UnreachableError):
    """No supervisor serves the run directory."""

    def __init__(self, run_dir: str) -> None:
        super().__init__(
            f"nothing runs in {run_dir}; start it with `hermes-tui` or `hermes-tui --serve`"
        )


class StackStoppedError(UnreachableError):
    """Somebody stopped the stack while a view was attached to it."""

    def __init__(self) -> None:
        super().__init__("the stack was stopped; `hermes-tui` starts it again")


def exit_code(error: HermesTuiError) -> int:
    """Return the exit code that tells a script what kind of error ended the program."""
    if isinstance(error, ConfigError):
        return EXIT_CONFIG
    if isinstance(error, AlreadyRunningError):
        return EXIT_ALREADY_RUNNING
    if isinstance(error, StackError):
        return EXIT_NOT_STARTED
    return EXIT_FAILED
