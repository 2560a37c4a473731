"""Restoring a backup into a run directory that does not exist yet, or is empty."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from hermes_tui.backup.copies import flush, place
from hermes_tui.backup.manifest import MANIFEST, BackupError, Manifest, copy_hashed, parse
from hermes_tui.config.paths import RunDir
from hermes_tui.core.errors import AlreadyRunningError
from hermes_tui.supervisor.lock import lock_owner
from hermes_tui_common.disk import DiskFullError, require_room
from hermes_tui_common.errors import ConfigError

Opener = Callable[[str], IO[bytes]]
"""Opens a file of a backup by its name. Raises: KeyError, OSError: there is none."""

_BROKEN = (tarfile.TarError, EOFError, zlib.error, KeyError, FileNotFoundError)
"""What reading a cut or damaged archive raises, or one that lacks a file."""


def restore(source: Path, run_dir: RunDir) -> Manifest:
    """Make a run directory from a backup; it appears whole, once all checksums are right.

    Args:
        source: the backup's folder or file.
        run_dir: where it goes.

    Raises:
        AlreadyRunningError, ConfigError: the run directory is in use, or holds something.
        DiskFullError: there is no room for it.
        BackupError: it is no backup, is not whole, or is damaged.
    """
    root = run_dir.root
    if pid := lock_owner(run_dir):
        raise AlreadyRunningError(str(root), pid)
    if root.exists() and any(root.iterdir()):
        raise ConfigError(
            f"{root} is not empty, and nothing is overwritten; move it away, or set run.dir to "
            "another directory"
        )
    with _opened(source) as opener:
        manifest = parse(_read_manifest(source, opener), source)
        try:
            root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            require_room(root.parent, manifest.num_bytes)
            with _unfinished(root) as folder:
                _fill(folder, manifest, source, opener)
                os.rename(folder, root)
                flush(root.parent)
        except OSError as error:
            raise DiskFullError.of(error, root.parent, manifest.num_bytes) or BackupError(
                f"{root} cannot be made: {error}"
            ) from error
    return manifest


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[Opener]:
    """Give the way to open a backup's files.

    Raises: ConfigError: there is nothing, or nothing that can be a backup.
    """
    if source.is_dir():
        yield lambda name: (source / name).open("rb")
        return
    try:
        archive = tarfile.open(source)  # noqa: SIM115  # closed below
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise ConfigError(f"{source} is no backup: {error}") from error
    with archive:

        def open_member(name: str) -> IO[bytes]:
            file = archive.extractfile(name)
            if file is None:
                raise KeyError(name)
            return file

        yield open_member


def _read_manifest(source: Path, opener: Opener) -> bytes:
    try:
        with opener(MANIFEST) as file:
            return file.read()
    except _BROKEN as error:
        raise BackupError(
            f"{source} is no whole backup: {MANIFEST} cannot be read ({error})"
        ) from error


@contextlib.contextmanager
def _unfinished(root: Path) -> Iterator[Path]:
    folder = root.with_name(f".{root.name}.unfinished-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, manifest: Manifest, source: Path, opener: Opener) -> None:
    for name, written in manifest.files.items():
        path = place(folder, name)
        with path.open("xb") as file:
            os.fchmod(file.fileno(), written.mode)
            try:
                with opener(name) as copy:
                    found = copy_hashed(copy, file.write)
            except _BROKEN as error:
                raise BackupError(f"{source} is damaged: {name}: {error}") from error
            file.flush()
            os.fsync(file.fileno())
        if found != (written.num_bytes, written.sha256):
            raise BackupError(f"{source} is damaged: {name} does not match its checksum")
    # Last: nothing is written through one of them.
    for name, target in manifest.links.items():
        path = place(folder, name)
        path.symlink_to(target)
