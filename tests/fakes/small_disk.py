"""A small disk of a test's own, to fill up: a tmpfs. Mounting one takes root."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """One disk."""

    path: Path
    """Where it is mounted; the folder exists."""
    num_bytes: int = 16_000_000
    """Its size."""

    def mount(self) -> None:
        """Mount it. Raises: CalledProcessError: that is not permitted here."""
        size = f"size={self.num_bytes}"
        command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.path)]
        subprocess.run(command, capture_output=True, text=True, check=True)

    def unmount(self) -> None:
        """Take it away, whoever uses it."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    @property
    def filler(self) -> Path:
        """The file that fills it."""
        return self.path / "filler"

    def fill(self, *, but_bytes: int = 0) -> None:
        """Leave nothing free, or a little."""
        with self.filler.open("ab", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * _BLOCK_BYTES)
            file.truncate(file.tell() - but_bytes)

    def make_room(self) -> None:
        """Give back what ``fill`` took."""
        self.filler.unlink()
