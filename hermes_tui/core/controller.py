"""The use cases of a person at the stack, free of any screen: both front ends call these."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hermes_tui.core.backend import Backend
from hermes_tui.core.changes import ChatTurn, Notice, RowsChanged, TurnsLoaded
from hermes_tui.core.models import EpisodeRow
from hermes_tui.core.turns import Turns
from hermes_tui_common.errors import HermesTuiError

TASK_ID = "chat"
"""Task of the sessions that a person starts by talking: they share one running baseline."""


class Controller(Turns):
    """Does what the person asks for, on a state that follows the stack.

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
        super().__init__(backend, clock=clock)
        self.grace_s = grace_s
        self.reward_range = reward_range
        self.call: Callable[[str], str] = str
        """How the front end asks for an action, by its id: a key, a command."""

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

    async def end_session(self, session_id: str) -> None:
        """End a session and its open episode."""
        if not session_id:
            self.say("no session is open: there is nothing to end")
            return
        if not await self.attempt(self.backend.end_session(session_id)):
            return
        title = self.state.title(session_id)
        self._tell(Notice(text=f"ended: {title}; {self.call('session_new')} starts a new session"))
        await self.attempt(self.reread(session_id))

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

    async def _start_session(self, turn: ChatTurn) -> None:
        session = await self.backend.start_session(TASK_ID)
        self.state.sessions[session.session_id] = session
        self.state.turns[""].remove(turn)
        turn.session_id = session.session_id
        self.state.turns[session.session_id] = [turn]
        if not self.state.selected:  # the person may have opened another one meanwhile
            self.state.selected = session.session_id
            self._tell(TurnsLoaded(session_id=session.session_id))
        self._tell(RowsChanged())

    async def interrupt(self) -> None:
        """Stop the turn in flight of the selected session."""
        if turn := self.state.running_turn(self.state.selected):
            await self.attempt(self.backend.interrupt(turn.session_id))
        else:
            self._tell(Notice(text="nothing to interrupt: the agent does not speak"))

    async def export(self, episode_id: str, folder: Path) -> None:
        """Write an episode's trajectory into a folder, as JSON Lines."""
        if not episode_id:
            self.say("there is no trajectory to write: nothing is shown")
            return
        path = folder / f"{episode_id}.jsonl"
        try:
            rows = await self.backend.export(episode_id, path)
        except OSError as error:
            self.say(f"the trajectory is not written: {path}: {error.strerror}", "error")
        except HermesTuiError as error:
            self.say(str(error), "error")
        else:
            self.say(f"{rows} {'sequence' if rows == 1 else 'sequences'} written to {path}")

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
        elif await self.attempt(self.backend.set_reward(episode.episode_id, reward)):
            undo = f"{self.call('score_undo')} undoes it ({self.grace_s:g} s)"
            self._tell(Notice(text=f"{self._name(episode)}: {reward:+.1f} · {undo}"))
            await self.attempt(self.reread(episode.session_id))

    def seconds_to_undo(self, episode: EpisodeRow | None) -> float:
        """Return for how long a reward can surely be taken back; 0 for what has none."""
        if episode is None or episode.state != "scored" or episode.scored_at is None:
            return 0.0
        return max(self.grace_s - (self.clock() - episode.scored_at), 0.0)

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
        elif await self.attempt(self.backend.unset_reward(judged[-1].episode_id)):
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

    async def shutdown(self) -> None:
        """Stop the whole stack.

        Raises: HermesTuiError: something of it would not stop.
        """
        await self.backend.shutdown()

    async def toggle_training(self) -> None:
        """Hold training, or let it go on."""
        await self.hold_training(self.state.trainer.state != "paused")

    async def hold_training(self, held: bool) -> None:
        """Hold training, or let it go on; either may be so already."""
        if await self.attempt(self.backend.pause_training(held)):
            self._tell(Notice(text="training is held" if held else "training goes on"))
            self._wanted.set()

    async def restart(self, process: str) -> None:
        """Restart one process of the stack; returns when it is ready again."""
        self._tell(Notice(text=f"restarting {process} …"))
        if await self.attempt(self.backend.restart(process)):
            self._tell(Notice(text=f"{process} is ready again"))

    async def roll_back(self, policy_version: int) -> None:
        """Make a kept version's weights current again; returns when they are."""
        self._tell(Notice(text=f"rolling back to version {policy_version} …"))
        if await self.attempt(self.backend.roll_back(policy_version)):
            self._tell(Notice(text=f"the weights of version {policy_version} serve again"))
            self._wanted.set()
