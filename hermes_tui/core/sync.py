"""A view of the stack that stays true: it attaches, follows events and reads the rows again."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from hermes_tui.core.backend import Backend
from hermes_tui.core.changes import (
    Change,
    ChatTurn,
    EpisodeLoaded,
    LogGrew,
    Notice,
    RowsChanged,
    StackEvent,
    TokensSampled,
    TurnChanged,
)
from hermes_tui.core.log_buffer import LogLines
from hermes_tui.core.models import (
    HELD_BY_PERSON,
    CompletionRow,
    EpisodeDetail,
    StartStage,
    sampled_tokens,
)
from hermes_tui.core.recorded_turns import by_turn, kept_turns, measure, recorded_turns
from hermes_tui.core.state import ViewState
from hermes_tui_common.errors import ApiError, HermesTuiError

logger = logging.getLogger(__name__)

REFRESH_S = 0.1
"""Rows are read again this long after the first event that concerns them: events come in bursts."""

BUSY_S = 2.0
"""While the trainer is at work it is looked at this often: not every end of it is an event."""

LOG_TAIL = 1000
"""Lines of a log that are read back when it is opened."""

RETRY_S = 1.0
"""Pause before a broken event stream is opened again."""

HISTORY_EPISODES = 50
"""Episodes of a session whose turns are read back into the chat."""

READ_AGAIN = ("completion.started", "completion.finished", "episode.trained", "episode.dropped")
"""Events after which an episode's tokens say something new."""

NAMED_SESSIONS = 20
"""Sessions whose first words are read back after attaching."""


