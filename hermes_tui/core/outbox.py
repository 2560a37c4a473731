"""Messages that were typed while the agent speaks: each goes when the turn before it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hermes_tui.core.changes import Change, QueueChanged, QueuedMessage, TurnEnded
from hermes_tui.core.context import ViewContext


class Outbox:
    """The queued messages of each session, in order.

    A message goes when its session's turn has completed or was interrupted. After a turn that
    failed the rest stays, until the person sends something or has them sent: ``release``.

    Args:
        context: the sessions and their turns.
        send: sends a message in a session; returns when its turn has ended.
    """

    def __init__(self, context: ViewContext, send: Callable[[str, str], Awaitable[bool]]) -> None:
        self._state = context.state
        self._notifier = context.notifier
        self._send = send
        self._queues: dict[str, list[QueuedMessage]] = {}
        self._held: set[str] = set()
        """Sessions whose last turn failed."""
        self._num_messages = 0
        self._wake = asyncio.Event()
        context.notifier.listen(self._on_change)

    def of(self, session_id: str) -> tuple[QueuedMessage, ...]:
        """Return what waits in a session, the next one first."""
        return tuple(self._queues.get(session_id, ()))

    def is_held(self, session_id: str) -> bool:
        """Return whether what waits stays until ``release``, since the last turn failed."""
        return session_id in self._held

    def put(self, session_id: str, text: str) -> QueuedMessage:
        """Queue a message behind those that wait."""
        self._num_messages += 1
        message = QueuedMessage(message_id=f"queued-{self._num_messages}", text=text)
        self._queues.setdefault(session_id, []).append(message)
        self._changed()
        return message

    def edit(self, message_id: str, text: str) -> bool:
        """Change a message; return whether it still waited."""
        for message in (m for queue in self._queues.values() for m in queue):
            if message.message_id == message_id:
                message.text = text
                self._changed()
                return True
        return False

    def remove(self, message_id: str) -> str:
        """Take a message out of the queue; return its text, empty when it has gone already."""
        for queue in self._queues.values():
            for message in queue:
                if message.message_id == message_id:
                    queue.remove(message)
                    self._changed()
                    return message.text
        return ""

    def hold(self, session_id: str) -> None:
        """Keep what waits until ``release``."""
        self._held.add(session_id)
        self._changed()

    def release(self, session_id: str) -> None:
        """Let what waits after a failed turn go."""
        self._held.discard(session_id)
        self._changed()

    def move(self, session_id: str) -> None:
        """Give what waits in the session that was not started yet to the one that was."""
        if waiting := self._queues.pop("", None):
            self._queues.setdefault(session_id, []).extend(waiting)
            self._changed()

    async def watch(self) -> None:
        """Send each message when its time has come, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for session_id in [key for key, queue in self._queues.items() if queue]:
                    if not self._waits(session_id):
                        message = self._queues[session_id].pop(0)
                        self._notifier.notify(QueueChanged(sent=message))
                        tasks.create_task(self._deliver(session_id, message))
                        # The turn begins in that task: the rest waits for it.
                        await asyncio.sleep(0)
                self._wake.clear()
                await self._wake.wait()

    def _waits(self, session_id: str) -> bool:
        session = self._state.sessions.get(session_id)
        ended = session is not None and session.ended
        return ended or session_id in self._held or bool(self._state.running_turn(session_id))

    async def _deliver(self, session_id: str, message: QueuedMessage) -> None:
        if not await self._send(session_id, message.text):
            self._queues.setdefault(session_id, []).insert(0, message)
            self.hold(session_id)

    def _on_change(self, change: Change) -> None:
        if isinstance(change, TurnEnded):
            turn = change.turn
            if turn.state == "failed" and self.of(turn.session_id):
                self.hold(turn.session_id)
            self._wake.set()

    def _changed(self) -> None:
        self._notifier.notify(QueueChanged())
        self._wake.set()
