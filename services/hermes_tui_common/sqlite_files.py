"""Opening an SQLite file that may be damaged: checked, set aside with its date, and recovered.

The first process that opens a file checks it, under a lock; those that come while it is in use do
not, since a file in use cannot be replaced. A damaged file is renamed to ``NAME.damaged-WHEN`` and
never deleted. What can be read of it goes into a new file.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hermes_tui_common.disk import MIN_FREE_BYTES, DiskFullError, free_of
from hermes_tui_common.migrations import NewerSchemaError, migrate
from hermes_tui_common.sqlite_recovery import is_damage, recover

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 10.0
"""How long to wait for another process that writes to the file, or backs it up."""

_SIDES = ("", "-wal", "-shm")
"""An SQLite file in WAL mode, and what belongs to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What a database holds."""

    migrations: Sequence[str]
    """As for ``migrate``."""
    valid: Mapping[str, str] = field(default_factory=dict)
    """By table: SQL that is true of each of its rows, and false of a row whose content is
    damaged."""
    repairs: Sequence[str] = ()
    """SQL that makes recovered tables fit each other; each is repeated until it changes nothing."""


class DatabaseFile:
    """An open SQLite file in WAL mode; whoever holds one keeps others from replacing the file."""

    def __init__(
        self,
        path: Path,
        schema: Schema,
        *,
        check_same_thread: bool = True,
        now: float | None = None,
    ) -> None:
        """Open or make the file, private to its owner, with its tables up to date.

        Args:
            path: the file.
            schema: what it holds.
            check_same_thread: as for ``sqlite3.connect``.
            now: seconds since the epoch; None is the present.

        Raises: OSError, sqlite3.Error: it cannot be used. NewerSchemaError: a newer version of the
            program made it.
        """
        self._path = path
        self._schema = schema
        self._now = time.time() if now is None else now
        self.notice: str | None = None
        """What was damaged and what was recovered, for a person; None when all was well."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = self._locked()
        try:
            path.chmod(0o600)
            self.connection = self._connect(check_same_thread)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close the file; the write-ahead log is merged into it."""
        self.connection.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _locked(self) -> int:
        """Return a descriptor that holds a shared lock on the file, which exists and is whole."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(self._path, os.O_RDONLY)
                try:
                    self._check_first(descriptor)
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
                    if os.fstat(descriptor).st_ino == self._path.stat().st_ino:
                        return descriptor
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)  # it was replaced meanwhile
                continue
            self._make(self._path)

    def _check_first(self, descriptor: int) -> None:
        """Check the file if nobody has it open, and replace one that is damaged."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # whoever has it has checked it, or does so now
        if os.fstat(descriptor).st_ino != self._path.stat().st_ino:
            return
        if os.fstat(descriptor).st_size == 0:
            problem: str | None = "it is empty"
        else:
            problem = _problem(self._path, self._schema)
        if problem is not None:
            self._replace(problem)

    def _replace(self, problem: str) -> None:
        """Set the damaged file aside and put what can be read of it in its place."""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._now))
        aside = self._path.with_name(f"{self._path.name}.damaged-{stamp}-{secrets.token_hex(2)}")
        fresh = self._path.with_name(f".{self._path.name}.recovered-{secrets.token_hex(4)}")
        try:
            self._make(fresh)
            report = recover(self._path, fresh, self._schema.valid, self._schema.repairs)
            for side in _SIDES[::-1]:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(f"{self._path}{side}", f"{aside}{side}")
            os.rename(fresh, self._path)
        finally:
            for side in _SIDES:
                Path(f"{fresh}{side}").unlink(missing_ok=True)
        self.notice = (
            f"{self._path.name} was damaged ({problem}): {report}; set aside as {aside.name}"
        )
        logger.error("%s", self.notice)

    def _make(self, path: Path) -> None:
        """Make an empty database; it appears whole: an empty file always tells of a loss."""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                migrate(db, self._schema.migrations)
            with contextlib.suppress(FileExistsError):  # another process was quicker
                os.link(temporary, path)
        finally:
            for side in _SIDES:
                Path(f"{temporary}{side}").unlink(missing_ok=True)

    def _connect(self, check_same_thread: bool) -> sqlite3.Connection:
        db = sqlite3.connect(
            self._path,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=check_same_thread,
        )
        try:
            db.row_factory = sqlite3.Row
            _use_wal(db)
            # What was acknowledged survives a power cut too: each commit is one fsync of the WAL.
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = ON")
            migrate(db, self._schema.migrations)
        except BaseException:
            db.close()
            raise
        return db


@contextlib.contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Name a full disk as such when the block's write to a database finds no room.

    Raises: DiskFullError.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        # Where the write-ahead log's index finds no room, SQLite calls it an I/O error.
        if code == sqlite3.SQLITE_FULL or (
            code == sqlite3.SQLITE_IOERR and free_of(path) < MIN_FREE_BYTES
        ):
            raise DiskFullError(path) from error
        raise


def _use_wal(db: sqlite3.Connection) -> None:
    # SQLite does not wait for a lock here, and several processes may start together.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _problem(path: Path, schema: Schema) -> str | None:
    """Return what is wrong with a file's structure or content, or None.

    Raises: sqlite3.Error: it cannot be read now. NewerSchemaError.
    """
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            (result,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if result != "ok":
                return str(result).splitlines()[-1]
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > len(schema.migrations):
                raise NewerSchemaError(version, len(schema.migrations))
            if version < len(schema.migrations):
                return None  # the checks are of this version's tables
            for table, valid in schema.valid.items():
                query = f"SELECT count(*) FROM {table} WHERE NOT ({valid})"  # noqa: S608  # ours
                (number,) = db.execute(query).fetchone()
                if number:
                    return f"{number} rows of {table} hold something else than was written"
    except sqlite3.DatabaseError as error:
        if isinstance(error, NewerSchemaError) or not is_damage(error):
            raise
        return str(error)
    return None
