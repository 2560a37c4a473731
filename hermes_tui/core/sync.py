"""Keeping the view's state true: it follows the stack's events and reads the rows again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from hermes_tui.core.changes import (
    Notice,
    RowsChanged,
    TokensSampled,
    TrainerEvent,
    TurnChanged,
)
from hermes_tui.core.context import RETRY_S, ViewContext
from hermes_tui.core.control_api import ControlEvent, StackStopped, StackStopping
from hermes_tui.core.errors import StackStoppedError
from hermes_tui.core.models import HELD_BY_PERSON, sampled_tokens
from hermes_tui.core.reasons import reason_text
from hermes_tui.core.row_reader import RowReader
from hermes_tui.core.turn_history import TurnHistory
from hermes_tui_common.errors import HermesTuiError
from hermes_tui_training.api.wire import SampledTokens

Event = TypeVar("Event")

logger = logging.getLogger(__name__)

REFRESH_S = 0.1
"""Pause between an event and reading the rows it concerns: events come in bursts."""

BUSY_S = 2.0
"""Seconds between two looks at a trainer that is at work: not every end of a step is an event."""

EPISODE_EVENTS = (
    "completion.started",
    "completion.finished",
    "episode.trained",
    "episode.dropped",
)
"""Events after which an episode's tokens are read again."""

_WARNINGS = {
    "step.failed": "a step failed",
    "step.unmoved": "a step moved nothing",
    "trainer.paused": "training is held",
    "version.failed": "the new version could not be served, the one before serves on",
}

_STEP_ENDS = ("step.finished", "step.failed", "step.unmoved")


