"""``conversations.db``: what was said in each session, and where its turns go.

One SQLite file in WAL mode, shared by the data proxies of a run directory. A turn is one row,
written in one transaction before the turn is acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hermes_tui_common.errors import StackError
from hermes_tui_common.migrations import NewerSchemaError
from hermes_tui_common.sqlite_files import DatabaseFile, Schema, room_for
from hermes_tui_services.api.protocol import ChatMessage, Upstream
from hermes_tui_services.api.wire import ConversationInfo, SearchHit
from hermes_tui_services.data_proxy.search import search

T = TypeVar("T")

_MIGRATIONS = (
    """
    CREATE TABLE sessions (
        session_key TEXT PRIMARY KEY,
        created_at REAL NOT NULL,
        inference TEXT
    ) STRICT;
    CREATE TABLE turns (
        turn_id INTEGER PRIMARY KEY,
        session_key TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        run_id TEXT NOT NULL,
        interrupted INTEGER NOT NULL,
        messages TEXT NOT NULL,
        summary TEXT NOT NULL,
        metadata TEXT NOT NULL,
        started_at REAL NOT NULL,
        finished_at REAL NOT NULL
    ) STRICT;
    CREATE INDEX turns_of_session ON turns (session_key, turn_id);
    CREATE TABLE idempotency_keys (
        session_key TEXT NOT NULL,
        idempotency_key TEXT NOT NULL,
        turn_id INTEGER NOT NULL REFERENCES turns ON DELETE CASCADE,
        PRIMARY KEY (session_key, idempotency_key)
    ) STRICT;
    CREATE INDEX idempotency_keys_of_turn ON idempotency_keys (turn_id);
    """,
    """
    ALTER TABLE sessions ADD COLUMN turn_begun_at REAL;
    """,
)
"""Entry N takes a file from ``user_version`` N to N + 1; entries never change."""

SCHEMA = Schema(
    migrations=_MIGRATIONS,
    valid={
        "sessions": "inference IS NULL OR json_valid(inference)",
        "turns": "json_valid(messages) AND json_valid(metadata)",
    },
    repairs=(
        "INSERT OR IGNORE INTO sessions (session_key, created_at) "
        "SELECT session_key, min(started_at) FROM turns GROUP BY session_key",
        "DELETE FROM idempotency_keys WHERE turn_id NOT IN (SELECT turn_id FROM turns)",
    ),
)


_IDLE = """
    SELECT s.session_key, s.inference, max(
        s.created_at,
        COALESCE(s.turn_begun_at, 0.0),
        COALESCE((
            SELECT t.finished_at FROM turns t WHERE t.session_key = s.session_key
            ORDER BY t.turn_id DESC LIMIT 1
        ), 0.0)
    ) AS used_at
    FROM sessions s WHERE used_at < ?
"""
"""Sessions that have not been used since then."""

_TURN_COLUMNS = "run_id, interrupted, messages, summary, metadata, started_at, finished_at"
"""What a turn holds, whatever session it is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """One stored turn."""

    run_id: str
    """Its run."""
    messages: list[ChatMessage]
    """The user's message and all that followed; marks of ours: interrupted, synthetic."""
    summary: str
    """The reply's text."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What the agent said about it."""
    idempotency_keys: tuple[str, ...] = ()
    """Keys of the requests that this turn answered."""
    interrupted: bool = False
    """Whether it was stopped before its end."""
    started_at: float = 0.0
    """Unix seconds."""
    finished_at: float = 0.0
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """What a turn needs to know about its session."""

    messages: list[ChatMessage]
    """The conversation so far."""
    upstream: Upstream | None
    """Where its turns go; None when no turn has named an upstream."""


