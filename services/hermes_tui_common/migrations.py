"""Bringing an SQLite file's tables up to date; the file's format is its ``user_version``."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence


class NewerSchemaError(sqlite3.DatabaseError):
    """A newer version of the program made the file.

    Args:
        version: the file's format.
        num_known: the newest format that this program knows.
    """

    def __init__(self, version: int, num_known: int) -> None:
        super().__init__(
            f"was made by a newer version of this program (its format is {version}, this program "
            f"knows {num_known}); update, or set run.dir to another directory"
        )


def schema_version(db: sqlite3.Connection, migrations: Sequence[str]) -> int:
    """Return the file's format. Raises: NewerSchemaError: the migrations do not lead there."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise NewerSchemaError(version, len(migrations))
    return int(version)


def migrate(db: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Bring the tables up to date, all or nothing; other processes may do so at the same time.

    Args:
        db: a connection in autocommit mode (``isolation_level=None``).
        migrations: entry N takes a file from format N to N + 1: SQL statements, without a
            semicolon inside of one.

    Raises: NewerSchemaError: a newer version of the program made the file.
    """
    db.execute("BEGIN IMMEDIATE")  # the version is read under the lock: another one may migrate
    try:
        for migration in migrations[schema_version(db, migrations) :]:
            # Not executescript: it commits the transaction that is open.
            for statement in filter(str.strip, migration.split(";")):
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(migrations)}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