class StackSync:
    """Follows the events of the supervisor and the trainer.

    Args:
        context: what is followed, and where it goes.
        rows: reads the rows that an event concerns.
        history: reads the episodes that an event concerns.
    """

    def __init__(self, context: ViewContext, rows: RowReader, history: TurnHistory) -> None:
        self._context = context
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier
        self._rows = rows
        self._history = history
        self._wanted = asyncio.Event()
        self._touched_sessions: set[str] = set()
        self._stale_episodes: set[str] = set()
        self._canaries_stale = False
        self._sessions_stale = False
        self._rows_stale = False

    def request_refresh(self) -> None:
        """Have the rows read again soon."""
        self._wanted.set()

    async def watch(self) -> None:
        """Follow the stack's events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(self._backend.control_events, self._on_control))
            if self._state.info.training:
                self._mark_all_stale()  # between reading the rows and the first event
                tasks.create_task(self._follow(self._backend.learning_events, self._on_learning))
                tasks.create_task(self._refresh_when_wanted())

    async def _follow(
        self,
        stream: Callable[[], AsyncIterator[Event]],
        handle: Callable[[Event], Awaitable[None]],
    ) -> None:
        while True:
            try:
                async for event in stream():
                    if self._state.lost:
                        self._state.lost, self._state.stopped = "", False
                        await self._rows.read_processes()
                    await handle(event)
            except HermesTuiError as error:
                logger.warning("event stream broke error=%s", error)
                self._on_lost(error)
            await asyncio.sleep(RETRY_S)
            self._mark_all_stale()

    def _on_lost(self, error: HermesTuiError) -> None:
        """Say why the stack is gone: the first reason, but that it was stopped replaces another."""
        state = self._state
        stopped = isinstance(error, StackStoppedError)
        if not state.lost or (stopped and not state.stopped):
            state.lost, state.stopped = str(error), stopped
            self._notifier.notify(RowsChanged())

    def _mark_all_stale(self) -> None:
        """Have everything read again: events were missed while no stream was open."""
        self._rows_stale = self._canaries_stale = True
        if self._state.shown:
            self._stale_episodes.add(self._state.shown)
        self._wanted.set()
        self._context.turns_unknown.set()

    async def _on_control(self, event: ControlEvent) -> None:
        if isinstance(event, StackStopping | StackStopped):
            self._on_lost(StackStoppedError())
        else:
            await self._rows.read_processes()

    async def _on_learning(self, event: TrainerEvent) -> None:
        session_id, episode_id = event.session_id, event.episode_id
        if event.sampled is not None:
            self._on_tokens(event.sampled)
            return
        if event.kind == "session.forgotten":
            self._state.forget(session_id)
            self._notifier.notify(RowsChanged())
            return
        if event.kind == "step.started":
            self._state.step_started_at = self._context.clock()
        elif event.kind in _STEP_ENDS:
            self._state.step_started_at = None
            self._stale_episodes.update(event.episode_ids)
            unmoved = event.kind == "step.unmoved"
            self._state.unmoved = reason_text(event.reason) if unmoved else ""
        if event.kind in ("session.ended", "session.renamed", "session.topic_set"):
            self._sessions_stale = True
        if event.kind.startswith("canary."):
            self._canaries_stale = True
        if event.kind in EPISODE_EVENTS:
            self._stale_episodes.add(episode_id)
        self._warn(event.kind, event.reason)
        if event.kind == "completion.started":
            self._on_completion_started(session_id, episode_id, event.num_prompt_tokens)
        if session_id:
            self._touched_sessions.add(session_id)
        self._wanted.set()

    def _warn(self, kind: str, reason: str) -> None:
        """Report what stops training, unless a person holds it."""
        if kind in _WARNINGS and reason not in ("", HELD_BY_PERSON):
            text = f"{_WARNINGS[kind]}: {reason_text(reason)}"
            self._notifier.notify(Notice(text=text, severity="warning"))

    def _on_tokens(self, sampled: SampledTokens) -> None:
        tokens = sampled_tokens(sampled)
        if turn := self._state.running_turn(sampled.session_id):
            turn.sampled(len(tokens), self._context.clock())
            turn.episode_id = sampled.episode_id
            turn.policy_version = tokens[-1].policy_version if tokens else turn.policy_version
            self._notifier.notify(TurnChanged(turn=turn))
        self._notifier.notify(
            TokensSampled(
                session_id=sampled.session_id,
                episode_id=sampled.episode_id,
                completion_id=sampled.completion_id,
                tokens=tokens,
            )
        )

    def _on_completion_started(self, session_id: str, episode_id: str, num_tokens: int) -> None:
        turn = self._state.running_turn(session_id)
        if turn is not None and num_tokens:
            turn.began_reading(num_tokens, self._context.clock())
            self._notifier.notify(TurnChanged(turn=turn))
        if turn is None:  # whoever sent this turn, it was not this view
            self._context.turns_unknown.set()
        if session_id != self._state.selected:
            return
        if turn is not None:
            turn.episode_id = episode_id
        if not self._state.pinned:
            self._state.shown = episode_id

    async def _refresh_when_wanted(self) -> None:
        reported = ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BUSY_S if self._state.trainer.busy else None):
                    await self._wanted.wait()
            await asyncio.sleep(REFRESH_S)
            self._wanted.clear()
            touched, self._touched_sessions = self._touched_sessions, set()
            stale, self._stale_episodes = self._stale_episodes, set()
            try:
                await self._refresh(touched, stale)
                reported = ""
            except HermesTuiError as error:
                if str(error) != reported and not self._state.stopped:  # once, not every try
                    reported = str(error)
                    self._notifier.say(reported, "error")
                self._stale_episodes |= stale
                await asyncio.sleep(RETRY_S)
                self._mark_all_stale()

    async def _refresh(self, touched: set[str], stale: set[str]) -> None:
        """Read what has changed.

        Args:
            touched: ids of sessions whose episodes changed.
            stale: ids of episodes whose completions changed.
        """
        state = self._state
        rows, self._rows_stale = self._rows_stale, False
        sessions, self._sessions_stale = self._sessions_stale, False
        canaries, self._canaries_stale = self._canaries_stale, False
        if rows or sessions or touched - state.sessions.keys():
            await self._rows.read_sessions()
        if rows:
            state.put_episodes(await self._backend.episodes())
        else:
            for session_id in touched & state.sessions.keys():
                state.put_episodes(await self._backend.episodes(session_id))
        last = state.steps[-1].step if state.steps else -1
        state.put_steps(await self._backend.steps(last))
        await self._rows.read_trainer()
        if canaries:
            state.canaries = await self._backend.canaries(state.canary_choice)
        for row in state.episodes_of(state.selected):
            if row.episode_id in stale:
                await self._history.load_episode(row.episode_id)
        self._notifier.notify(RowsChanged())
