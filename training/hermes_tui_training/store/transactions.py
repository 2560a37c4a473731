"""What the parts of the store share: transactions that also append events, and meta values."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import Event
from hermes_tui_training.store.database import Database, to_json
from hermes_tui_training.store.event_feed import Feed, Subscription
from hermes_tui_training.store.sqlite_rows import episode_payload

EVENTS_KEPT = 20_000
"""Stored events; enough to replay some hours of work to a view that was away."""

_PRUNE_EVERY = 512


class UnknownIdError(TrainingError):
    """The store has no such session, episode or completion."""


class ConflictError(TrainingError):
    """The state of an episode forbids a change; the text says which and why.

    Args:
        passing: whether the same request may succeed a little later.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


def new_id(prefix: str) -> str:
    """Return a new identifier: the prefix and 96 random bits."""
    return prefix + secrets.token_hex(12)


class Writer:
    """One transaction's connection, and the events that it appends."""

    def __init__(self, connection: sqlite3.Connection, at: float) -> None:
        self.connection = connection
        self.at = at
        self.events: list[Event] = []

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self.connection.execute(sql, parameters)

    def event(self, kind: EventKind, payload: dict[str, Any]) -> None:
        cursor = self.execute(
            "INSERT INTO events (kind, payload, at) VALUES (?, ?, ?)",
            (kind, to_json(payload), self.at),
        )
        event_id = cursor.lastrowid
        assert event_id is not None
        if event_id % _PRUNE_EVERY == 0:
            self.execute("DELETE FROM events WHERE event_id <= ?", (event_id - EVENTS_KEPT,))
        self.events.append(Event(kind=kind, payload=payload, at=self.at, event_id=event_id))

    def episode_row(self, episode_id: str) -> sqlite3.Row:
        row = self.execute("SELECT * FROM episodes WHERE episode_id = ?", (episode_id,)).fetchone()
        if row is None:
            raise UnknownIdError(f"there is no episode {episode_id!r}")
        assert isinstance(row, sqlite3.Row)
        return row

    def set_episode(self, episode_id: str, kind: EventKind, **columns: Any) -> None:
        """Change an episode and say so."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        self.execute(
            f"UPDATE episodes SET {assignments} WHERE episode_id = ?",  # noqa: S608  # our names
            (*columns.values(), episode_id),
        )
        self.event(kind, episode_payload(self.episode_row(episode_id)))

    def set_meta(self, key: str, value: Any) -> None:
        self.execute(
            "INSERT INTO meta (key, value) VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, to_json(value)),
        )


class StoreBase:
    """The database file with its events; see ``store.Store``."""

    def __init__(
        self, path: Path, *, now: Callable[[], float] = time.time, read_only: bool = False
    ) -> None:
        """Open or make the file.

        Args:
            path: ``trajectories.db`` of the run directory.
            now: seconds since the epoch.
            read_only: whether to change nothing; its owner may be at work.

        Raises: ConfigError: the file cannot be opened.
        """
        self._database = Database(path, read_only=read_only)
        self._now = now
        self._feed = Feed()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextmanager
    def _write(self, *, durable: bool = True) -> Iterator[Writer]:
        # Publishing under the lock keeps subscribers' order that of the event ids.
        with self._database.exclusive():
            with self._database.transaction(durable=durable) as connection:
                writer = Writer(connection, self._now())
                yield writer
            self._feed.publish(writer.events)

    def get_meta(self, key: str, default: Any = None) -> Any:
        """Return a JSON value that was kept under a name."""
        rows = self._database.query("SELECT value FROM meta WHERE key = ?", (key,))
        return json.loads(rows[0]["value"]) if rows else default

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a JSON value under a name."""
        with self._write() as write:
            write.set_meta(key, value)

    # -- events -----------------------------------------------------------------------------

    def add_event(self, kind: EventKind, payload: dict[str, Any]) -> None:
        """Append an event that belongs to no other change."""
        with self._write() as write:
            write.event(kind, payload)

    def publish_transient(self, kind: EventKind, payload: dict[str, Any]) -> None:
        """Tell the subscribers something that is not stored."""
        self._feed.publish([Event(kind=kind, payload=payload, at=self._now())])

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return stored events whose id is above ``after``, oldest first."""
        rows = self._database.query(
            "SELECT * FROM events WHERE event_id > ? ORDER BY event_id LIMIT ?", (after, limit)
        )
        return [
            Event(
                kind=row["kind"],
                payload=json.loads(row["payload"]),
                at=row["at"],
                event_id=row["event_id"],
            )
            for row in rows
        ]

    def event_range(self) -> tuple[int, int]:
        """Return the ids of the oldest and the newest stored event; 0, 0 without any."""
        row = self._database.query("SELECT min(event_id), max(event_id) FROM events")[0]
        return int(row[0] or 0), int(row[1] or 0)

    @property
    def num_subscribers(self) -> int:
        """How many receive events live."""
        return self._feed.num_subscriptions

    def subscribe(self) -> AbstractContextManager[Subscription]:
        """Receive events live: ``with store.subscribe() as s: events, lost = await s.batch()``."""
        return self._feed.subscribe()
