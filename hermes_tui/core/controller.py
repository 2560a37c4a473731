"""What a person can do with the stack, without any screen: both front ends call this."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from hermes_tui.core.approvals import Approvals
from hermes_tui.core.backend import Backend
from hermes_tui.core.branches import Branches
from hermes_tui.core.changes import Change, ChatTurn, QueueChanged, RowsChanged, TurnsLoaded
from hermes_tui.core.context import ViewContext
from hermes_tui.core.deletions import UNDO_S, Deletions
from hermes_tui.core.lessons import Lessons
from hermes_tui.core.log_reader import LogReader
from hermes_tui.core.models import SessionRow, StartStage, ViewMemory
from hermes_tui.core.outbox import Outbox
from hermes_tui.core.rewards import Rewards
from hermes_tui.core.row_reader import RowReader
from hermes_tui.core.sync import StackSync
from hermes_tui.core.turn_discovery import TurnDiscovery
from hermes_tui.core.turn_history import TurnHistory
from hermes_tui.core.turns import TurnRunner
from hermes_tui_common.errors import HermesTuiError
from hermes_tui_services.api.wire import SearchHit
from hermes_tui_training.api.config import TOPIC_RULE, TrainingConfig, is_topic

TASK_ID = "chat"
"""Task of the sessions that a person starts with a message: they share one running baseline."""


class Controller:
    """Puts the parts of a view together, and does what the person asks for.

    Args:
        backend: the stack.
        training: what the trainer is set to; None is the defaults.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        training: TrainingConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        context = ViewContext(backend=backend, clock=clock)
        self.backend = backend
        self.clock = clock
        self.state = context.state
        self.notifier = context.notifier
        self.rows = RowReader(context)
        self.rewards = Rewards(context, self.rows, training or TrainingConfig())
        self.approvals = Approvals(context)
        self.log = LogReader(context)
        self.history = TurnHistory(context)
        self.turns = TurnRunner(context, self.rows, self.history, self.approvals)
        self.outbox = Outbox(context, self._send_in)
        self.deletions = Deletions(context)
        self.branches = Branches(context, self.history)
        self.lessons = Lessons(context)
        self._sync = StackSync(context, self.rows, self.history)
        self._discovery = TurnDiscovery(context, self.rows, self.history, self.turns)
        self.notifier.listen(self._on_change)

    def _on_change(self, change: Change) -> None:
        if isinstance(change, QueueChanged):
            self.remember()

    # Attaching -----------------------------------------------------------------------------

    async def start(self, report: Callable[[StartStage], None]) -> None:
        """Attach to the stack, and read what it knows. Starts the stack when none runs.

        Args:
            report: called with each stage of the start.

        Raises: HermesTuiError: it could not be started.
        """
        self.state.info = await self.backend.start(report)
        await self.rows.read_all()

    async def watch(self) -> None:
        """Keep the state true, and follow the turns of all views, until cancelled."""
        if warning := self.state.info.warning:
            self.notifier.say(warning, "warning")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sync.watch())
            tasks.create_task(self._discovery.watch())
            tasks.create_task(self.outbox.watch())
            tasks.create_task(self.deletions.watch())
            tasks.create_task(self.notifier.attempt(self.history.read_titles()))

    async def reopen(self) -> str:
        """Open the session that was open when the view before this one left.

        What waited in its queue waits again, until it is released.

        Returns: what stood in the prompt.
        """
        memory = self.backend.recall()
        session = self.state.sessions.get(memory.session_id)
        if session is not None and not session.ended:
            await self.open_session(session.session_id)
            for text in memory.queued:
                self.outbox.put(session.session_id, text)
            if memory.queued:
                self.outbox.hold(session.session_id)
        return memory.draft

    def remember(self, draft: str = "") -> None:
        """Keep for the next view what is open, what is queued, and what stands in the prompt."""
        session_id = self.state.selected
        queued = tuple(message.text for message in self.outbox.of(session_id))
        self.backend.remember(ViewMemory(session_id=session_id, queued=queued, draft=draft))

    async def close(self) -> None:
        """Close the connections to the stack; it runs on."""
        await self.deletions.finish()
        await self.backend.close()

    async def shutdown(self) -> None:
        """Stop the whole stack.

        Raises: HermesTuiError: a process did not stop.
        """
        await self.deletions.finish()
        await self.backend.shutdown()

    # Sessions ------------------------------------------------------------------------------

    def new_session(self) -> None:
        """Show an empty conversation; its session starts with its first message."""
        self.state.selected, self.state.shown, self.state.pinned = "", "", False
        self.remember()
        self.notifier.notify(TurnsLoaded(session_id=""))

    async def open_session(self, session_id: str, episode_id: str = "") -> None:
        """Show a session's conversation, and the tokens of one of its episodes.

        Args:
            session_id: the session.
            episode_id: the episode to pin; empty follows the newest.
        """
        self.state.selected = session_id
        self.remember()
        latest = self.state.latest(session_id)
        self.state.shown = episode_id or (latest.episode_id if latest else "")
        self.state.pinned = bool(episode_id) and latest != self.state.episode(episode_id)
        await self.notifier.attempt(self.history.read_session(session_id))
        self.notifier.notify(TurnsLoaded(session_id=session_id))
        if self.state.shown and self.state.info.training:
            await self.notifier.attempt(self.history.load_episode(self.state.shown))

    async def end_session(self, session_id: str) -> None:
        """End a session and its open episode."""
        if not session_id:
            self.notifier.say("no session is open: there is nothing to end")
            return
        if not await self.notifier.attempt(self.backend.end_session(session_id)):
            return
        title, key = self.state.title(session_id), self.notifier.action_label("session_new")
        self.notifier.say(f"ended: {title}; {key} starts a new session")
        await self.notifier.attempt(self.rows.read_session(session_id))

    async def set_topic(self, session_id: str, topic: str) -> bool:
        """Say what a session and its siblings are about; return whether that was taken."""
        topic = topic.strip()
        if problem := self.topic_refusal(session_id) or ("" if is_topic(topic) else TOPIC_RULE):
            self.notifier.say(problem, "warning")
            return False
        if not await self.notifier.attempt(self.backend.set_topic(session_id, topic)):
            return False
        self.notifier.say(f"“{self.state.title(session_id)}” is about “{topic}” now")
        await self.notifier.attempt(self.rows.read_session(session_id))
        return True

    def topic_refusal(self, session_id: str) -> str:
        """Return why a session takes no topic; empty when it does."""
        if not self.state.info.training:
            return "training is off: topics are what scores are compared within"
        if session_id not in self.state.sessions:
            return "no session is open: there is nothing to set a topic of"
        return ""

    async def search(self, text: str) -> list[SearchHit]:
        """Return the turns of all sessions that contain a text, the newest first."""
        hits: list[SearchHit] = []

        async def find() -> None:
            hits.extend(await self.backend.search(text))

        await self.notifier.attempt(find())
        return hits

    async def rename_session(self, session_id: str, title: str) -> None:
        """Give a session a name."""
        if await self.notifier.attempt(self.backend.rename_session(session_id, title)):
            await self.notifier.attempt(self.rows.read_session(session_id))

    def delete_session(self, session_id: str) -> None:
        """Hide a session and have it forgotten, unless that is taken back within some seconds."""
        if reason := self.deletions.refusal(session_id):
            self.notifier.say(reason, "warning")
            return
        title, key = self.state.title(session_id), self.notifier.action_label("session_restore")
        self.deletions.delete(session_id)
        if session_id == self.state.selected:
            self.new_session()
        self.notifier.say(f"deleted: {title}; {key} brings it back for {UNDO_S:.0f} s")

    def restore_session(self) -> None:
        """Bring back the session that was deleted last."""
        if session_id := self.deletions.restore():
            self.notifier.say(f"back again: {self.state.title(session_id)}")
        else:
            self.notifier.say("nothing was deleted just now")

    async def export(self, episode_id: str, folder: Path) -> None:
        """Write an episode's trajectory into a folder, as JSON Lines."""
        if not episode_id:
            self.notifier.say("there is no trajectory to write: no episode is shown")
            return
        path = folder / f"{episode_id}.jsonl"
        try:
            num_rows = await self.backend.export(episode_id, path)
        except OSError as error:
            self.notifier.say(f"cannot write the trajectory: {path}: {error.strerror}", "error")
        except HermesTuiError as error:
            self.notifier.say(str(error), "error")
        else:
            noun = "sequence" if num_rows == 1 else "sequences"
            self.notifier.say(f"{num_rows} {noun} written to {path}")

    # Turns ---------------------------------------------------------------------------------

    def refusal(self) -> str:
        """Return why no message can be taken now; empty when one can, if only to wait."""
        return self._refusal(self.state.selected)

    def _refusal(self, session_id: str) -> str:
        session = self.state.sessions.get(session_id)
        return "this session has ended: start a new one" if session and session.ended else ""

    @property
    def queues(self) -> bool:
        """Whether a message that is said now has to wait: for a turn, or behind another one."""
        waiting = self.outbox.of(self.state.selected)
        return bool(self.state.running_turn(self.state.selected) or waiting)

    async def send(self, text: str) -> bool:
        """Send a message to the agent, or queue it while ``queues``.

        Returns: False when it was neither sent nor queued: see ``refusal``, or no session could be
            started. A message that is sent has its turn ended, a queued one still waits.
        """
        session_id = self.state.selected
        if self._refusal(session_id) or not self.queues:
            return await self._send_in(session_id, text)
        self.outbox.put(session_id, text)
        self.outbox.release(session_id)
        return True

    async def _send_in(self, session_id: str, text: str) -> bool:
        """Send a message in a session; returns when the turn has ended, or False."""
        state = self.state
        if reason := self._refusal(session_id):
            self.notifier.say(reason, "warning")
            return False
        has_session = session_id in state.sessions
        turn = self.turns.begin(session_id, text)
        if not has_session and not await self.notifier.attempt(self._start_session(turn)):
            state.turns[""].remove(turn)
            self.outbox.hold("")
            self.notifier.notify(TurnsLoaded(session_id=""))
            return False
        await self.turns.run(turn)
        return True

    async def _start_session(self, turn: ChatTurn) -> None:
        session = await self.backend.start_session(TASK_ID)
        self.state.sessions[session.session_id] = session
        self.state.turns[""].remove(turn)
        turn.session_id = session.session_id
        self.state.turns[session.session_id] = [turn]
        self.outbox.move(session.session_id)
        if not self.state.selected:  # the person may have opened another one meanwhile
            self.state.selected = session.session_id
            self.remember()
            self.notifier.notify(TurnsLoaded(session_id=session.session_id))
        self.notifier.notify(RowsChanged())

    async def send_instead(self, turn: ChatTurn, text: str) -> bool:
        """Say something else in place of a turn's message, in a branch; open that.

        Returns: False when the branch could not be started.
        """
        rows: list[SessionRow] = []

        async def start() -> None:
            rows.append(await self.branches.before(turn))

        if not await self.notifier.attempt(start()):
            return False
        await self.open_session(rows[0].session_id)
        return await self._send_in(rows[0].session_id, text)

    async def interrupt(self) -> None:
        """Stop the turn in flight of the selected session."""
        if turn := self.state.running_turn(self.state.selected):
            await self.notifier.attempt(self.backend.interrupt(turn.session_id))
        else:
            self.notifier.say("nothing to interrupt: the agent is not replying")

    # The stack -----------------------------------------------------------------------------

    async def refresh_processes(self) -> None:
        """Read the processes again: no event reports that their memory and uptime changed."""
        await self.notifier.attempt(self.rows.read_processes())

    async def refresh_system(self) -> None:
        """Sample the machine, and read the processes again."""
        await self.notifier.attempt(self.rows.read_system())

    async def toggle_training(self) -> None:
        """Pause training, or resume it."""
        await self.hold_training(self.state.trainer.state != "paused")

    async def hold_training(self, held: bool) -> None:
        """Pause training or resume it; it may be so already."""
        if await self.notifier.attempt(self.backend.pause_training(held)):
            self.notifier.say("training is held" if held else "training goes on")
            self._sync.request_refresh()

    async def compare_answers(self, older: int, newer: int) -> None:
        """Show what two versions said to the canary's questions, until others are chosen."""
        self.state.canary_choice = (older, newer)
        await self.notifier.attempt(self.rows.read_canaries())

    async def restart(self, process: str) -> None:
        """Restart one process of the stack; returns when it is ready again."""
        self.notifier.say(f"restarting {process} …")
        if await self.notifier.attempt(self.backend.restart(process)):
            self.notifier.say(f"{process} is ready again")

    async def roll_back(self, policy_version: int) -> None:
        """Make a kept version's weights current again; returns when they are."""
        self.notifier.say(f"rolling back to version {policy_version} …")
        if await self.notifier.attempt(self.backend.roll_back(policy_version)):
            self.notifier.say(f"the weights of version {policy_version} serve again")
            self._sync.request_refresh()
