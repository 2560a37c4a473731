"""Events: those that are stored, and those that only live subscribers get."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import Event
from hermes_tui_training.store.event_feed import Subscription
from hermes_tui_training.store.transactions import Transactions


class Events:
    """The events of the store; each change of another part appends one in its own transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def add(self, kind: EventKind, payload: Mapping[str, Any]) -> None:
        """Append an event that belongs to no other change."""
        with self._transactions.write() as write:
            write.event(kind, payload)

    def publish_transient(self, kind: EventKind, payload: Mapping[str, Any]) -> None:
        """Tell the subscribers something that is not stored."""
        event = Event(kind=kind, payload=dict(payload), at=self._transactions.now())
        self._transactions.feed.publish([event])

    def stored(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return stored events whose id is above ``after``, oldest first."""
        rows = self._transactions.database.query(
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

    def id_range(self) -> tuple[int, int]:
        """Return the ids of the oldest and the newest stored event; 0, 0 without any."""
        query = "SELECT min(event_id), max(event_id) FROM events"
        row = self._transactions.database.query(query)[0]
        return int(row[0] or 0), int(row[1] or 0)

    @property
    def num_subscribers(self) -> int:
        """How many receive events live."""
        return self._transactions.feed.num_subscriptions

    def subscribe(self) -> AbstractContextManager[Subscription]:
        """Receive events live: ``with events.subscribe() as s: batch, lost = await s.batch()``."""
        return self._transactions.feed.subscribe()
