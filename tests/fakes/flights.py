"""What happens in a made-up stack, as any number of views follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from hermes_tui_services.api.events import (
    ApprovalAnswered,
    TurnEnd,
    TurnEvent,
    TurnStarted,
)

T = TypeVar("T")


class Feed(Generic[T]):
    """Items in order; any number of readers follow them, each from an index of its own."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._grew = asyncio.Event()

    def put(self, one: T) -> None:
        self.items.append(one)
        self._grew.set()
        self._grew = asyncio.Event()

    async def follow(self, index: int = 0) -> AsyncIterator[T]:
        """Yield the items from an index on, then what comes."""
        while True:
            while index < len(self.items):
                index += 1
                yield self.items[index - 1]
            await self._grew.wait()


class Flight:
    """One turn in flight."""

    def __init__(self, run_id: str, text: str, started_at: float) -> None:
        self.started = TurnStarted(run_id=run_id, message=text, started_at=started_at)
        self.updates: Feed[TurnEvent] = Feed()
        self.interrupted = False
        self.task: asyncio.Task[None] | None = None

    async def follow(self, *, joined: bool) -> AsyncIterator[TurnEvent]:
        """Yield the turn from its beginning to its end, as the sender or another one is told it."""
        yield self.started if joined else TurnStarted(run_id=self.started.run_id)
        answered = {u.approval_id for u in self.updates.items if isinstance(u, ApprovalAnswered)}
        async for update in self.updates.follow():
            settled = getattr(update, "approval_id", "") in answered
            if not (joined and settled):
                yield update
            if isinstance(update, TurnEnd):
                return
