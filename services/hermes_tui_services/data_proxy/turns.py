"""One turn in the data proxy's memory: its request, its events, and who follows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from hermes_tui_services.api.events import (
    ApprovalAnswered,
    ApprovalRequested,
    TextArrived,
    ToolCalled,
    ToolReturned,
    TurnCompleted,
    TurnEnd,
    TurnEvent,
    TurnStarted,
)
from hermes_tui_services.api.protocol import (
    QueueMode,
    TurnRequest,
)
from hermes_tui_services.data_proxy.store import TurnRow


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """A turn that waits, runs or is over. Any number of readers follow it, from its start."""

    session_key: str
    request: TurnRequest
    """What its sender asked for."""
    collected: list[TurnRequest] = field(default_factory=list)
    """Later requests whose messages this turn takes too."""
    events: list[TurnEvent] = field(default_factory=list)
    interrupted: bool = False
    """Whether somebody asked to stop it."""
    started_at: float = field(default_factory=time.time)
    running_since: float = 0.0
    """When it left the queue, Unix seconds; 0.0 while it waits."""
    followers: int = 0
    reader: asyncio.Task[TurnEnd] | None = None
    """Reads the worker's events while the turn runs."""
    _wakeups: set[asyncio.Event] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.publish(TurnStarted(run_id=self.run_id))

    @classmethod
    def stored(cls, session_key: str, row: TurnRow) -> Turn:
        """Return a turn that is over; its events are made from what is stored."""
        request = TurnRequest(message=row.messages[0]["content"], run_id=row.run_id)
        turn = cls(session_key=session_key, request=request)
        for event in _events_of(row):
            turn.publish(event)
        return turn

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self.request.run_id

    @property
    def message(self) -> str:
        """The message for the agent: the sender's, then the collected ones."""
        return "\n\n".join(request.message for request in (self.request, *self.collected))

    @property
    def idempotency_keys(self) -> tuple[str, ...]:
        """The keys of all requests that this turn answers."""
        requests = (self.request, *self.collected)
        return tuple(r.idempotency_key for r in requests if r.idempotency_key)

    @property
    def background(self) -> bool:
        """Whether it goes on when all its readers leave."""
        return any(request.background for request in (self.request, *self.collected))

    @property
    def over(self) -> bool:
        """Whether its last event is there."""
        return bool(self.events) and isinstance(self.events[-1], TurnEnd)

    def collects(self, request: TurnRequest) -> bool:
        """Take the message of another request if this turn, which waits, can answer both; return
        whether it did. The readers of that request follow this turn.
        """
        own = self.request
        fits = (
            own.queue_mode is request.queue_mode is QueueMode.COLLECT
            and own.history is request.history is None
            and own.metadata == request.metadata
            and request.upstream in (None, own.upstream)
            and request.model in ("", own.model)
        )
        if fits:
            self.collected.append(request)
        return fits

    def publish(self, event: TurnEvent) -> None:
        """Add an event."""
        self.events.append(event)
        for wakeup in self._wakeups:
            wakeup.set()

    async def follow(self) -> AsyncGenerator[list[TurnEvent], None]:
        """Yield all events so far, then the others as they come, to the last."""
        wakeup = asyncio.Event()
        self._wakeups.add(wakeup)
        seen = 0
        try:
            while True:
                wakeup.clear()
                batch, seen = self.events[seen:], len(self.events)
                if batch:
                    yield batch
                    if isinstance(batch[-1], TurnEnd):
                        return
                await wakeup.wait()
        finally:
            self._wakeups.discard(wakeup)

    async def join(self) -> AsyncGenerator[list[TurnEvent], None]:
        """As ``follow``, for a reader who did not send the turn: the first event carries the user's
        message, and approval requests that no longer wait are left out.
        """
        started = TurnStarted(
            run_id=self.run_id, message=self.message, started_at=self.running_since
        )
        async with aclosing(self.follow()) as batches:
            _, *others = await anext(batches)
            yield [started, *_without_settled(others)]
            async for batch in batches:
                yield batch

    async def wait(self) -> None:
        """Return once it is over."""
        async for _ in self.follow():
            pass


def _without_settled(events: Iterable[TurnEvent]) -> list[TurnEvent]:
    """Return the events without the approval requests that were answered or have expired."""
    events = list(events)
    answered = {event.approval_id for event in events if isinstance(event, ApprovalAnswered)}
    now = time.time()

    def settled(event: TurnEvent) -> bool:
        if isinstance(event, ApprovalRequested):
            expired = event.expires_at is not None and event.expires_at <= now
            return expired or event.approval_id in answered
        return isinstance(event, ApprovalAnswered)

    return [event for event in events if not settled(event)]


def _events_of(row: TurnRow) -> Iterator[TurnEvent]:
    *earlier, _ = [m.get("content") or "" for m in row.messages if m["role"] == "assistant"] or [""]
    # The reply of an agent that streams may hold all that it said before its calls, too.
    repeated = "".join(row.summary.split()).startswith("".join("".join(earlier).split()))
    skipped, gap = len(earlier) if repeated else 0, ""
    for message in row.messages[1:]:
        if message["role"] == "assistant":
            text = message.get("content") or ""
            if text and skipped <= 0:
                yield TextArrived(text=gap + text)
                gap = "\n\n"
            skipped -= 1
            for call in message.get("tool_calls", ()):
                function = call["function"]
                yield ToolCalled(
                    call_id=call["id"], name=function["name"], arguments=function["arguments"]
                )
        elif message["role"] == "tool":
            yield ToolReturned(
                call_id=message["tool_call_id"],
                name=message.get("name", ""),
                output=message["content"],
            )
    yield TurnCompleted(text=row.summary, metadata=row.metadata)
