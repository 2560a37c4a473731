"""What happens to the stack, in order: kept for a while, followed by many."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

CAPACITY = 2000
"""Events that are kept for views that come late or were away."""

Event = dict[str, Any]


class EventLog:
    """An in-memory log of events with positions that only grow, from 1."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self._last_id = 0
        self._changed = asyncio.Event()
        self._closed = False

    def emit(self, kind: str, **fields: Any) -> Event:
        """Append an event and wake every follower; returns it with its ``id`` and ``at``."""
        self._last_id += 1
        event = {"event": kind, **fields, "id": self._last_id, "at": time.time()}
        self._events.append(event)
        self._wake()
        return event

    def close(self) -> None:
        """End every follower once it has seen everything."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield every event past a position, then each new one, until the log is closed.

        A position from another supervisor's life begins anew. Events that are no longer kept are
        announced: ``{"event": "missed", "count": N}``.
        """
        if after > self._last_id:
            after = 0
        while True:
            changed = self._changed
            oldest = self._events[0]["id"] if self._events else self._last_id + 1
            if after < oldest - 1:
                yield {"event": "missed", "count": oldest - 1 - after, "id": oldest - 1}
                after = oldest - 1
            for event in [event for event in self._events if event["id"] > after]:
                after = event["id"]
                yield event
            if after < self._last_id:
                continue
            if self._closed:
                return
            await changed.wait()
