"""What the parts of the store share: the database, and transactions that also append events."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import Event
from hermes_tui_training.store.database import Database, to_json
from hermes_tui_training.store.event_feed import Feed
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
    """One transaction.

    Args:
        connection: in the transaction.
        at: when it began, seconds since the epoch.
    """

    def __init__(self, connection: sqlite3.Connection, at: float) -> None:
        self.connection = connection
        self.at = at
        self.events: list[Event] = []
        """Events that it appended; subscribers get them once it is committed."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run a statement."""
        return self.connection.execute(sql, parameters)

    def event(self, kind: EventKind, payload: Mapping[str, Any]) -> None:
        """Append an event."""
        cursor = self.execute(
            "INSERT INTO events (kind, payload, at) VALUES (?, ?, ?)",
            (kind, to_json(payload), self.at),
        )
        event_id = cursor.lastrowid
        assert event_id is not None
        if event_id % _PRUNE_EVERY == 0:
            self.execute("DELETE FROM events WHERE event_id <= ?", (event_id - EVENTS_KEPT,))
        event = Event(kind=kind, payload=dict(payload), at=self.at, event_id=event_id)
        self.events.append(event)

    def episode_row(self, episode_id: str) -> sqlite3.Row:
        """Return an episode's row.

        Raises: UnknownIdError.
        """
        row = self.execute("SELECT * FROM episodes WHERE episode_id = ?", (episode_id,)).fetchone()
        if row is None:
            raise UnknownIdError("there is no such episode")
        assert isinstance(row, sqlite3.Row)
        return row

    def set_episode(self, episode_id: str, kind: EventKind, **columns: Any) -> None:
        """Change columns of an episode, and append the event that says so."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        self.execute(
            f"UPDATE episodes SET {assignments} WHERE episode_id = ?",  # noqa: S608  # our names
            (*columns.values(), episode_id),
        )
        self.event(kind, episode_payload(self.episode_row(episode_id)))

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a JSON value under a name."""
        self.execute(
            "INSERT INTO meta (key, value) VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, to_json(value)),
        )


class Transactions:
    """The database file and the live feed of its events; the parts of the store share it."""

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], float] = time.time,
        read_only: bool = False,
        unscored_reward: float | None = None,
    ) -> None:
        """Open or make the file.

        Args:
            path: ``trajectories.db`` of the run directory.
            now: seconds since the epoch.
            read_only: whether to change nothing; its owner may be at work.
            unscored_reward: what an episode gets whose session ends before anybody judged it; None
                leaves it without a reward.

        Raises: ConfigError: the file cannot be opened.
        """
        self.database = Database(path, read_only=read_only)
        """For reading; what changes goes through ``write``."""
        self.feed = Feed()
        """Sends events to subscribers."""
        self.now = now
        """Seconds since the epoch."""
        self.unscored_reward = unscored_reward
        """Reward of episodes whose session ended before anybody judged them; None for none."""

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Writer]:
        """Open a transaction; it is undone when the block raises.

        Args:
            durable: whether it survives the death of the machine, too, and not only the process's.
        """
        # Publishing under the lock keeps subscribers' order that of the event ids.
        with self.database.exclusive():
            with self.database.transaction(durable=durable) as connection:
                writer = Writer(connection, self.now())
                yield writer
            self.feed.publish(writer.events)
