"""What a backup holds: ``backup.json``, which is written last and named by nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from hermes_tui_common.errors import HermesTuiError

MANIFEST = "backup.json"
"""The manifest's name; a folder without it is no backup."""

FORMAT = 1
"""Format of the backups that this version makes, and the newest that it restores."""

_BLOCK_BYTES = 1 << 20


class BackupError(HermesTuiError):
    """A backup cannot be made or restored; the text says why and what to do."""


class BackupFile(BaseModel):
    """One file of a backup."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    num_bytes: int
    """Its size."""
    sha256: str
    """Hash of its content, hexadecimal."""
    mode: int
    """Its permissions."""


class Manifest(BaseModel):
    """A backup: what it is of, and what is in it."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    format: int
    """Format of the backup."""
    version: str
    """Version of the program that made it."""
    made_at: float
    """The moment that it shows, seconds since the epoch."""
    run_dir: str
    """The run directory that it is of."""
    files: dict[str, BackupFile]
    """Every file, by its path in the run directory."""
    links: dict[str, str] = {}
    """Symbolic links, by their path: where they lead."""
    left_out: tuple[str, ...] = ()
    """What is not in it, and why, in words."""

    @property
    def num_bytes(self) -> int:
        """Size of all files together."""
        return sum(file.num_bytes for file in self.files.values())


def parse(text: bytes, source: Path) -> Manifest:
    """Return the manifest of a backup.

    Raises: BackupError: it is none, is of a newer format, or names a path outside of a directory.
    """
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise BackupError(f"{source}: {MANIFEST} is damaged; use another backup") from error
    if manifest.format > FORMAT:
        raise BackupError(
            f"{source} was made by a newer version of this program ({manifest.version}; its format "
            f"is {manifest.format}, this program knows {FORMAT}); update"
        )
    for name in (*manifest.files, *manifest.links):
        path = PurePosixPath(name)
        if path.is_absolute() or not path.parts or ".." in path.parts:
            raise BackupError(f"{source}: {MANIFEST} names {name!r}, which is no place in a backup")
    return manifest


def copy_hashed(
    source: IO[bytes], write: Callable[[bytes], object] | None = None
) -> tuple[int, str]:
    """Return size and SHA-256 of what a file holds; each block also goes to ``write``."""
    digest, num_bytes = hashlib.sha256(), 0
    while block := source.read(_BLOCK_BYTES):
        digest.update(block)
        num_bytes += len(block)
        if write:
            write(block)
    return num_bytes, digest.hexdigest()
