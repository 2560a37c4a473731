"""Going on from an earlier turn in a session of its own; the session that is left stays."""

from __future__ import annotations

from hermes_tui.core.changes import ChatTurn, RowsChanged
from hermes_tui.core.context import ViewContext
from hermes_tui.core.models import SessionRow
from hermes_tui.core.turn_history import TurnHistory


class Branches:
    """Starts branches of sessions.

    Args:
        context: the stack, and where the new sessions go.
        history: reads the turns that a branch begins with.
    """

    def __init__(self, context: ViewContext, history: TurnHistory) -> None:
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier
        self._history = history

    def last_turn(self, session_id: str) -> ChatTurn | None:
        """Return the turn that a retry or an edit is about; None for none, or while it runs."""
        turn = next(reversed(self._state.turns.get(session_id, [])), None)
        return None if turn is None or turn.state == "running" else turn

    async def before(self, turn: ChatTurn, *, compared: bool = False) -> SessionRow:
        """Start a session with the conversation up to a turn, without it.

        Args:
            turn: the turn; its session stays as it is.
            compared: whether its reply is judged against the one in the new session.

        Raises: HermesTuiError: it could not be started.
        """
        session = self._state.sessions[turn.session_id]
        beside = turn.episode_id if compared else ""
        row = await self._backend.start_branch(session, until=turn.started_at, beside=beside)
        self._state.sessions[row.session_id] = row
        await self._history.read_session(row.session_id)
        self._notifier.notify(RowsChanged())
        return row
