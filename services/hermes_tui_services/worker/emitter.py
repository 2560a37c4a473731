"""Passes a turn's events from the agent, in any thread, to the answer that streams them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

from hermes_tui_services.api.events import (
    TextArrived,
    ToolCalled,
    ToolReturned,
    TurnEnd,
    TurnEvent,
)


class StreamEmitter:
    """The emitter of one turn; the agent's side may be another thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[TurnEvent] = deque()
        self._wake = asyncio.Event()
        self._wake_asked = False
        self._open_calls: list[tuple[str, str]] = []
        self._called_at: dict[str, float] = {}
        """When each open call was reported, by its id."""

    def push(self, event: TurnEvent) -> None:
        """Add an event; from any thread, in order. Events after the last are dropped."""
        if isinstance(event, ToolCalled):
            self._called_at[event.call_id] = time.monotonic()
        elif isinstance(event, ToolReturned):
            called_at = self._called_at.pop(event.call_id, None)
            if called_at is not None:
                event = replace(event, seconds=time.monotonic() - called_at)
        self._events.append(event)
        # One wake-up for all the events that gather until the loop gets to it.
        if not self._wake_asked:
            self._wake_asked = True
            self._loop.call_soon_threadsafe(self._wake.set)

    async def emit_delta(self, text: str) -> None:
        """Report the next part of the reply."""
        if text:
            self.push(TextArrived(text=text))

    async def emit_tool_call(
        self, name: str, args: str, *, call_id: str | None = None, message_id: str | None = None
    ) -> None:
        """Report a call; one without an id gets one. ``message_id`` is AReaL's, and not needed:
        calls belong together until a result comes.
        """
        call_id = call_id or f"call_{secrets.token_hex(8)}"
        self._open_calls.append((call_id, name))
        self.push(ToolCalled(call_id=call_id, name=name, arguments=args))

    async def emit_tool_result(self, name: str, result: str, *, call_id: str | None = None) -> None:
        """Report a result; without an id it answers the oldest open call of that name."""
        if call_id is None:
            named = [call for call in self._open_calls if call[1] == name]
            call_id = named[0][0] if named else f"call_{secrets.token_hex(8)}"
        self._open_calls = [call for call in self._open_calls if call[0] != call_id]
        self.push(ToolReturned(call_id=call_id, name=name, output=result))

    async def batches(self) -> AsyncIterator[list[TurnEvent]]:
        """Yield the events as they come, those that are there together at once, to the last."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._wake_asked = False
            batch = []
            while self._events:
                batch.append(self._events.popleft())
            if batch:
                yield batch
                if isinstance(batch[-1], TurnEnd):
                    return
