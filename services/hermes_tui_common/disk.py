"""Room on the disk: asked for before something large is written, waited for before a start."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from hermes_tui_common.errors import ApiError

CODE = "disk_full"
"""``code`` of the 507 that a full disk is answered with."""

PHRASE = "the disk is full"
"""How every text about it begins."""

MIN_FREE_BYTES = 4_000_000
"""What a process writes while it starts: run files, and the logs of its databases."""

RESERVE_BYTES = 16_000_000
"""Left free by a checkpoint, so that what is said goes on being recorded."""

RETRY_S = 10.0
"""When a client may try again."""

_POLL_S = 1.0


class DiskFullError(ApiError):
    """There is no room for what was to be written: 507, until somebody makes room.

    Args:
        path: where.
        needed_bytes: how much is needed; 0 when it is not known.
        free_bytes: how much there is; None asks the system.
    """

    def __init__(self, path: Path, needed_bytes: int = 0, *, free_bytes: int | None = None) -> None:
        free = free_of(path) if free_bytes is None else free_bytes
        needed = f", {_mb(needed_bytes)} needed" if needed_bytes else ""
        text = f"{PHRASE}: {_mb(free)} free{needed} in {path}"
        super().__init__(507, text, code=CODE, retry_after_s=RETRY_S)
        self.path = path
        self.needed_bytes = needed_bytes
        self.free_bytes = free

    @classmethod
    def of(cls, error: Exception, path: Path, needed_bytes: int) -> DiskFullError | None:
        """Return the error of a write that failed for want of room; None for any other failure."""
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        # safetensors has a class of its own, which quotes the system's error.
        if is_full or f"os error {errno.ENOSPC})" in str(error):
            return cls(path, needed_bytes)
        return None


def free_of(path: Path) -> int:
    """Return the bytes that may be written where a path is or would be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def require_room(path: Path, needed_bytes: int) -> None:
    """Let a write begin only if there is room for it.

    Raises: DiskFullError.
    """
    free = free_of(path)
    if free < needed_bytes:
        raise DiskFullError(path, needed_bytes, free_bytes=free)


def wait_for_room(
    path: Path, say: Callable[[str], None], *, needed_bytes: int = MIN_FREE_BYTES
) -> None:
    """Return once there is room; until then the process waits, and says so.

    Args:
        path: where the process will write.
        say: gets the text whenever it changes.
        needed_bytes: how much.
    """
    said = ""
    while True:
        try:
            require_room(path, needed_bytes)
        except DiskFullError as error:
            if str(error) != said:
                said = str(error)
                say(f"waiting: {said}")
            time.sleep(_POLL_S)
        else:
            return


def _mb(num_bytes: int) -> str:
    return f"{num_bytes // 1_000_000} MB"
