"""Reading what can be read of a damaged SQLite file into a new one.

By ``sqlite3 .recover`` where that program is installed; it also finds rows whose table no longer
leads to them. Otherwise row by row: what lies between damaged pages is found by halving.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROGRAM = "sqlite3"
"""SQLite's own program."""

_PROGRAM_TIMEOUT_S = 600.0
_MAX_QUERIES = 20_000
"""Ranges that are tried for one table: forty, and two for each row that cannot be read."""
_MAX_ROWID = 2**40
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_PAGE_SIZE, _PAGE_COUNT, _FREE_PAGES = slice(16, 18), slice(28, 32), slice(32, 40)
"""Where SQLite's file header has them (sqlite.org/fileformat2.html, 1.3)."""
_MAX_GROWTH = 1000
"""A header that asks for more than this many times of what is there is damaged itself."""
_SHORT_READ = 522
"""SQLITE_IOERR_SHORT_READ: the file is cut."""


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error tells of a file's content, not of its surroundings."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return "decode" in str(error)  # text that is no UTF-8: Python's own error, without a code
    return code == _SHORT_READ or code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def recover(
    damaged: Path,
    fresh: Path,
    valid: Mapping[str, str],
    repairs: Sequence[str],
    *,
    program: str | None = PROGRAM,
) -> str:
    """Copy the rows that can be read into an empty database; return in words how many.

    Args:
        damaged: the file; it is not changed.
        fresh: a database with all tables.
        valid: by table, SQL that is true of rows that are whole; others are left out.
        repairs: SQL that makes the tables fit each other; each is repeated until it changes
            nothing.
        program: SQLite's program; None does without, as where it is not installed.
    """
    with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as db:
        tables = _tables(db)
        db.execute("BEGIN IMMEDIATE")
        with tempfile.TemporaryDirectory(dir=fresh.parent, prefix=".recover-") as folder:
            dump, copy = Path(folder) / "recovered.db", Path(folder) / "damaged.db"
            _copy_openable(damaged, fresh, copy)
            for source in (dump, copy):
                if source == dump and not (program and _dump(program, copy, dump)):
                    continue
                for table in tables:
                    _copy_table(source, db, table)
                if any(_count(db, table) for table in tables):
                    break
        for table, condition in valid.items():
            db.execute(f"DELETE FROM {table} WHERE NOT ({condition})")  # noqa: S608  # ours
        for statement in repairs:
            while db.execute(statement).rowcount > 0:
                pass
        db.execute("COMMIT")
        kept = {table: _count(db, table) for table in tables}
    found = ", ".join(f"{number} of {table}" for table, number in kept.items() if number)
    return f"these rows were recovered: {found}" if found else "nothing could be recovered"


def _copy_openable(damaged: Path, sound: Path, target: Path) -> None:
    """Copy a damaged file so that SQLite opens it: with a header, and with all of its pages."""
    shutil.copyfile(damaged, target)
    log = Path(f"{damaged}-wal")
    if log.exists():
        shutil.copyfile(log, f"{target}-wal")
    with target.open("r+b") as file, sound.open("rb") as other:
        header = bytearray(file.read(_HEADER_BYTES))
        if not header.startswith(_MAGIC):
            header = bytearray(other.read(_HEADER_BYTES))
            num_pages = -(-target.stat().st_size // _page_bytes(header))
            header[_PAGE_COUNT] = num_pages.to_bytes(4, "big")
            header[_FREE_PAGES] = bytes(8)
            file.seek(0)
            file.write(header)
        whole = int.from_bytes(header[_PAGE_COUNT], "big") * _page_bytes(header)
        if damaged.stat().st_size < whole <= _MAX_GROWTH * (damaged.stat().st_size or 1):
            file.truncate(whole)


def _page_bytes(header: bytearray) -> int:
    size = int.from_bytes(header[_PAGE_SIZE], "big")
    return 65536 if size == 1 else max(size, 512)


def _tables(db: sqlite3.Connection) -> list[str]:
    rows = db.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    )
    return [str(name) for (name,) in rows]


def _count(db: sqlite3.Connection, table: str) -> int:
    (number,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608  # our names
    return int(number)


def _dump(program: str, damaged: Path, target: Path) -> bool:
    """Have SQLite's program recover a file into another; return whether it did."""
    found = shutil.which(program)
    if found is None:
        return False
    with tempfile.TemporaryFile(dir=target.parent) as sql:
        read = subprocess.run(
            [found, str(damaged), ".recover"],
            stdin=subprocess.DEVNULL,
            stdout=sql,
            stderr=subprocess.DEVNULL,
            timeout=_PROGRAM_TIMEOUT_S,
            check=False,
        )
        sql.seek(0)
        written = subprocess.run(
            [found, str(target)],
            stdin=sql,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROGRAM_TIMEOUT_S,
            check=False,
        )
    return read.returncode == 0 and written.returncode == 0 and target.exists()


def _copy_table(source: Path, db: sqlite3.Connection, table: str) -> None:
    """Copy a table's readable rows; a row that the table does not take is left out."""
    known = [str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")]
    with contextlib.closing(sqlite3.connect(source, isolation_level=None)) as old:
        try:
            there = {str(row[1]) for row in old.execute(f"PRAGMA table_info({table})")}
        except sqlite3.DatabaseError:
            return
        columns = [name for name in known if name in there]
        if not columns:
            return
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})"  # noqa: S608  # ours
        for row in readable_rows(old, table, names):
            with contextlib.suppress(sqlite3.IntegrityError):
                db.execute(insert, row)


def readable_rows(db: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a table that can be read, each once; halves the ranges that cannot.

    Args:
        db: the damaged file.
        table: a table with row ids.
        columns: SQL of what to read.
    """
    query = f"SELECT rowid, {columns} FROM {table} WHERE rowid BETWEEN ? AND ? ORDER BY rowid"  # noqa: S608
    ranges = [(0, _MAX_ROWID)]
    for _ in range(_MAX_QUERIES):
        if not ranges:
            return
        first, last = ranges.pop()
        reached = first - 1
        try:
            for row in db.execute(query, (first, last)):
                reached = row[0]
                yield row[1:]
        except sqlite3.DatabaseError:
            # The left half first: ranges grow again behind a damaged page. A row that cannot be
            # read is alone in its range in the end, and is left out.
            start = reached + 1
            if start < last:
                middle = (start + last) // 2
                ranges += [(middle + 1, last), (start, middle)]
