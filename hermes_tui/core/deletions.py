"""Deleting sessions, with some seconds in which that can be taken back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hermes_tui.core.changes import RowsChanged
from hermes_tui.core.context import ViewContext

UNDO_S = 6.0
"""Seconds in which a deleted session can be brought back; until then the stack keeps it."""


class Deletions:
    """Sessions that are hidden, and forgotten by the stack a little later.

    Args:
        context: the stack, and the state whose sessions are hidden.
    """

    def __init__(self, context: ViewContext) -> None:
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier
        self._wake = asyncio.Event()

    def refusal(self, session_id: str) -> str:
        """Return why a session can't be deleted now; empty when it can."""
        if session_id not in self._state.sessions:
            return "no session is marked: there is nothing to delete"
        if self._state.running_turn(session_id):
            return "the agent is replying in it: interrupt it first"
        waiting = [r for r in self._state.episodes_of(session_id) if r.state in _IN_USE]
        return "a score of it waits to be trained: take it back, or wait" if waiting else ""

    def delete(self, session_id: str) -> None:
        """Hide a session, and have it forgotten after ``UNDO_S``. There is no ``refusal``."""
        self._state.deleted[session_id] = asyncio.get_running_loop().time() + UNDO_S
        self._notifier.notify(RowsChanged())
        self._wake.set()

    def restore(self) -> str:
        """Bring back what was deleted last; return its id, empty when it is too late."""
        if not self._state.deleted:
            return ""
        session_id, _ = self._state.deleted.popitem()
        self._notifier.notify(RowsChanged())
        return session_id

    async def watch(self) -> None:
        """Have each forgotten when its time has come, until cancelled."""
        while True:
            now = asyncio.get_running_loop().time()
            for session_id, at in list(self._state.deleted.items()):
                if at <= now:
                    await self._forget(session_id)
            nearest = min(self._state.deleted.values(), default=None)
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if nearest is None else max(nearest - now, 0.0)):
                    await self._wake.wait()

    async def finish(self) -> None:
        """Have all of them forgotten now: the view leaves."""
        for session_id in list(self._state.deleted):
            await self._forget(session_id)

    async def _forget(self, session_id: str) -> None:
        if await self._notifier.attempt(self._backend.delete_session(session_id)):
            for rows in (self._state.sessions, self._state.episodes, self._state.turns):
                rows.pop(session_id, None)
        self._state.deleted.pop(session_id, None)  # what the stack kept is shown again
        self._notifier.notify(RowsChanged())


_IN_USE = ("scored", "claimed")
"""An episode in one of these states is needed by a step."""
