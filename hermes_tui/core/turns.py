"""The turns in flight, whichever view sent them: what they say, and what they ask."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from hermes_tui.core.backend import Backend
from hermes_tui.core.changes import (
    ChatTurn,
    PendingApproval,
    RowsChanged,
    StackEvent,
    ToolPart,
    TurnChanged,
    TurnsLoaded,
    TurnStatus,
)
from hermes_tui.core.models import SessionRow
from hermes_tui.core.sanitize import exposed
from hermes_tui.core.sync import REFRESH_S, RETRY_S, Follower
from hermes_tui_common.errors import ApiError, HermesTuiError, RefusedError, ServiceError
from hermes_tui_services.api import events as updates

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""Without a trainer nothing tells that a turn began elsewhere: it is looked for this often."""

MAX_TRIES = 15
"""A turn to which the way broke is joined again this often, ``RETRY_S`` apart: a process that was
killed is back within seconds."""

_GONE = (404, 410)
"""HTTP statuses that say that nobody waits for an answer any more."""


class Turns(Follower):
    """Runs the turns of this view, and joins those that another one sent.

    Args:
        backend: the stack.
        clock: seconds since the epoch.
    """

    def __init__(self, backend: Backend, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(backend, clock=clock)
        self._num_turns = 0
        self._look = asyncio.Event()
        self._look.set()
        self._joining: set[str] = set()
        self._strangers: set[str] = set()
        """Sessions with a turn in flight that the trainer does not know."""

    # Learning of turns ---------------------------------------------------------------------

    async def watch(self) -> None:
        """Follow the stack's events and the turns of all views until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().watch())
            tasks.create_task(self._join_turns(tasks))

    async def _on_learning(self, event: StackEvent) -> None:
        await super()._on_learning(event)
        session_id = str(event.data.get("session_id") or "")
        if event.kind == "completion.started" and not self.state.running_turn(session_id):
            self._look.set()

    def _on_missed(self) -> None:
        super()._on_missed()
        self._look.set()

    async def _join_turns(self, tasks: asyncio.TaskGroup) -> None:
        """Join the turns that run elsewhere, whenever there may be some."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self.state.info.training else LOOK_S):
                    await self._look.wait()
            self._look.clear()
            try:
                for session_id, run_id in (await self._unfollowed()).items():
                    self._joining.add(run_id)
                    tasks.create_task(self._join(session_id, run_id))
                await asyncio.sleep(REFRESH_S)  # completions begin in bursts
            except HermesTuiError as error:
                logger.info("turns in flight are not known error=%s", error)
                await asyncio.sleep(RETRY_S)
                self._look.set()

    async def _unfollowed(self) -> dict[str, str]:
        """Return the run of each turn in flight that this view does not follow, by session id."""
        running = await self.backend.running()
        before = self.state.sessions
        if not self.state.info.training:
            await self._look_at_sessions(before)
        elif running.keys() - before.keys() - self._strangers:
            await self._read_sessions()
        self._strangers = running.keys() - self.state.sessions.keys()
        return {
            session_id: run_id
            for session_id, run_id in running.items()
            if session_id not in self._strangers and not self._follows(session_id, run_id)
        }

    async def _look_at_sessions(self, before: dict[str, SessionRow]) -> None:
        """Without a trainer: see what other views started, closed or said, however short it was."""
        await self._read_sessions()
        for session_id, row in list(self.state.sessions.items()):
            wanted = session_id == self.state.selected or not self.state.turns.get(session_id)
            known = before[session_id].num_turns if session_id in before else 0
            if wanted and row.num_turns != known:
                for turn in await self._read_turns(session_id):
                    self._tell(TurnChanged(turn=turn))
        if self.state.sessions != before:
            self._tell(RowsChanged())

    def _follows(self, session_id: str, run_id: str) -> bool:
        """Return whether a run is followed here; of one that was just sent the id is not known."""
        turns = self.state.turns.get(session_id, ())
        sending = any(turn.state == "running" and not turn.run_id for turn in turns)
        return sending or run_id in self._joining or any(turn.run_id == run_id for turn in turns)

    async def _join(self, session_id: str, run_id: str) -> None:
        """Follow a turn that another view sent."""
        stream = self.backend.join(session_id)
        try:
            started = await anext(stream)
        except (HermesTuiError, StopAsyncIteration) as error:
            # It is over by now; or the service is out of reach, and is asked again after a look.
            logger.info("turn not joined session=%s run=%s cause=%s", session_id, run_id, error)
            if not isinstance(error, RefusedError):
                self._look.set()
            return
        finally:
            self._joining.discard(run_id)
        assert isinstance(started, updates.TurnStarted)
        await self._follow_turn(self._joined(session_id, started), stream)

    def _joined(self, session_id: str, started: updates.TurnStarted) -> ChatTurn:
        turn = self._new_turn(session_id, started.message)
        turn.run_id, turn.source = started.run_id, "joined"
        turn.started_at = started.started_at or turn.started_at
        self._put(turn)
        return turn

    # Running them --------------------------------------------------------------------------

    def begin_turn(self, session_id: str, text: str) -> ChatTurn:
        """Add a turn to a session; ``run_turn`` runs it."""
        turn = self._new_turn(session_id, text)
        self._put(turn)
        return turn

    def _new_turn(self, session_id: str, text: str) -> ChatTurn:
        self._num_turns += 1
        return ChatTurn(
            turn_id=f"turn-{self._num_turns}",
            session_id=session_id,
            user_text=text,
            started_at=self.clock(),
        )

    def _put(self, turn: ChatTurn) -> None:
        at_the_end = self.state.put_turn(turn)
        self._tell(
            TurnChanged(turn=turn) if at_the_end else TurnsLoaded(session_id=turn.session_id)
        )
        self._tell(RowsChanged())

    async def run_turn(self, turn: ChatTurn) -> None:
        """Run a turn that was begun; returns when it has ended, however it did."""
        await self._follow_turn(turn, self.backend.turn(turn.session_id, turn.user_text))

    async def _follow_turn(self, turn: ChatTurn, stream: AsyncIterator[updates.TurnEvent]) -> None:
        try:
            await self._hear(turn, stream)
        except HermesTuiError as error:
            self._end(turn, "failed", str(error))
        except asyncio.CancelledError:
            turn.state = "interrupted"
            raise
        if turn.state == "running":
            self._end(turn, "failed", "the answer broke off without an end")
        self._look.set()  # the session's next one may run by now
        if self.state.info.training:
            await self.attempt(self._after_turn(turn))

    async def _hear(self, turn: ChatTurn, stream: AsyncIterator[updates.TurnEvent]) -> None:
        """Take what a turn tells to its end; where the way to it breaks, join it again.

        Raises: HermesTuiError: it was refused, is over, or was out of reach for too long.
        """
        num_tries = 0
        while True:
            known, turn.num_updates = turn.num_updates, 0
            try:
                async for update in stream:
                    num_tries = 0
                    self._on_update(turn, update, known=known)
                return
            except RefusedError as error:
                if not turn.run_id:
                    raise
                raise ServiceError("the way to it broke, and it ended meanwhile") from error
            except HermesTuiError as error:
                num_tries += 1
                if not turn.run_id or num_tries > MAX_TRIES:
                    raise
                logger.info("turn is joined again run=%s cause=%s", turn.run_id, error)
            turn.num_updates = max(turn.num_updates, known)
            await asyncio.sleep(RETRY_S)
            stream = self.backend.join(turn.session_id)

    async def _after_turn(self, turn: ChatTurn) -> None:
        await self.reread(turn.session_id)
        if latest := self.state.latest(turn.session_id):
            await self._load(latest.episode_id)

    def _on_update(self, turn: ChatTurn, update: updates.TurnEvent, *, known: int) -> None:
        match update:
            case updates.TurnStarted(run_id=run_id):
                if turn.run_id not in ("", run_id):
                    raise RefusedError(ApiError(404, "another turn runs by now"))
                turn.run_id = run_id
                self._withdraw(turn)  # what still waits for an answer is told again
                self._look.set()  # until it had its name, another one of the session was left alone
            case updates.ApprovalRequested():
                self._ask(turn, update)
            case updates.ApprovalAnswered():
                self._on_answer(update)
            case updates.TurnCompleted(usage=usage):
                turn.num_tokens = usage.get("output_tokens", 0) or turn.num_tokens
                self._end(turn, "completed")
            case updates.TurnFailed() if update.interrupted:
                self._end(turn, "interrupted")
            case updates.TurnFailed(message=message):
                self._end(turn, "failed", message)
            case _:
                turn.num_updates += 1
                if turn.num_updates > known:
                    _add(turn, update)
        self._tell(TurnChanged(turn=turn))

    def _end(self, turn: ChatTurn, state: TurnStatus, error: str = "") -> None:
        """Note that a turn is over; what it asked goes with it."""
        turn.state, turn.error = state, error
        turn.ended_at = self.clock()
        turn.seconds = turn.seconds or max(turn.ended_at - turn.started_at, 0.0)
        self._withdraw(turn)
        self._tell(TurnChanged(turn=turn))
        self._tell(RowsChanged())

    # What the agent asks -------------------------------------------------------------------

    def _ask(self, turn: ChatTurn, asked: updates.ApprovalRequested) -> None:
        request = PendingApproval(
            session_id=turn.session_id,
            approval_id=asked.approval_id,
            question=exposed("\n\n".join(filter(None, (asked.description, asked.command)))),
            choices=asked.choices,
            free=asked.kind == "clarify" or not asked.choices,
            expires_at=asked.expires_at,
        )
        self.state.pending_approvals[request.approval_id] = request
        self._tell(request)

    def _withdraw(self, turn: ChatTurn) -> None:
        """Drop what a turn asked."""
        for ask in list(self.state.pending_approvals.values()):
            if ask.session_id == turn.session_id:
                del self.state.pending_approvals[ask.approval_id]

    def _on_answer(self, answered: updates.ApprovalAnswered) -> None:
        """Drop a question that another view answered; one that this view answered is gone."""
        if self.state.pending_approvals.pop(answered.approval_id, None):
            self.say(f"answered in another view: {answered.choice}")
            self._tell(RowsChanged())

    def drop_expired(self) -> None:
        """Drop the questions whose time has run out: the agent takes silence for a no."""
        now = self.clock()
        for ask in list(self.state.pending_approvals.values()):
            if ask.expires_at is not None and ask.expires_at <= now:
                del self.state.pending_approvals[ask.approval_id]
                self.say("nobody answered the agent in time: that is a no", "warning")
                self._tell(RowsChanged())

    async def approve(self, request: PendingApproval, choice: str) -> None:
        """Answer what the agent asked; it stays open when the answer did not get there."""
        self.state.pending_approvals.pop(request.approval_id, None)
        self._tell(RowsChanged())
        try:
            await self.backend.approve(request.session_id, request.approval_id, choice)
        except HermesTuiError as error:
            late = isinstance(error, RefusedError) and error.status in _GONE
            self.say(str(error), "warning" if late else "error")
            if not late and self.state.running_turn(request.session_id):
                self.state.pending_approvals[request.approval_id] = request
                self._tell(request)


def _add(turn: ChatTurn, update: updates.TurnEvent) -> None:
    """Add what the agent said or did to its turn."""
    match update:
        case updates.TextArrived(text=text):
            turn.add_text(text)
        case updates.ReasoningArrived(text=text):
            turn.add_thought(text)
        case updates.ToolCalled(call_id=call_id, name=name, arguments=arguments):
            turn.parts.append(ToolPart(call_id=call_id, name=name, arguments=arguments))
        case updates.ToolReturned(call_id=call_id, output=output):
            for part in turn.parts:
                if isinstance(part, ToolPart) and part.call_id == call_id:
                    part.result = output
