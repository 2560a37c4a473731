"""Copying the contents of a run directory that may be in use."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from hermes_tui.backup.contents import Contents, files_in
from hermes_tui.backup.manifest import BackupError, BackupFile, copy_hashed
from hermes_tui_common.sqlite_files import BUSY_TIMEOUT_S, room_for


@contextlib.contextmanager
def snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading at the state that it has now.

    Raises: BackupError: it cannot be read.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(
        sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    ) as db:
        try:
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError as error:
            raise _damaged(path, str(error)) from error
        yield db


def _damaged(path: Path, problem: str) -> BackupError:
    return BackupError(
        f"{path} cannot be backed up ({problem}); a start of the stack recovers what can be read "
        "of a damaged database"
    )


def flush(path: Path) -> None:
    """Have a file or a folder written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def place(folder: Path, name: str) -> Path:
    """Return where a file goes, with all folders above it made for their owner only."""
    path = folder / name
    for above in reversed(path.relative_to(folder).parents[:-1]):
        (folder / above).mkdir(mode=0o700, exist_ok=True)
    return path


class Copies:
    """Copies a run directory's contents into a folder, and knows what it has copied.

    Args:
        root: the run directory.
        folder: where the copies go; empty.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self.files: dict[str, BackupFile] = {}
        """What was copied, by its path in the run directory."""
        self.links: dict[str, str] = {}
        """Symbolic links, by their path: where they lead."""
        self.left_out: list[str] = []
        """What could not be read, and why."""

    def take(self, contents: Contents, snapshots: Mapping[Path, sqlite3.Connection]) -> None:
        """Copy everything; of what is not the stack's own, what cannot be read is left out.

        Args:
            contents: what there is.
            snapshots: the stack's own databases, by their path, each in a read transaction.

        Raises: BackupError: a database of the stack is damaged. OSError: the copies cannot be
            written.
        """
        for folder in contents.checkpoints:
            self._take_checkpoint(folder)
        for path in contents.databases:
            if path in snapshots:
                self._take_database(path, snapshots[path])
            else:
                self._take_foreign_database(path)
        for path in contents.files:
            self._take_readable(path)
        for path in contents.links:
            with contextlib.suppress(FileNotFoundError):
                self.links[self._name(path)] = os.readlink(path)

    def _take_checkpoint(self, folder: Path) -> None:
        """Link or copy a checkpoint; one that is deleted meanwhile is left out as a whole."""
        name = self._name(folder)
        try:
            for path in files_in(folder):
                copy = self._place(path)
                try:
                    os.link(path, copy)
                except OSError:  # another file system, or one without links
                    self._copy(path, copy)
                self._note(path, copy)
        except FileNotFoundError:
            self.files = {k: v for k, v in self.files.items() if not k.startswith(f"{name}/")}
            shutil.rmtree(self._folder / name, ignore_errors=True)
            self.left_out.append(f"{name}: was deleted meanwhile")

    def _take_database(self, path: Path, db: sqlite3.Connection) -> None:
        copy = self._place(path)
        os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with room_for(copy), contextlib.closing(sqlite3.connect(copy)) as fresh:
                db.backup(fresh)
                (result,) = fresh.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            raise _damaged(path, str(error)) from error
        if result != "ok":
            raise _damaged(path, str(result).splitlines()[-1])
        self._note(path, copy)

    def _take_foreign_database(self, path: Path) -> None:
        """Copy a database of the agent or its tools; as any file where SQLite cannot read it.

        Its snapshot is opened late: without a write-ahead log a reader keeps writers waiting.
        """
        try:
            with snapshot(path) as db:
                self._take_database(path, db)
        except BackupError:
            (self._folder / self._name(path)).unlink(missing_ok=True)
            self._take_readable(path)

    def _take_readable(self, path: Path) -> None:
        if not os.access(path, os.R_OK):
            self.left_out.append(f"{self._name(path)}: cannot be read")
            return
        copy = self._place(path)
        try:
            self._copy(path, copy)
        except FileNotFoundError:
            return  # deleted meanwhile
        self._note(path, copy)

    @staticmethod
    def _copy(path: Path, copy: Path) -> None:
        with path.open("rb") as source:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(copy, flags, 0o600), "wb") as file:
                shutil.copyfileobj(source, file)
                os.fchmod(file.fileno(), os.fstat(source.fileno()).st_mode & 0o777)

    def _note(self, path: Path, copy: Path) -> None:
        """Remember a copy, which is on the disk then."""
        with copy.open("rb") as file:
            num_bytes, sha256 = copy_hashed(file)
            mode = os.fstat(file.fileno()).st_mode & 0o777
            os.fsync(file.fileno())
        self.files[self._name(path)] = BackupFile(num_bytes=num_bytes, sha256=sha256, mode=mode)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _place(self, path: Path) -> Path:
        return place(self._folder, self._name(path))