class ConversationStore:
    """Access to ``conversations.db``; calls run in one thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="conversations")
        self._file: DatabaseFile | None = None

    @property
    def notice(self) -> str | None:
        """What was damaged when the file was opened, and what was recovered; None: all is well."""
        return self._file.notice if self._file else None

    async def open(self) -> None:
        """Open the file, private to its owner, and bring its schema up to date.

        A damaged file is set aside, and what can be read of it is in the new one.

        Raises: StackError: the file cannot be used; says why.
        """
        try:
            self._file = await self._call(lambda: DatabaseFile(self._path, SCHEMA))
        except NewerSchemaError as error:
            raise StackError(f"the database {self._path} {error}") from error
        except (OSError, sqlite3.Error) as error:
            raise StackError(f"{self._path}: {error}") from error

    async def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            await self._call(file.close)
        self._thread.shutdown(wait=False)

    async def load(self, session_key: str) -> SessionState:
        """Return a session's conversation and upstream, for a turn that begins.

        Empty for a session that is not known. For any other it is noted that it is in use.
        """

        def begin(db: sqlite3.Connection) -> SessionState:
            db.execute(
                "UPDATE sessions SET turn_begun_at = ? WHERE session_key = ?",
                (time.time(), session_key),
            )
            return _load(db, session_key)

        return await self._write(begin, durable=False)

    async def remember(self, session_key: str, upstream: Upstream) -> None:
        """Keep where the session's turns go."""

        def write(db: sqlite3.Connection) -> None:
            _add_session(db, session_key)
            db.execute(
                "UPDATE sessions SET inference = ? WHERE session_key = ?",
                (upstream.model_dump_json(), session_key),
            )

        await self._write(write)

    async def append(self, session_key: str, turn: TurnRow) -> None:
        """Add a turn; it is on disk when this returns."""

        def write(db: sqlite3.Connection) -> None:
            _add_session(db, session_key)
            added = db.execute(
                "INSERT INTO turns (session_key, run_id, interrupted, messages, summary, metadata,"
                " started_at, finished_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    session_key,
                    turn.run_id,
                    int(turn.interrupted),
                    _dumps(turn.messages),
                    turn.summary,
                    _dumps(turn.metadata),
                    turn.started_at,
                    turn.finished_at,
                ),
            )
            db.executemany(
                "INSERT OR IGNORE INTO idempotency_keys VALUES (?, ?, ?)",
                [(session_key, key, added.lastrowid) for key in turn.idempotency_keys],
            )

        await self._write(write)

    async def turns(self, session_key: str) -> list[TurnRow] | None:
        """Return a session's turns, oldest first; None when the session is not known."""

        def read() -> list[TurnRow] | None:
            db = self._connection()
            rows = db.execute(
                "SELECT * FROM turns WHERE session_key = ? ORDER BY turn_id", (session_key,)
            ).fetchall()
            known = (
                rows
                or db.execute(
                    "SELECT 1 FROM sessions WHERE session_key = ?", (session_key,)
                ).fetchone()
            )
            return [_turn(row) for row in rows] if known else None

        return await self._call(read)

    async def find(self, session_key: str, idempotency_key: str) -> TurnRow | None:
        """Return the turn that was stored under an idempotency key, or None."""

        def read() -> TurnRow | None:
            row = (
                self._connection()
                .execute(
                    "SELECT turns.* FROM idempotency_keys JOIN turns USING (turn_id)"
                    " WHERE idempotency_keys.session_key = ? AND idempotency_key = ?",
                    (session_key, idempotency_key),
                )
                .fetchone()
            )
            return _turn(row) if row else None

        return await self._call(read)

    async def forget(self, session_key: str) -> bool:
        """Delete a session with its turns; return whether it was there."""

        def write(db: sqlite3.Connection) -> bool:
            gone = db.execute("DELETE FROM sessions WHERE session_key = ?", (session_key,))
            return gone.rowcount > 0

        return await self._write(write)

    async def num_bytes(self) -> int:
        """Return the bytes in use; the file may also hold free space, which is used next."""

        def read() -> int:
            pages, free, page_bytes = (
                self._connection().execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            return int((pages - free) * page_bytes)

        return await self._call(read)

    async def idle(
        self, since: float, *, skip: int, limit: int
    ) -> list[tuple[str, Upstream | None]]:
        """Return sessions without a turn since a time, and where each one's turns went.

        Args:
            since: seconds since the epoch.
            skip: how many of those that were used the longest ago to leave out.
            limit: how many at most.
        """

        def read() -> list[tuple[str, Upstream | None]]:
            query = f"{_IDLE} ORDER BY used_at LIMIT ? OFFSET ?"
            rows = self._connection().execute(query, (since, limit, skip))
            return [(row["session_key"], _upstream(row)) for row in rows]

        return await self._call(read)

    async def forget_idle(self, session_key: str, since: float) -> bool:
        """Delete a session unless it was used since a time; return whether it is gone."""

        def write(db: sqlite3.Connection) -> bool:
            idle = f"SELECT session_key FROM ({_IDLE})"  # noqa: S608  # no values in it
            gone = db.execute(
                f"DELETE FROM sessions WHERE session_key = ? AND session_key IN ({idle})",  # noqa: S608
                (session_key, since),
            )
            return gone.rowcount > 0

        return await self._write(write)

    async def fork(self, session_key: str, new_key: str, until: float | None) -> int | None:
        """Copy a session's turns, and where they go, into a new session.

        Args:
            session_key: the session.
            new_key: the key of the new one.
            until: Unix seconds; turns that finished later are left out. None copies all.

        Returns: how many turns were copied; None when the session is not known, or the new key is
            another session's.
        """

        def write(db: sqlite3.Connection) -> int | None:
            old = db.execute(
                "SELECT inference FROM sessions WHERE session_key = ?", (session_key,)
            ).fetchone()
            known = "SELECT 1 FROM sessions WHERE session_key = ?"
            if old is None or db.execute(known, (new_key,)).fetchone():
                return None
            _add_session(db, new_key)
            db.execute(
                "UPDATE sessions SET inference = ? WHERE session_key = ?",
                (old["inference"], new_key),
            )
            copied = db.execute(
                f"INSERT INTO turns (session_key, {_TURN_COLUMNS}) SELECT ?, {_TURN_COLUMNS}"  # noqa: S608
                " FROM turns WHERE session_key = ? AND (? IS NULL OR finished_at <= ?)"
                " ORDER BY turn_id",
                (new_key, session_key, until, until),
            )
            return copied.rowcount

        return await self._write(write)

    async def sessions(self) -> list[ConversationInfo]:
        """Return every session, the one used last first; keys are not in it."""

        def read() -> list[ConversationInfo]:
            rows = self._connection().execute(
                "SELECT s.session_key, s.created_at, s.inference, COUNT(t.turn_id) AS num_turns,"
                " COALESCE(MAX(t.finished_at), s.created_at) AS last_active_at"
                " FROM sessions s LEFT JOIN turns t USING (session_key)"
                " GROUP BY s.session_key ORDER BY last_active_at DESC"
            )
            return [_session(row) for row in rows]

        return await self._call(read)

    async def search(self, text: str, limit: int) -> list[SearchHit]:
        """Return the turns of all sessions that contain a text, the newest first."""
        return await self._call(lambda: search(self._connection(), text, limit))

    async def _write(self, write: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """Do a transaction; one that is not durable does not wait for the disk."""

        def transaction() -> T:
            db = self._connection()
            with room_for(self._path):
                db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                db.execute("BEGIN IMMEDIATE")
                try:
                    result = write(db)
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:  # a full disk may have ended it
                        db.execute("ROLLBACK")
                    raise
            return result

        return await self._call(transaction)

    def _connection(self) -> sqlite3.Connection:
        assert self._file is not None, "open() first"
        return self._file.connection

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _add_session(db: sqlite3.Connection, session_key: str) -> None:
    db.execute(
        "INSERT OR IGNORE INTO sessions (session_key, created_at) VALUES (?, ?)",
        (session_key, time.time()),
    )


def _load(db: sqlite3.Connection, session_key: str) -> SessionState:
    session = db.execute(
        "SELECT inference FROM sessions WHERE session_key = ?", (session_key,)
    ).fetchone()
    if session is None:
        return SessionState(messages=[], upstream=None)
    rows = db.execute(
        "SELECT messages FROM turns WHERE session_key = ? ORDER BY turn_id", (session_key,)
    )
    messages = [message for (text,) in rows for message in json.loads(text)]
    return SessionState(messages=messages, upstream=_upstream(session))


def _upstream(session: sqlite3.Row) -> Upstream | None:
    text = session["inference"]
    return Upstream.model_validate_json(text) if text else None


def _session(row: sqlite3.Row) -> ConversationInfo:
    upstream = _upstream(row)
    return ConversationInfo(
        session_key=row["session_key"],
        created_at=row["created_at"],
        last_active_at=row["last_active_at"],
        num_turns=row["num_turns"],
        inf_base_url=upstream.base_url if upstream else None,
    )


def _turn(row: sqlite3.Row) -> TurnRow:
    return TurnRow(
        run_id=row["run_id"],
        messages=json.loads(row["messages"]),
        summary=row["summary"],
        metadata=json.loads(row["metadata"]),
        interrupted=bool(row["interrupted"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
    )


def _dumps(value: object) -> str:
    # Lone surrogates, which a model's tool call may hold, stay escaped: SQLite takes only UTF-8.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
