"""One supervisor per run directory: a lock that dies with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator

from hermes_tui.config.paths import RunDir
from hermes_tui.core.errors import AlreadyRunningError
from hermes_tui_common.disk import wait_for_room


@contextlib.contextmanager
def hold_lock(run_dir: RunDir, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the run directory's lock; on a full disk, from when there is room to start.

    Args:
        run_dir: the run directory.
        say: gets the text of what is waited for.

    Raises: AlreadyRunningError: another process holds it; carries its pid.
    """
    descriptor = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _try_lock(descriptor):
            raise AlreadyRunningError(str(run_dir.root), _read_pid(descriptor))
        os.ftruncate(descriptor, 0)
        wait_for_room(run_dir.root, say)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_owner(run_dir: RunDir) -> int | None:
    """Return the pid of the supervisor that serves a run directory, or None when none does."""
    try:
        descriptor = os.open(run_dir.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _try_lock(descriptor) else _read_pid(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdigit() else None
