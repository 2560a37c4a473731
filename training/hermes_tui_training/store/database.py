"""The database file: one SQLite connection in WAL mode, its schema, and arrays as blobs."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hermes_tui_common.errors import ConfigError
from hermes_tui_common.migrations import NewerSchemaError, schema_version
from hermes_tui_common.sqlite_files import BUSY_TIMEOUT_S, DatabaseFile, Schema, room_for

logger = logging.getLogger(__name__)

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY,
        key_hash TEXT NOT NULL,
        task_id TEXT NOT NULL,
        group_id TEXT NOT NULL,
        created_at REAL NOT NULL,
        ended_at REAL,
        last_active_at REAL NOT NULL
    ) STRICT;
    CREATE INDEX sessions_by_key ON sessions (key_hash, created_at);

    CREATE TABLE episodes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        episode_id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL REFERENCES sessions (session_id),
        group_id TEXT NOT NULL,
        task_id TEXT NOT NULL,
        state TEXT NOT NULL,
        reward REAL,
        scored_at REAL,
        created_at REAL NOT NULL,
        step INTEGER,
        dropped_reason TEXT
    ) STRICT;
    CREATE INDEX episodes_by_session ON episodes (session_id, seq);
    CREATE INDEX episodes_by_group ON episodes (group_id, seq);
    CREATE INDEX episodes_by_state ON episodes (state, seq);

    CREATE TABLE completions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        completion_id TEXT NOT NULL UNIQUE,
        episode_id TEXT NOT NULL REFERENCES episodes (episode_id),
        session_id TEXT NOT NULL,
        turn_index INTEGER NOT NULL,
        created_at REAL NOT NULL,
        status TEXT NOT NULL,
        kind TEXT NOT NULL,
        sampling TEXT NOT NULL,
        request_messages TEXT NOT NULL,
        tools TEXT NOT NULL,
        prefix TEXT NOT NULL,
        prompt_token_ids BLOB NOT NULL,
        token_ids BLOB,
        logprobs BLOB,
        policy_versions BLOB,
        policy_version_min INTEGER,
        policy_version_max INTEGER,
        top_width INTEGER NOT NULL DEFAULT 0,
        top_ids BLOB,
        top_logprobs BLOB,
        finish_reason TEXT,
        message TEXT,
        latency TEXT NOT NULL DEFAULT '{}',
        trainable INTEGER NOT NULL DEFAULT 0,
        untrainable_reason TEXT,
        error TEXT,
        reward REAL,
        advantage REAL,
        proximal_logprobs BLOB,
        after_logprobs BLOB
    ) STRICT;
    CREATE INDEX completions_by_episode ON completions (episode_id, seq);
    CREATE INDEX completions_by_session ON completions (session_id, seq);
    CREATE INDEX completions_running ON completions (status) WHERE status = 'running';
    CREATE INDEX completions_untrainable ON completions (untrainable_reason)
        WHERE untrainable_reason IS NOT NULL;

    CREATE TABLE rewards (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        episode_id TEXT NOT NULL REFERENCES episodes (episode_id),
        completion_id TEXT,
        reward REAL NOT NULL,
        at REAL NOT NULL
    ) STRICT;
    CREATE INDEX rewards_by_episode ON rewards (episode_id, seq);

    CREATE TABLE steps (
        step INTEGER PRIMARY KEY,
        policy_version INTEGER NOT NULL,
        row TEXT NOT NULL
    ) STRICT;

    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

    CREATE TABLE events (
        event_id INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        at REAL NOT NULL
    ) STRICT;
    """,
    """
    ALTER TABLE completions ADD COLUMN base_id TEXT;
    ALTER TABLE completions ADD COLUMN base_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE completions ADD COLUMN base_messages INTEGER NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE canaries (
        policy_version INTEGER NOT NULL,
        prompt TEXT NOT NULL,
        position INTEGER NOT NULL,
        status TEXT NOT NULL,
        reason TEXT,
        text TEXT NOT NULL,
        token_ids BLOB NOT NULL,
        logprobs BLOB NOT NULL,
        finish_reason TEXT,
        seconds REAL NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (policy_version, prompt)
    ) STRICT;
    """,
    """
    CREATE INDEX sessions_by_group ON sessions (group_id);
    """,
    """
    ALTER TABLE episodes ADD COLUMN feedback TEXT;
    ALTER TABLE rewards ADD COLUMN feedback TEXT;
    ALTER TABLE rewards ADD COLUMN taken_back_at REAL;
    """,
    """
    ALTER TABLE sessions ADD COLUMN title TEXT;
    """,
    """
    ALTER TABLE sessions ADD COLUMN end_reason TEXT;
    """,
    """
    ALTER TABLE completions ADD COLUMN removed_probs BLOB;
    """,
    """
    ALTER TABLE sessions ADD COLUMN topic TEXT;
    """,
    """
    ALTER TABLE sessions ADD COLUMN sampled_by TEXT;
    """,
    """
    ALTER TABLE sessions ADD COLUMN branch_of TEXT;
    ALTER TABLE sessions ADD COLUMN group_position INTEGER NOT NULL DEFAULT 0;
    """,
)
"""Entry n takes a file from ``PRAGMA user_version`` n to n + 1; entries never change."""