class Follower:
    """Holds the view's state, keeps it true, and tells its listeners what changed.

    Args:
        backend: the stack.
        clock: seconds since the epoch.
    """

    def __init__(self, backend: Backend, *, clock: Callable[[], float] = time.time) -> None:
        self.state = ViewState()
        self.clock = clock
        self.backend = backend
        self._listeners: list[Callable[[Change], None]] = []
        self._wanted = asyncio.Event()
        self._touched: set[str] = set()
        self._stale_episodes: set[str] = set()
        self._stale_canaries = False
        self._stale_sessions = False
        self._stale_rows = False
        self._read_episodes: set[str] = set()

    # Telling the front end ----------------------------------------------------------------

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Have a function called with every change, in the event loop; it must not block."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """Call a function no longer."""
        self._listeners.remove(listener)

    def _tell(self, change: Change) -> None:
        for listener in list(self._listeners):
            listener(change)

    def say(
        self, text: str, severity: Literal["information", "warning", "error"] = "information"
    ) -> None:
        """Tell the person a sentence."""
        self._tell(Notice(text=text, severity=severity))

    async def attempt(self, doing: Awaitable[object]) -> bool:
        """Await something; an error of the stack becomes a notice. Return whether it went well."""
        try:
            await doing
        except HermesTuiError as error:
            self._tell(Notice(text=str(error), severity="error"))
            return False
        return True

    # Attaching -----------------------------------------------------------------------------

    async def start(self, report: Callable[[StartStage], None]) -> None:
        """Attach to the stack, starting it when none runs, and read what it knows.

        Raises: HermesTuiError: it could not be started.
        """
        self.state.info = await self.backend.start(report)
        await self._read_processes()
        await self._read_sessions()
        if self.state.info.training:
            self.state.put_episodes(await self.backend.episodes())
            self.state.put_steps(await self.backend.steps(-1))
            self.state.trainer = await self.backend.trainer()
            self.state.canaries = await self.backend.canaries()
        self._tell(RowsChanged())

    async def watch(self) -> None:
        """Follow the stack's events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(self.backend.control_events, self._on_control))
            tasks.create_task(self.attempt(self._name_sessions()))
            if self.state.info.training:
                self._on_missed()  # between the reading of the rows and the first event
                tasks.create_task(self._follow(self.backend.learning_events, self._on_learning))
                tasks.create_task(self._refresh_when_wanted())

    async def close(self) -> None:
        """Let go of the stack; it runs on."""
        await self.backend.close()

    async def _follow(
        self,
        stream: Callable[[], AsyncIterator[StackEvent]],
        handle: Callable[[StackEvent], Awaitable[None]],
    ) -> None:
        while True:
            try:
                async for event in stream():
                    if self.state.lost:
                        self.state.lost = ""
                        await self._read_processes()
                    await handle(event)
            except HermesTuiError as error:
                logger.warning("event stream broke error=%s", error)
                if not self.state.lost:
                    self.state.lost = str(error)
                    self._tell(RowsChanged())
            await asyncio.sleep(RETRY_S)
            self._on_missed()

    def _on_missed(self) -> None:
        """Read the rows again: whatever was missed while no stream was open is in them."""
        self._stale_rows = self._stale_canaries = True
        if self.state.shown:
            self._stale_episodes.add(self.state.shown)
        self._wanted.set()

    # Keeping the state true ----------------------------------------------------------------

    async def _on_control(self, _: StackEvent) -> None:
        await self._read_processes()

    async def refresh_processes(self) -> None:
        """Read the processes again: their memory and uptime change without an event."""
        await self.attempt(self._read_processes())

    async def _read_processes(self) -> None:
        rows = await self.backend.processes()
        self.state.processes = {row.name: row for row in rows}
        self._tell(RowsChanged())

    async def _on_learning(self, event: StackEvent) -> None:
        data = event.data
        session_id = str(data.get("session_id") or "")
        episode_id = str(data.get("episode_id") or "")
        if event.kind == "completion.tokens":
            self._on_tokens(event, session_id, episode_id)
            return
        if event.kind == "step.started":
            self.state.step_started_at = self.clock()
        elif event.kind in ("step.finished", "step.failed"):
            self.state.step_started_at = None
            self._stale_episodes.update(data.get("episode_ids") or ())
        if event.kind == "session.forgotten":
            self.state.forget(session_id)
            self._tell(RowsChanged())
            return
        if event.kind == "session.ended":
            self._stale_sessions = True
        if event.kind.startswith("canary."):
            self._stale_canaries = True
        if event.kind in READ_AGAIN:
            self._stale_episodes.add(episode_id)
        self._warn(event.kind, str(data.get("reason") or ""))
        if event.kind == "completion.started":
            self._show_if_new(session_id, episode_id)
        if session_id:
            self._touched.add(session_id)
        self._wanted.set()

    def _warn(self, kind: str, reason: str) -> None:
        """Tell what stops the lesson; that a person holds it is no warning."""
        words = {"step.failed": "a step failed", "trainer.paused": "training is held"}
        if kind in words and reason not in ("", HELD_BY_PERSON):
            self._tell(Notice(text=f"{words[kind]}: {reason}", severity="warning"))

    def _on_tokens(self, event: StackEvent, session_id: str, episode_id: str) -> None:
        tokens = sampled_tokens(event.data)
        if turn := self.state.running_turn(session_id):
            turn.num_tokens += len(tokens)
            turn.episode_id = episode_id
            turn.seconds = max(self.clock() - turn.started_at, 0.0)
            turn.policy_version = tokens[-1].policy_version if tokens else turn.policy_version
            self._tell(TurnChanged(turn=turn))
        self._tell(
            TokensSampled(
                session_id=session_id,
                episode_id=episode_id,
                completion_id=str(event.data.get("completion_id") or ""),
                tokens=tokens,
            )
        )

    def _show_if_new(self, session_id: str, episode_id: str) -> None:
        if session_id != self.state.selected:
            return
        if turn := self.state.running_turn(session_id):
            turn.episode_id = episode_id
        if not self.state.pinned:
            self.state.shown = episode_id

    async def _refresh_when_wanted(self) -> None:
        told = ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BUSY_S if self.state.trainer.busy else None):
                    await self._wanted.wait()
            await asyncio.sleep(REFRESH_S)
            self._wanted.clear()
            touched, self._touched = self._touched, set()
            stale, self._stale_episodes = self._stale_episodes, set()
            try:
                await self._refresh(touched, stale)
                told = ""
            except HermesTuiError as error:
                if str(error) != told:  # once, not with every try
                    told = str(error)
                    self.say(told, "error")
                self._stale_episodes |= stale
                await asyncio.sleep(RETRY_S)
                self._on_missed()

    async def _refresh(self, touched: set[str], stale: set[str]) -> None:
        rows, self._stale_rows = self._stale_rows, False
        sessions, self._stale_sessions = self._stale_sessions, False
        canaries, self._stale_canaries = self._stale_canaries, False
        if rows or sessions or touched - self.state.sessions.keys():
            await self._read_sessions()
        if rows:
            self.state.put_episodes(await self.backend.episodes())
        else:
            for session_id in touched & self.state.sessions.keys():
                self.state.put_episodes(await self.backend.episodes(session_id))
        last = self.state.steps[-1].step if self.state.steps else -1
        self.state.put_steps(await self.backend.steps(last))
        await self._read_trainer()
        if canaries:
            self.state.canaries = await self.backend.canaries()
        for row in self.state.episodes_of(self.state.selected):
            if row.episode_id in stale:
                await self._load(row.episode_id)
        self._tell(RowsChanged())

    async def _read_trainer(self) -> None:
        """Read what the trainer does; of a step that came to nothing nobody may have told."""
        begun = self.state.step_started_at
        self.state.trainer = await self.backend.trainer()
        if not self.state.trainer.busy and self.state.step_started_at == begun:
            self.state.step_started_at = None

    async def _load(self, episode_id: str) -> None:
        detail = await self.backend.episode(episode_id)
        self.state.put_episodes([detail.row])
        self._measure_turns(detail)
        for turn in self._take_turns(detail):
            self._tell(TurnChanged(turn=turn))
        self._tell(EpisodeLoaded(detail=detail))

    def _measure_turns(self, detail: EpisodeDetail) -> None:
        """Give the turns that this view saw happen what was recorded of them."""
        turns = self.state.turns.get(detail.row.session_id, ())
        live = [turn for turn in turns if turn.source != "read"]
        starts = [turn.started_at for turn in live]
        mine: dict[int, list[CompletionRow]] = {}
        for completions in by_turn(detail):
            began_at = completions[0].created_at
            place = bisect_right(starts, began_at) - 1
            if place >= 0 and live[place].ran_at(began_at):
                mine.setdefault(place, []).extend(completions)
        for place, completions in mine.items():
            turn = live[place]
            if turn.state == "running":
                continue
            turn.episode_id = detail.row.episode_id
            measure(turn, completions)
            self._tell(TurnChanged(turn=turn))

    def _take_turns(self, detail: EpisodeDetail) -> list[ChatTurn]:
        """Take the turns that this view did not see happen; return those that are news."""
        self._read_episodes.add(detail.row.episode_id)
        return self.state.put_turns(detail.row.session_id, recorded_turns(detail))

    async def _read_turns(self, session_id: str) -> list[ChatTurn]:
        """Read a session's turns back; return those that are news."""
        news: list[ChatTurn] = []
        if not self.state.info.training:
            past = kept_turns(session_id, await self.backend.past_turns(session_id))
            news += self.state.put_turns(session_id, past)
        for row in self.state.episodes_of(session_id)[-HISTORY_EPISODES:]:
            if row.episode_id not in self._read_episodes:
                news += self._take_turns(await self.backend.episode(row.episode_id))
        return news

    async def _name_sessions(self) -> None:
        """Read how the newest sessions began: that is what they are called."""
        newest = sorted(self.state.sessions.values(), key=lambda row: row.created_at)
        for session in reversed(newest[-NAMED_SESSIONS:]):
            if self.state.turns.get(session.session_id):
                continue
            if not self.state.info.training:
                await self._read_turns(session.session_id)
            elif episodes := self.state.episodes_of(session.session_id):
                self._take_turns(await self.backend.episode(episodes[0].episode_id))
            self._tell(RowsChanged())

    async def _read_sessions(self) -> None:
        rows = {row.session_id: row for row in await self.backend.sessions()}
        known = self.state.sessions
        # A trainer lists its ended sessions too. The agent service forgets one that was closed.
        gone = set() if self.state.info.training else known.keys() - rows.keys()
        ended = {session_id: replace(known[session_id], ended=True) for session_id in gone}
        self.state.sessions = known | ended | rows

    async def reread(self, session_id: str) -> None:
        """Read the sessions again, and one session's episodes."""
        await self._read_sessions()
        if self.state.info.training:
            self.state.put_episodes(await self.backend.episodes(session_id))
        self._tell(RowsChanged())

    # Machine and logs ----------------------------------------------------------------------

    async def refresh_system(self) -> None:
        """Look at the machine and its processes: use, memory and uptime change without an event."""
        await self.attempt(self._read_system())

    async def _read_system(self) -> None:
        self.state.samples.append(await self.backend.system())
        await self._read_processes()

    async def follow_log(self, process: str) -> None:
        """Read a process's log, and each new line of it, until cancelled."""
        if self.state.log.process != process:
            self.state.log = LogLines(process=process)
        while True:
            try:
                await self._read_log(process)
            except ApiError as error:  # there is no such process, or no longer
                self._tell(Notice(text=str(error), severity="error"))
                return
            except HermesTuiError as error:
                # Once the stack is out of reach the top bar says so; the lines stay readable.
                logger.info("log stream broke process=%s error=%s", process, error)
            await asyncio.sleep(RETRY_S)

    async def _read_log(self, process: str) -> None:
        log: LogLines | None = None
        async for line in self.backend.log(process, LOG_TAIL):
            if log is None:  # what is read again begins with the tail
                log = self.state.log = LogLines(process=process)
            log.append(line)
            self._tell(LogGrew())
