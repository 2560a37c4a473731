"""Live events inside the trainer's process.

A subscriber is woken when an event arrives. One that reads too slowly loses events and learns it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hermes_tui_training.api.types import Event

CAPACITY = 4096
"""Events that a subscriber may leave unread; with more it loses all of them and learns it."""


class Subscription:
    """The events since it was opened, in order; belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[Event] = deque()
        self._overflowed = False
        self._ready = asyncio.Event()

    async def batch(self) -> tuple[list[Event], bool]:
        """Wait for events; return them, and whether some before them were lost.

        Lost ones that were stored can be read back with ``Store.events``.
        """
        await self._ready.wait()
        self._ready.clear()
        events, overflowed = list(self._events), self._overflowed
        self._events.clear()
        self._overflowed = False
        return events, overflowed

    def deliver(self, events: Iterable[Event]) -> None:
        """Take events, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._take, tuple(events))
        except RuntimeError:
            return  # the loop is closed, so nobody reads

    def _take(self, events: tuple[Event, ...]) -> None:
        if len(self._events) + len(events) > CAPACITY:
            self._events.clear()
            self._overflowed = True
        self._events.extend(events)
        self._ready.set()


class Feed:
    """Hands events to all subscriptions; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: set[Subscription] = set()

    @property
    def num_subscriptions(self) -> int:
        """How many are subscribed."""
        return len(self._subscriptions)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Receive all events published from now on; call it in a coroutine."""
        subscription = Subscription(asyncio.get_running_loop())
        with self._lock:
            self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            with self._lock:
                self._subscriptions.discard(subscription)

    def publish(self, events: Iterable[Event]) -> None:
        """Hand events to everyone who is subscribed."""
        events = tuple(events)
        if not events:
            return
        with self._lock:
            subscriptions = tuple(self._subscriptions)
        for subscription in subscriptions:
            subscription.deliver(events)
