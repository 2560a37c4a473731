"""Migrations of an SQLite file: all or nothing, once, and never backwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_tui_common.migrations import NewerSchemaError, migrate, schema_version

ONE = "CREATE TABLE a (x INTEGER); INSERT INTO a VALUES (1);"
TWO = "ALTER TABLE a ADD COLUMN y INTEGER; UPDATE a SET y = x + 1;"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "file.db", isolation_level=None)
    yield connection
    connection.close()


def test_a_file_is_brought_up_to_date_and_migrated_once(db: sqlite3.Connection) -> None:
    migrate(db, [ONE])
    migrate(db, [ONE, TWO])
    migrate(db, [ONE, TWO])
    assert db.execute("SELECT * FROM a").fetchall() == [(1, 2)]
    assert schema_version(db, [ONE, TWO]) == 2


def test_a_migration_that_fails_changes_nothing(db: sqlite3.Connection) -> None:
    migrate(db, [ONE])
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        migrate(db, [ONE, TWO, "DROP TABLE b;"])
    assert schema_version(db, [ONE]) == 1
    assert db.execute("SELECT * FROM a").fetchall() == [(1,)]
    assert not db.in_transaction


def test_a_file_of_a_newer_program_is_left_alone(db: sqlite3.Connection) -> None:
    migrate(db, [ONE, TWO])
    with pytest.raises(NewerSchemaError, match=r"newer version.*format is 2, this program knows 1"):
        migrate(db, [ONE])
    assert not db.in_transaction