SCHEMA = Schema(
    migrations=MIGRATIONS,
    valid={
        "meta": "json_valid(value)",
        "steps": 'json_valid("row")',
        "events": "json_valid(payload)",
        "completions": (
            "json_valid(sampling) AND json_valid(request_messages) AND json_valid(tools) "
            "AND json_valid(prefix) AND (message IS NULL OR json_valid(message)) "
            "AND length(token_ids) IS length(logprobs) "
            "AND length(token_ids) IS length(policy_versions)"
        ),
    },
    repairs=(
        "DELETE FROM episodes WHERE session_id NOT IN (SELECT session_id FROM sessions)",
        "DELETE FROM completions WHERE episode_id NOT IN (SELECT episode_id FROM episodes) "
        "OR base_id NOT IN (SELECT completion_id FROM completions)",
        "DELETE FROM rewards WHERE episode_id NOT IN (SELECT episode_id FROM episodes)",
    ),
)
"""How the file is checked when it is opened, and recovered when it is damaged."""


class Database:
    """One connection that threads share under a lock; transactions are serialized.

    A transaction that returned has been written to the write-ahead log, so it survives the death
    of this process; a durable one (the default) was also flushed to the disk, together with all
    before it, so it survives the machine's death too.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open the file, make or migrate its tables.

        Args:
            path: the file.
            read_only: whether to change nothing in it; another process may be writing to it.

        Raises: ConfigError: the file cannot be opened, or another version of the program made it.
        """
        self.path = path
        self._file: DatabaseFile | None = None
        self._lock = threading.RLock()
        try:
            if read_only:
                self._connection = self._opened_read_only()
                return
            self._file = DatabaseFile(path, SCHEMA, check_same_thread=False)
            self._connection = self._file.connection
        except NewerSchemaError as error:
            raise ConfigError(f"the database {path} {error}") from error
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"cannot open the database {path}: {error}") from error

    @property
    def notice(self) -> str | None:
        """What was damaged when the file was opened, and what was recovered; None: all is well."""
        return self._file.notice if self._file else None

    def _opened_read_only(self) -> sqlite3.Connection:
        """Return a connection that cannot write."""
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=ro",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        with ExitStack() as failed:
            failed.callback(connection.close)
            connection.row_factory = sqlite3.Row
            version = schema_version(connection, MIGRATIONS)
            if version < len(MIGRATIONS):
                raise ConfigError(
                    f"the database {self.path} was made by an older version of this program "
                    f"(its format is {version}, this program reads {len(MIGRATIONS)}); "
                    "start the stack on its directory once, which brings it up to date"
                )
            failed.pop_all()
        return connection

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction; an exception rolls it back.

        Args:
            durable: whether to wait for the disk; without it only a failure of the whole machine
                could lose the transaction.

        Raises: DiskFullError: there is no room for it.
        """
        with self._lock:
            if not durable:
                self._connection.execute("PRAGMA synchronous = NORMAL")
            try:
                with room_for(self.path):
                    yield from self._transaction()
            finally:
                if not durable:
                    self._connection.execute("PRAGMA synchronous = FULL")

    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk may have ended it
                self._connection.execute("ROLLBACK")
            raise

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a read."""
        with self._lock:
            return self._connection.execute(sql, parameters).fetchall()

    @contextmanager
    def exclusive(self) -> Iterator[sqlite3.Connection]:
        """Keep other threads out, so that several reads see one and the same state."""
        with self._lock:
            yield self._connection

    def close(self) -> None:
        """Close the connection; the write-ahead log is merged into the file."""
        with self._lock:
            if self._file is None:
                self._connection.close()
            else:
                self._file.close()


INT_BYTES = 4
"""Size of an integer in a blob."""


def ints_to_blob(values: Sequence[int]) -> bytes:
    """Return integers as little-endian int32."""
    return np.asarray(values, dtype="<i4").tobytes()


def ints_from_blob(blob: bytes | None) -> tuple[int, ...]:
    """Return the integers of ``ints_to_blob``; nothing for None."""
    return tuple(np.frombuffer(blob, dtype="<i4").tolist()) if blob else ()


def floats_to_blob(values: Sequence[float]) -> bytes:
    """Return numbers as little-endian float32."""
    return np.asarray(values, dtype="<f4").tobytes()


def floats_from_blob(blob: bytes | None) -> tuple[float, ...]:
    """Return the numbers of ``floats_to_blob``; nothing for None."""
    return tuple(np.frombuffer(blob, dtype="<f4").tolist()) if blob else ()


def to_json(value: Any) -> str:
    """Return compact JSON; a lone surrogate, which JSON text may carry, stays escaped."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
