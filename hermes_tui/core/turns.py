"""The turns that run: what the agent says and does, update by update."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

from hermes_tui.core.approvals import Approvals
from hermes_tui.core.changes import (
    ChatTurn,
    RowsChanged,
    ToolPart,
    TurnChanged,
    TurnEnded,
    TurnsLoaded,
    TurnStatus,
)
from hermes_tui.core.context import RETRY_S, ViewContext
from hermes_tui.core.row_reader import RowReader
from hermes_tui.core.turn_history import TurnHistory
from hermes_tui_common.errors import ApiError, HermesTuiError, RefusedError, ServiceError
from hermes_tui_services.api import events

logger = logging.getLogger(__name__)

MAX_TRIES = 15
"""How often a turn is joined again before it counts as failed: a killed process is back within
seconds."""


Connect = Callable[[], AsyncIterator[events.TurnEvent]]
"""Opens the stream of a turn's updates; raises HermesTuiError like the stream itself."""


class TurnRunner:
    """Runs the turns of this view, and follows those that another view sent.

    Args:
        context: the stack, and where the turns are kept.
        rows: reads a session again after its turn.
        history: reads the episode of a turn that has ended.
        approvals: takes the questions that the agent asks.
    """

    def __init__(
        self, context: ViewContext, rows: RowReader, history: TurnHistory, approvals: Approvals
    ) -> None:
        self._context = context
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier
        self._rows = rows
        self._history = history
        self._approvals = approvals
        self._num_turns = 0

    def begin(self, session_id: str, text: str) -> ChatTurn:
        """Add a turn to a session; ``run`` runs it."""
        turn = self._new_turn(session_id, text)
        self._put(turn)
        return turn

    async def run(self, turn: ChatTurn) -> None:
        """Run a turn that was begun; returns when it has ended, well or not."""
        await self._follow(turn, partial(self._backend.turn, turn.session_id, turn.user_text))

    async def join(
        self,
        session_id: str,
        started: events.TurnStarted,
        stream: AsyncIterator[events.TurnEvent],
    ) -> None:
        """Follow a turn that another view sent; returns when it has ended.

        Args:
            session_id: its session.
            started: its first update.
            stream: the others.
        """
        turn = self._new_turn(session_id, started.message)
        turn.run_id, turn.source = started.run_id, "joined"
        turn.started_at = started.started_at or turn.started_at
        self._put(turn)
        await self._follow(turn, lambda: stream)

    def _new_turn(self, session_id: str, text: str) -> ChatTurn:
        self._num_turns += 1
        return ChatTurn(
            turn_id=f"turn-{self._num_turns}",
            session_id=session_id,
            user_text=text,
            started_at=self._context.clock(),
        )

    def _put(self, turn: ChatTurn) -> None:
        is_appended = self._state.put_turn(turn)
        self._notifier.notify(
            TurnChanged(turn=turn) if is_appended else TurnsLoaded(session_id=turn.session_id)
        )
        self._notifier.notify(RowsChanged())

    async def _follow(self, turn: ChatTurn, connect: Connect) -> None:
        try:
            await self._receive(turn, connect)
        except HermesTuiError as error:
            self._end(turn, "failed", str(error))
        except asyncio.CancelledError:
            turn.state = "interrupted"
            raise
        if turn.state == "running":
            self._end(turn, "failed", "the answer broke off without an end")
        self._context.turns_unknown.set()  # the session's next turn may run by now
        if self._state.info.training:
            await self._notifier.attempt(self._read_ended(turn))
        self._notifier.notify(TurnEnded(turn=turn))

    async def _receive(self, turn: ChatTurn, connect: Connect) -> None:
        """Take a turn's updates to its end; join it again when the connection breaks.

        Raises: HermesTuiError: it was refused, is over, or was out of reach for too long.
        """
        num_tries = 0
        while True:
            known, turn.num_updates = turn.num_updates, 0
            try:
                async for update in connect():
                    num_tries = 0
                    self._on_update(turn, update, known=known)
                return
            except RefusedError as error:
                if not turn.run_id:
                    raise
                raise ServiceError(
                    "the connection to the turn broke, and it has ended since"
                ) from error
            except HermesTuiError as error:
                num_tries += 1
                if not turn.run_id or num_tries > MAX_TRIES:
                    raise
                logger.info("turn is joined again run=%s cause=%s", turn.run_id, error)
            turn.num_updates = max(turn.num_updates, known)
            await asyncio.sleep(RETRY_S)
            connect = partial(self._backend.join, turn.session_id)

    async def _read_ended(self, turn: ChatTurn) -> None:
        await self._rows.read_session(turn.session_id)
        if latest := self._state.latest(turn.session_id):
            await self._history.load_episode(latest.episode_id)

    def _on_update(self, turn: ChatTurn, update: events.TurnEvent, *, known: int) -> None:
        """Take one update.

        Args:
            turn: the turn.
            update: the update; a stream that was joined again begins with the first one.
            known: how many updates the turn has taken before; they are not taken twice.
        """
        match update:
            case events.TurnStarted(run_id=run_id):
                if turn.run_id not in ("", run_id):
                    raise RefusedError(ApiError(404, "another turn runs by now"))
                turn.run_id = run_id
                self._approvals.withdraw(turn.session_id)  # open questions are sent again
                # Until this run had its id, no other turn of its session was looked at.
                self._context.turns_unknown.set()
            case events.ApprovalRequested():
                self._approvals.add(turn.session_id, update)
            case events.ApprovalAnswered():
                self._approvals.on_answered(update)
            case events.TurnCompleted(usage=usage):
                turn.num_tokens = usage.get("output_tokens", 0) or turn.num_tokens
                self._end(turn, "completed")
            case events.TurnFailed() if update.interrupted:
                self._end(turn, "interrupted")
            case events.TurnFailed(message=message):
                self._end(turn, "failed", message)
            case _:
                turn.num_updates += 1
                if turn.num_updates > known:
                    _add(turn, update)
        self._notifier.notify(TurnChanged(turn=turn))

    def _end(self, turn: ChatTurn, state: TurnStatus, error: str = "") -> None:
        turn.state, turn.error, turn.reading = state, error, 0
        turn.ended_at = self._context.clock()
        turn.seconds = turn.seconds or max(turn.ended_at - turn.started_at, 0.0)
        self._approvals.withdraw(turn.session_id)
        self._notifier.notify(TurnChanged(turn=turn))
        self._notifier.notify(RowsChanged())


def _add(turn: ChatTurn, update: events.TurnEvent) -> None:
    """Add what the agent said or did to its turn."""
    match update:
        case events.TextArrived(text=text):
            turn.add_text(text)
        case events.ReasoningArrived(text=text):
            turn.add_thought(text)
        case events.ToolCalled(call_id=call_id, name=name, arguments=arguments):
            turn.parts.append(ToolPart(call_id=call_id, name=name, arguments=arguments))
        case events.ToolReturned(call_id=call_id, output=output, seconds=seconds):
            for part in turn.parts:
                if isinstance(part, ToolPart) and part.call_id == call_id:
                    part.result, part.seconds = output, seconds
