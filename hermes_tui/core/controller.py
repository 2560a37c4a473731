"""The use cases of a person at the stack, free of any screen: both front ends call these."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Literal

from hermes_tui.core.backend import (
    ApprovalAsked,
    Backend,
    TextArrived,
    ThoughtArrived,
    ToolCalled,
    ToolReturned,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
)
from hermes_tui.core.compare import Comparison
from hermes_tui.core.events import (
    ApprovalRequested,
    Change,
    EpisodeLoaded,
    LogGrew,
    Notice,
    RowsChanged,
    StackEvent,
    TokensSampled,
    ToolPart,
    Turn,
    TurnChanged,
    TurnsLoaded,
    add_measures,
    recorded_turns,
)
from hermes_tui.core.log_lines import LogLines
from hermes_tui.core.rows import (
    EpisodeDetail,
    EpisodeRow,
    Stage,
    sampled_tokens,
)
from hermes_tui.core.state import ViewState
from hermes_tui_services.errors import ApiError, HermesTuiError

logger = logging.getLogger(__name__)

REFRESH_S = 0.1
"""Rows are read again this long after the first event that concerns them: events come in bursts."""

LOG_TAIL = 1000
"""Lines of a log that are read back when it is opened."""

RETRY_S = 1.0
"""Pause before a broken event stream is opened again."""

HISTORY_EPISODES = 50
"""Episodes of a session whose turns are read back into the chat."""

NAMED_SESSIONS = 20
"""Sessions whose first words are read back after attaching."""

TASK_ID = "chat"
"""Task of the sessions that a person starts by talking: they share one running baseline."""


class Controller:
    """Holds the view's state, keeps it true, and does what the person asks for.

    Args:
        backend: the stack.
        grace_s: seconds that a reward waits for an undo before the trainer may claim it.
        reward_range: lowest and highest reward.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        grace_s: float = 2.0,
        reward_range: tuple[float, float] = (-1.0, 1.0),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.state = ViewState()
        self.grace_s = grace_s
        self.reward_range = reward_range
        self.clock = clock
        self.call: Callable[[str], str] = str
        """How the front end asks for an action, by its id: a key, a command."""
        self._backend = backend
        self._listeners: list[Callable[[Change], None]] = []
        self._wanted = asyncio.Event()
        self._touched: set[str] = set()
        self._stale_episodes: set[str] = set()
        self._stale_canaries = False
        self._num_turns = 0

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

    async def start(self, report: Callable[[Stage], None]) -> None:
        """Attach to the stack, starting it when none runs, and read what it knows.

        Raises: HermesTuiError: it could not be started.
        """
        self.state.info = await self._backend.start(report)
        await self._read_processes()
        if self.state.info.training:
            self.state.sessions = {row.session_id: row for row in await self._backend.sessions()}
            self.state.put_episodes(await self._backend.episodes())
            self.state.put_steps(await self._backend.steps(-1))
            self.state.trainer = await self._backend.trainer()
            self.state.canaries = await self._backend.canaries()
        self._tell(RowsChanged())

    async def watch(self) -> None:
        """Follow the stack's events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(self._backend.control_events, self._on_control))
            if self.state.info.training:
                tasks.create_task(self._follow(self._backend.learning_events, self._on_learning))
                tasks.create_task(self._refresh_when_wanted())
                tasks.create_task(self.attempt(self._name_sessions()))

    async def close(self) -> None:
        """Let go of the stack; it runs on."""
        await self._backend.close()

    async def shutdown(self) -> None:
        """Stop the whole stack.

        Raises: HermesTuiError: something of it would not stop.
        """
        await self._backend.shutdown()

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
            # Whatever was missed meanwhile is in the rows.
            self._touched.update(self.state.sessions)
            self._wanted.set()

    # Keeping the state true ----------------------------------------------------------------

    async def _on_control(self, _: StackEvent) -> None:
        await self._read_processes()

    async def refresh_processes(self) -> None:
        """Read the processes again: their memory and uptime change without an event."""
        await self.attempt(self._read_processes())

    async def _read_processes(self) -> None:
        rows = await self._backend.processes()
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
        if event.kind.startswith("canary."):
            self._stale_canaries = True
        if event.kind in ("completion.started", "completion.finished", "episode.trained"):
            self._stale_episodes.add(episode_id)
        if event.kind in ("step.failed", "trainer.paused") and data.get("reason"):
            self._tell(Notice(text=f"{event.kind}: {data['reason']}", severity="warning"))
        if event.kind == "completion.started":
            self._show_if_new(session_id, episode_id)
        if session_id:
            self._touched.add(session_id)
        self._wanted.set()

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
        while True:
            await self._wanted.wait()
            await asyncio.sleep(REFRESH_S)
            self._wanted.clear()
            touched, self._touched = self._touched, set()
            stale, self._stale_episodes = self._stale_episodes, set()
            if not await self.attempt(self._refresh(touched, stale)):
                self._touched |= touched
                self._stale_episodes |= stale
                await asyncio.sleep(RETRY_S)
                self._wanted.set()

    async def _refresh(self, touched: set[str], stale: set[str]) -> None:
        if touched - self.state.sessions.keys():
            self.state.sessions = {row.session_id: row for row in await self._backend.sessions()}
        for session_id in touched:
            self.state.put_episodes(await self._backend.episodes(session_id))
        last = self.state.steps[-1].step if self.state.steps else -1
        self.state.put_steps(await self._backend.steps(last))
        self.state.trainer = await self._backend.trainer()
        if self._stale_canaries:
            self.state.canaries = await self._backend.canaries()
            self._stale_canaries = False
        for row in self.state.episodes_of(self.state.selected):
            if row.episode_id in stale:
                await self._load(row.episode_id)
        self._tell(RowsChanged())

    async def _load(self, episode_id: str) -> EpisodeDetail:
        detail = await self._backend.episode(episode_id)
        self.state.put_episodes([detail.row])
        self._measure_turns(detail)
        self._tell(EpisodeLoaded(detail=detail))
        return detail

    def _measure_turns(self, detail: EpisodeDetail) -> None:
        """Give the turns that this view saw happen what was recorded of them."""
        live = [t for t in self.state.turns.get(detail.row.session_id, ()) if t.started_at]
        for i, turn in enumerate(live):
            end = live[i + 1].started_at if i + 1 < len(live) else float("inf")
            mine = [
                c
                for c in detail.completions
                if c.kind == "turn" and c.finish_reason and turn.started_at <= c.created_at < end
            ]
            if not mine or turn.state == "running":
                continue
            turn.episode_id = detail.row.episode_id
            turn.num_tokens, turn.seconds, turn.untrainable = 0, 0.0, ()
            for completion in mine:
                add_measures(turn, completion)
            self._tell(TurnChanged(turn=turn))

    # Sessions ------------------------------------------------------------------------------

    def new_session(self) -> None:
        """Begin anew: the session itself starts with its first message."""
        self.state.selected, self.state.shown, self.state.pinned = "", "", False
        self._tell(TurnsLoaded(session_id=""))

    async def open_session(self, session_id: str, episode_id: str = "") -> None:
        """Show a session's conversation, and the tokens of one of its episodes.

        Args:
            session_id: the session.
            episode_id: the episode to pin; empty follows the newest.
        """
        self.state.selected = session_id
        latest = self.state.latest(session_id)
        self.state.shown = episode_id or (latest.episode_id if latest else "")
        self.state.pinned = bool(episode_id) and latest != self.state.episode(episode_id)
        await self.attempt(self._read_turns(session_id))
        self._tell(TurnsLoaded(session_id=session_id))
        if self.state.shown and self.state.info.training:
            await self.attempt(self._load(self.state.shown))

    async def _read_turns(self, session_id: str) -> None:
        known = {turn.episode_id for turn in self.state.turns.get(session_id, ())}
        for row in self.state.episodes_of(session_id)[-HISTORY_EPISODES:]:
            if row.episode_id not in known:
                detail = await self._backend.episode(row.episode_id)
                self.state.put_turns(detail, recorded_turns(detail))

    async def _name_sessions(self) -> None:
        """Read how the newest sessions began: that is what they are called."""
        newest = sorted(self.state.sessions.values(), key=lambda row: row.created_at)
        for session in reversed(newest[-NAMED_SESSIONS:]):
            episodes = self.state.episodes_of(session.session_id)
            if episodes and not self.state.turns.get(session.session_id):
                detail = await self._backend.episode(episodes[0].episode_id)
                self.state.put_turns(detail, recorded_turns(detail))
                self._tell(RowsChanged())

    async def end_session(self) -> None:
        """End the selected session and its open episode."""
        session_id = self.state.selected
        if not session_id or not await self.attempt(self._backend.end_session(session_id)):
            return
        title = self.state.title(session_id)
        self._tell(Notice(text=f"ended: {title}; {self.call('session_new')} starts a new session"))
        await self.attempt(self.reread(session_id))

    async def reread(self, session_id: str) -> None:
        """Read the sessions again, and one session's episodes."""
        if self.state.info.training:
            self.state.sessions = {row.session_id: row for row in await self._backend.sessions()}
            self.state.put_episodes(await self._backend.episodes(session_id))
        self._tell(RowsChanged())

    # Turns ---------------------------------------------------------------------------------

    def refusal(self) -> str:
        """Return why nothing can be said now; empty when something can."""
        session = self.state.sessions.get(self.state.selected)
        if self.state.running_turn(self.state.selected):
            return "the agent still speaks: interrupt it, or wait"
        return "this session has ended: start a new one" if session and session.ended else ""

    async def send(self, text: str) -> bool:
        """Say something to the agent; returns when the turn has ended.

        Returns: False when it was not said: see ``refusal``, or no session could be started.
        """
        state = self.state
        if reason := self.refusal():
            self._tell(Notice(text=reason, severity="warning"))
            return False
        started = state.selected in state.sessions
        turn = self.begin_turn(state.selected, text)
        if not started and not await self.attempt(self._start_session(turn)):
            state.turns[""].remove(turn)
            self._tell(TurnsLoaded(session_id=""))
            return False
        await self.run_turn(turn)
        return True

    def begin_turn(self, session_id: str, text: str) -> Turn:
        """Add a turn to a session; ``run_turn`` runs it."""
        self._num_turns += 1
        turn = Turn(
            turn_id=f"turn-{self._num_turns}",
            session_id=session_id,
            user_text=text,
            started_at=self.clock(),
        )
        self.state.turns.setdefault(session_id, []).append(turn)
        self._tell(TurnChanged(turn=turn))
        return turn

    async def _start_session(self, turn: Turn) -> None:
        session = await self._backend.start_session(TASK_ID)
        self.state.sessions[session.session_id] = session
        self.state.turns[""].remove(turn)
        turn.session_id = session.session_id
        self.state.turns[session.session_id] = [turn]
        if not self.state.selected:  # the person may have opened another one meanwhile
            self.state.selected = session.session_id
            self._tell(TurnsLoaded(session_id=session.session_id))
        self._tell(RowsChanged())

    async def run_turn(self, turn: Turn) -> None:
        """Run a turn that was begun; returns when it has ended, however it did."""
        try:
            async for event in self._backend.turn(turn.session_id, turn.user_text):
                self._on_turn_event(turn, event)
                self._tell(TurnChanged(turn=turn))
        except HermesTuiError as error:
            self._on_turn_event(turn, TurnFailed(message=str(error)))
        except asyncio.CancelledError:
            turn.state = "interrupted"
            raise
        if turn.state == "running":
            self._on_turn_event(turn, TurnFailed(message="the answer broke off without an end"))
        self._tell(TurnChanged(turn=turn))
        if self.state.info.training:
            await self.attempt(self._after_turn(turn))

    async def _after_turn(self, turn: Turn) -> None:
        await self.reread(turn.session_id)
        if latest := self.state.latest(turn.session_id):
            await self._load(latest.episode_id)

    def _on_turn_event(self, turn: Turn, event: TurnEvent) -> None:
        match event:
            case TextArrived(delta=delta):
                turn.add_text(delta)
            case ThoughtArrived(delta=delta):
                turn.add_thought(delta)
            case ToolCalled(call_id=call_id, name=name, arguments=arguments):
                turn.parts.append(ToolPart(call_id=call_id, name=name, arguments=arguments))
            case ToolReturned(call_id=call_id, result=result):
                for part in turn.parts:
                    if isinstance(part, ToolPart) and part.call_id == call_id:
                        part.result = result
            case ApprovalAsked():
                self._ask(turn, event)
            case TurnCompleted(num_tokens=num_tokens, interrupted=interrupted):
                turn.num_tokens = turn.num_tokens or num_tokens
                turn.state = "interrupted" if interrupted else "completed"
            case TurnFailed(message=message):
                turn.state, turn.error = "failed", message
        if turn.state != "running":
            self._withdraw(turn.session_id)
            turn.seconds = turn.seconds or max(self.clock() - turn.started_at, 0.0)

    async def interrupt(self) -> None:
        """Stop the turn in flight of the selected session."""
        if turn := self.state.running_turn(self.state.selected):
            await self.attempt(self._backend.interrupt(turn.session_id))
        else:
            self._tell(Notice(text="nothing to interrupt: the agent does not speak"))

    async def export(self, episode_id: str, folder: Path) -> None:
        """Write an episode's trajectory into a folder, as JSON Lines."""
        if not episode_id:
            self.say("there is no trajectory to write: nothing is shown")
            return
        path = folder / f"{episode_id}.jsonl"
        try:
            rows = await self._backend.export(episode_id, path)
        except OSError as error:
            self.say(f"the trajectory is not written: {path}: {error.strerror}", "error")
        except HermesTuiError as error:
            self.say(str(error), "error")
        else:
            self.say(f"{rows} {'sequence' if rows == 1 else 'sequences'} written to {path}")

    def compare(self, size: int) -> Comparison:
        """Return a comparison of several replies, none of which is asked for yet."""
        return Comparison(self, self._backend, size)

    # What the agent asks -------------------------------------------------------------------

    def _ask(self, turn: Turn, asked: ApprovalAsked) -> None:
        request = ApprovalRequested(
            session_id=turn.session_id,
            approval_id=asked.approval_id,
            question=asked.question,
            choices=asked.choices,
            free=asked.free or not asked.choices,
            expires_at=asked.expires_at,
        )
        self.state.asked[request.approval_id] = request
        self._tell(request)

    def _withdraw(self, session_id: str) -> None:
        """Drop the questions of a turn that is over."""
        open_ones = self.state.asked.values()
        gone = [ask.approval_id for ask in open_ones if ask.session_id == session_id]
        for approval_id in gone:
            del self.state.asked[approval_id]
        if gone:
            self._tell(RowsChanged())

    def drop_expired(self) -> None:
        """Drop the questions whose time has run out: the agent takes silence for a no."""
        now = self.clock()
        for ask in list(self.state.asked.values()):
            if ask.expires_at is not None and ask.expires_at <= now:
                del self.state.asked[ask.approval_id]
                text = "nobody answered the agent in time: that is a no"
                self._tell(Notice(text=text, severity="warning"))
                self._tell(RowsChanged())

    async def approve(self, request: ApprovalRequested, choice: str) -> None:
        """Answer what the agent asked."""
        self.state.asked.pop(request.approval_id, None)
        self._tell(RowsChanged())
        await self.attempt(self._backend.approve(request.session_id, request.approval_id, choice))

    # Judging -------------------------------------------------------------------------------

    async def score(self, reward: float) -> None:
        """Judge the newest episode of the selected session."""
        episode = self._episode_to_judge()
        low, high = self.reward_range
        if episode is None:
            return
        if not low <= reward <= high:
            text = f"a reward lies between {low:+g} and {high:+g}; {reward:+g} does not"
            self._tell(Notice(text=text, severity="warning"))
        elif await self.attempt(self._backend.set_reward(episode.episode_id, reward)):
            undo = f"{self.call('score_undo')} undoes it ({self.grace_s:g} s)"
            self._tell(Notice(text=f"{self._name(episode)}: {reward:+.1f} · {undo}"))
            await self.attempt(self.reread(episode.session_id))

    async def undo(self) -> None:
        """Take back the reward of the selected session's newest judged episode."""
        rows = self.state.episodes_of(self.state.selected)
        judged = [row for row in rows if row.reward is not None]
        if not judged:
            self._tell(Notice(text="nothing to undo: no episode here has a score"))
        elif judged[-1].state != "scored":
            name, step = self._name(judged[-1]), judged[-1].step
            where = f"trained in step {step}" if step is not None else judged[-1].state
            self._tell(Notice(text=f"{name} is {where}: too late to undo", severity="warning"))
        elif await self.attempt(self._backend.unset_reward(judged[-1].episode_id)):
            self._tell(Notice(text=f"{self._name(judged[-1])}: score taken back"))
            await self.attempt(self.reread(judged[-1].session_id))

    def _episode_to_judge(self) -> EpisodeRow | None:
        state = self.state
        if not state.info.training:
            self._tell(Notice(text="training is off: there is nothing to score"))
            return None
        if state.running_turn(state.selected):
            self._tell(Notice(text="not yet: score it when the agent has spoken"))
            return None
        episode = state.to_score(state.selected)
        if episode is None:
            latest = state.latest(state.selected)
            text = (
                f"{self._name(latest)} is {latest.state} already: say something more first"
                if latest
                else "nothing to score yet: say something first"
            )
            self._tell(Notice(text=text))
        return episode

    def _name(self, episode: EpisodeRow) -> str:
        return f"episode {self.state.ordinal(episode)} of “{self.state.title(episode.session_id)}”"

    # The stack -----------------------------------------------------------------------------

    async def toggle_training(self) -> None:
        """Hold training, or let it go on."""
        await self.hold_training(self.state.trainer.state != "paused")

    async def hold_training(self, held: bool) -> None:
        """Hold training, or let it go on; either may be so already."""
        if await self.attempt(self._backend.pause_training(held)):
            self._tell(Notice(text="training is held" if held else "training goes on"))
            self._wanted.set()

    async def restart(self, process: str) -> None:
        """Restart one process of the stack."""
        if await self.attempt(self._backend.restart(process)):
            self._tell(Notice(text=f"{process}: restarting"))

    async def roll_back(self, policy_version: int) -> None:
        """Make a kept version's weights current again; returns when they are."""
        self._tell(Notice(text=f"rolling back to version {policy_version} …"))
        if await self.attempt(self._backend.roll_back(policy_version)):
            self._tell(Notice(text=f"the weights of version {policy_version} serve again"))
            self._wanted.set()

    async def refresh_system(self) -> None:
        """Look at the machine and its processes: use, memory and uptime change without an event."""
        await self.attempt(self._read_system())

    async def _read_system(self) -> None:
        self.state.samples.append(await self._backend.system())
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
        async for line in self._backend.log(process, LOG_TAIL):
            if log is None:  # what is read again begins with the tail
                log = self.state.log = LogLines(process=process)
            log.append(line)
            self._tell(LogGrew())
