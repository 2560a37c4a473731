"""Making a backup of a run directory, whether a stack runs on it or not.

What the databases hold is that of one moment: a read transaction in each keeps it, however long the
copying takes. Checkpoints never change, so on the same file system they are linked. The backup gets
its name once it is whole.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from hermes_tui import __version__
from hermes_tui.backup.contents import Contents, contents_of, files_in, own_databases
from hermes_tui.backup.copies import Copies, flush, snapshot
from hermes_tui.backup.manifest import FORMAT, MANIFEST, BackupError, Manifest
from hermes_tui.config.paths import RunDir
from hermes_tui_common.disk import RESERVE_BYTES, DiskFullError, require_room
from hermes_tui_common.errors import ConfigError
from hermes_tui_common.serving import write_private

ARCHIVES = {".tar": "w:", ".tar.gz": "w:gz", ".tgz": "w:gz"}
"""Endings of a target that ask for one file, and how ``tarfile`` writes it."""


def back_up(run_dir: RunDir, target: Path) -> Manifest:
    """Copy a run directory; the keys are in the copy, which only its owner may read.

    Args:
        run_dir: what to copy; a stack may run on it.
        target: a new folder, or a new file that ends like one of ``ARCHIVES``.

    Raises:
        ConfigError: the target exists or is no place for it, or there is nothing to copy.
        DiskFullError: there is no room for it.
        BackupError: it cannot be made.
    """
    target = Path(os.path.abspath(target.expanduser()))
    _check(run_dir, target)
    try:
        with contextlib.ExitStack() as held:
            made_at = time.time()
            snapshots = {
                path: held.enter_context(snapshot(path)) for path in own_databases(run_dir.root)
            }
            contents = contents_of(run_dir.root)
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            require_room(target.parent, _needed_bytes(contents, target))
            folder = held.enter_context(_unfinished(target))
            copies = Copies(run_dir.root, folder)
            copies.take(contents, snapshots)
            manifest = Manifest(
                format=FORMAT,
                version=__version__,
                made_at=made_at,
                run_dir=str(run_dir.root),
                files=copies.files,
                links=copies.links,
                left_out=(*contents.left_out, *copies.left_out),
            )
            write_private(folder / MANIFEST, manifest.model_dump_json(indent=1))
            mode = _archive_mode(target)
            os.rename(_archived(folder, manifest, mode) if mode else folder, target)
            flush(target.parent)
            return manifest
    except OSError as error:
        raise DiskFullError.of(error, target.parent, 0) or BackupError(
            f"{target} cannot be written: {error}"
        ) from error


def _check(run_dir: RunDir, target: Path) -> None:
    if not run_dir.keys.exists():
        raise ConfigError(f"{run_dir.root} holds nothing to back up; run.dir names another one")
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} exists; name a file or folder that does not")
    if target.is_relative_to(run_dir.root):
        raise ConfigError(f"{target} is inside of {run_dir.root}; name a place outside of it")


def _archive_mode(target: Path) -> str | None:
    return next((mode for end, mode in ARCHIVES.items() if target.name.endswith(end)), None)


def _needed_bytes(contents: Contents, target: Path) -> int:
    """Return how much the backup takes at most, with what is only there while it is made."""
    checkpoints = [file for folder in contents.checkpoints for file in files_in(folder)]
    databases = [
        path.with_name(path.name + side) for path in contents.databases for side in ("", "-wal")
    ]
    there = target.parent.stat().st_dev
    copied = [*databases, *contents.files, *(f for f in checkpoints if _device(f) != there)]
    needed = sum(map(_size, copied)) + RESERVE_BYTES
    if _archive_mode(target):
        needed += sum(map(_size, (*databases, *contents.files, *checkpoints)))
    return needed


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _device(path: Path) -> int:
    try:
        return path.stat().st_dev
    except FileNotFoundError:
        return -1


@contextlib.contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """Give a folder beside the target to fill; what is left of it in the end is deleted."""
    folder = target.with_name(f".{target.name}.unfinished-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _archived(folder: Path, manifest: Manifest, mode: str) -> Path:
    """Write a filled folder into one file beside its contents: the manifest comes first."""
    path = folder / "archive"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
            for name in (MANIFEST, *manifest.files):
                archive.add(folder / name, arcname=name, recursive=False, filter=_anonymous)
        file.flush()
        os.fsync(file.fileno())
    return path


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
