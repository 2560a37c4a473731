"""What happens to the stack, in order: kept for a while, and read by any number of followers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

from hermes_tui.core.control_api import ControlEvent, EventsMissed

CAPACITY = 2000
"""Events that are kept for views that come late or were away."""


class EventLog:
    """An in-memory log of events with positions that only grow, from 1."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._events: deque[ControlEvent] = deque(maxlen=capacity)
        self._last_id = 0
        self._changed = asyncio.Event()
        self._closed = False

    def emit(self, event: ControlEvent) -> None:
        """Append an event with its ``id`` and ``at``, and wake every follower."""
        self._last_id += 1
        self._events.append(event.model_copy(update={"id": self._last_id, "at": time.time()}))
        self._wake()

    def close(self) -> None:
        """End every follower once it has seen everything."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, after: int = 0) -> AsyncIterator[ControlEvent]:
        """Yield every event after a position, then each new one, until the log is closed.

        A position that is not reached yet is another supervisor's: then all events are yielded.
        ``EventsMissed`` stands for the events that are no longer kept.
        """
        if after > self._last_id:
            after = 0
        while True:
            changed = self._changed
            oldest = self._events[0].id if self._events else self._last_id + 1
            if after < oldest - 1:
                yield EventsMissed(count=oldest - 1 - after, id=oldest - 1)
                after = oldest - 1
            for event in [event for event in self._events if event.id > after]:
                after = event.id
                yield event
            if after < self._last_id:
                continue
            if self._closed:
                return
            await changed.wait()
