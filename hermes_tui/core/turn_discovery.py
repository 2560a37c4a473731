"""Finding the turns that other views sent."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from hermes_tui.core.changes import RowsChanged, TurnChanged
from hermes_tui.core.context import RETRY_S, ViewContext
from hermes_tui.core.models import SessionRow
from hermes_tui.core.row_reader import RowReader
from hermes_tui.core.turn_history import TurnHistory
from hermes_tui.core.turns import TurnRunner
from hermes_tui_common.errors import HermesTuiError, RefusedError
from hermes_tui_services.api.events import TurnStarted

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""Seconds between two looks without a trainer: then no event reports that a turn began."""

BURST_S = 0.1
"""Pause after a look: completions begin in bursts."""


class TurnDiscovery:
    """Joins every turn in flight that this view does not follow yet.

    Args:
        context: the stack, and where the turns are kept.
        rows: reads the sessions that other views started.
        history: reads turns that began and ended between two looks.
        runner: follows the turns that are found.
    """

    def __init__(
        self, context: ViewContext, rows: RowReader, history: TurnHistory, runner: TurnRunner
    ) -> None:
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier
        self._turns_unknown = context.turns_unknown
        self._rows = rows
        self._history = history
        self._runner = runner
        self._joining: set[str] = set()
        """Runs whose first update has not arrived yet."""
        self._unrecorded: set[str] = set()
        """Sessions with a turn in flight that the trainer does not know."""

    async def watch(self) -> None:
        """Join turns until cancelled."""
        self._turns_unknown.set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self._state.info.training else LOOK_S):
                        await self._turns_unknown.wait()
                self._turns_unknown.clear()
                try:
                    for session_id, run_id in (await self._unfollowed()).items():
                        self._joining.add(run_id)
                        tasks.create_task(self._join(session_id, run_id))
                    await asyncio.sleep(BURST_S)
                except HermesTuiError as error:
                    logger.info("turns in flight are not known error=%s", error)
                    await asyncio.sleep(RETRY_S)
                    self._turns_unknown.set()

    async def _unfollowed(self) -> dict[str, str]:
        """Return the run of each turn in flight that this view does not follow, by session id."""
        running = await self._backend.running()
        before = self._state.sessions
        if not self._state.info.training:
            await self._read_news(before)
        elif running.keys() - before.keys() - self._unrecorded:
            await self._rows.read_sessions()
        self._unrecorded = running.keys() - self._state.sessions.keys()
        return {
            session_id: run_id
            for session_id, run_id in running.items()
            if session_id not in self._unrecorded and not self._is_followed(session_id, run_id)
        }

    async def _read_news(self, before: dict[str, SessionRow]) -> None:
        """Without a trainer: read the sessions, and the turns that were short enough to miss."""
        await self._rows.read_sessions()
        for session_id, row in list(self._state.sessions.items()):
            wanted = session_id == self._state.selected or not self._state.turns.get(session_id)
            num_known = before[session_id].num_turns if session_id in before else 0
            if wanted and row.num_turns != num_known:
                for turn in await self._history.read_session(session_id):
                    self._notifier.notify(TurnChanged(turn=turn))
        if self._state.sessions != before:
            self._notifier.notify(RowsChanged())

    def _is_followed(self, session_id: str, run_id: str) -> bool:
        """Return whether a run is followed; one that this view just sent has no id yet."""
        turns = self._state.turns.get(session_id, ())
        sending = any(turn.state == "running" and not turn.run_id for turn in turns)
        return sending or run_id in self._joining or any(turn.run_id == run_id for turn in turns)

    async def _join(self, session_id: str, run_id: str) -> None:
        try:
            stream = self._backend.join(session_id)
            started = await anext(stream)
        except (HermesTuiError, StopAsyncIteration) as error:
            logger.info("turn not joined session=%s run=%s cause=%s", session_id, run_id, error)
            if not isinstance(error, RefusedError):  # refused: it is over by now
                self._turns_unknown.set()
            return
        finally:
            self._joining.discard(run_id)
        assert isinstance(started, TurnStarted)
        await self._runner.join(session_id, started, stream)
