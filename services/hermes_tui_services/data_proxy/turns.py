"""One turn of a conversation, as the data proxy holds it: what it was asked, what happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

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
    ChatMessage,
    Inference,
    QueueMode,
    TurnBody,
    new_run_id,
)
from hermes_tui_services.data_proxy.store import TurnRow


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """A turn that waits, runs or is over. Any number of readers follow it, from its start."""

    session_key: str
    run_id: str
    messages: list[str]
    """The user's messages; several when they were collected."""
    metadata: dict[str, Any] = field(default_factory=dict)
    inference: Inference | None = None
    model: str = ""
    """Model to ask for in this turn, wherever it goes; empty leaves it as it was."""
    queue_mode: QueueMode = QueueMode.FOLLOWUP
    history: list[ChatMessage] | None = None
    """In place of the stored conversation; then nothing is stored."""
    background: bool = False
    once: bool = False
    idempotency_keys: list[str] = field(default_factory=list)
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

    @classmethod
    def of(cls, session_key: str, body: TurnBody) -> Turn:
        """Return a new turn. Raises: ApiError: 400 when the upstream is half given."""
        turn = cls(
            session_key=session_key,
            run_id=body.run_id or new_run_id(),
            messages=[body.message],
            metadata=body.metadata,
            inference=body.inference(),
            model=(body.inf_model or "").strip(),
            queue_mode=body.queue_mode,
            history=body.history,
            background=body.background,
            once=body.once,
            idempotency_keys=[body.idempotency_key] if body.idempotency_key else [],
        )
        turn.publish(TurnStarted(run_id=turn.run_id))
        return turn

    @classmethod
    def stored(cls, session_key: str, row: TurnRow) -> Turn:
        """Return a turn that is over, as its events would have told it."""
        turn = cls(session_key=session_key, run_id=row.run_id, messages=[])
        turn.publish(TurnStarted(run_id=row.run_id))
        for event in _events_of(row):
            turn.publish(event)
        return turn

    @property
    def message(self) -> str:
        """What the agent is asked."""
        return "\n\n".join(self.messages)

    @property
    def over(self) -> bool:
        """Whether its last event is there."""
        return bool(self.events) and isinstance(self.events[-1], TurnEnd)

    def joins(self, other: Turn) -> bool:
        """Return whether the other turn, which waits, can take this one's message."""
        return (
            self.queue_mode is other.queue_mode is QueueMode.COLLECT
            and self.history is other.history is None
            and self.metadata == other.metadata
            and self.inference in (None, other.inference)
            and self.model in ("", other.model)
        )

    def collect(self, other: Turn) -> None:
        """Take the message of another turn; its readers follow this one."""
        self.messages += other.messages
        self.idempotency_keys += other.idempotency_keys
        self.background = self.background or other.background

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
        """Yield what ``follow`` does to a reader who did not send it: what was said comes first,
        and questions that no longer wait are left out.
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
    for message in row.messages[1:]:
        if message["role"] == "assistant":
            yield TextArrived(text=message.get("content") or "")
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
