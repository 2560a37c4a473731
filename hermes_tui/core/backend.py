"""The stack as the controller uses it; ``hermes_tui/stack_client/remote.py`` is the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from hermes_tui.core.changes import TrainerEvent
from hermes_tui.core.control_api import ControlEvent
from hermes_tui.core.models import (
    CanaryRow,
    EpisodeDetail,
    EpisodeRow,
    SessionRow,
    StackInfo,
    StartStage,
    StepRow,
    TrainerRow,
    ViewMemory,
)
from hermes_tui.core.stack_status import ProcessStatus, SystemSample
from hermes_tui_services.api.client import PastTurn
from hermes_tui_services.api.events import TurnEvent
from hermes_tui_services.api.wire import SearchHit


class Backend(Protocol):
    """The stack as the controller uses it.

    Raises: HermesTuiError: from any method, when the stack can't be started or answers an error.
    """

    async def start(self, report: Callable[[StartStage], None]) -> StackInfo:
        """Attach to the stack, starting it when none runs; tells each stage on the way."""
        ...

    def control_events(self) -> AsyncIterator[ControlEvent]:
        """Yield the supervisor's events from now on."""
        ...

    def learning_events(self) -> AsyncIterator[TrainerEvent]:
        """Yield the trainer's events from now on; ``completion.tokens`` among them."""
        ...

    async def processes(self) -> list[ProcessStatus]:
        """Return the processes in the supervisor's order."""
        ...

    async def restart(self, process: str) -> None:
        """Restart one process; returns when it is ready again."""
        ...

    async def system(self) -> SystemSample:
        """Return what the machine does, as the supervisor sees it."""
        ...

    def log(self, process: str, tail: int) -> AsyncIterator[str]:
        """Yield the last lines of a process's log, then each new one."""
        ...

    async def shutdown(self) -> None:
        """Stop the whole stack; returns once nothing of it is left."""
        ...

    async def sessions(self) -> list[SessionRow]:
        """Return all sessions; without a trainer those that were closed are not among them."""
        ...

    async def start_session(self, task_id: str) -> SessionRow:
        """Start a session."""
        ...

    async def start_siblings(self, task_id: str, size: int) -> list[SessionRow]:
        """Start several sessions of one group."""
        ...

    async def start_branch(
        self, session: SessionRow, *, until: float, beside: str = ""
    ) -> SessionRow:
        """Start a session that goes on with another one's conversation; that one stays as it is.

        Args:
            session: the other one.
            until: seconds since the epoch; turns that finished later are left out.
            beside: the episode of the other one that the new one's first is compared with; empty
                for none.
        """
        ...

    async def rename_session(self, session_id: str, title: str) -> None:
        """Give a session a name. Without a trainer nothing keeps it."""
        ...

    async def delete_session(self, session_id: str) -> None:
        """Forget a session: its conversation, and what was recorded in it."""
        ...

    async def end_session(self, session_id: str) -> None:
        """End a session: its key works no longer."""
        ...

    async def set_topic(self, session_id: str, topic: str) -> None:
        """Say what a session and its siblings are about."""
        ...

    async def episodes(self, session_id: str | None = None) -> list[EpisodeRow]:
        """Return episodes, newest last: a session's, or the newest of all."""
        ...

    async def episode(self, episode_id: str) -> EpisodeDetail:
        """Return one episode with its completions."""
        ...

    async def export(self, episode_id: str, path: Path) -> int:
        """Write an episode as JSON Lines, a row per token sequence; return how many there are.

        Raises: OSError: the file can't be written.
        """
        ...

    async def set_reward(
        self, episode_id: str, reward: float | None, feedback: str | None = None
    ) -> None:
        """Judge an episode; replaces a reward that is not claimed yet.

        Args:
            episode_id: the episode.
            reward: the number; None, with feedback, keeps the one in force.
            feedback: a sentence that says why; empty takes it away, None keeps it.
        """
        ...

    async def unset_reward(self, episode_id: str) -> None:
        """Take back a reward that is not claimed yet."""
        ...

    async def steps(self, after: int) -> list[StepRow]:
        """Return the steps after a number."""
        ...

    async def trainer(self) -> TrainerRow:
        """Return what the trainer does now."""
        ...

    async def pause_training(self, paused: bool) -> None:
        """Hold training, or let it go on."""
        ...

    async def canaries(self, versions: tuple[int, int] | None = None) -> list[CanaryRow]:
        """Return what two versions said to the canary's questions; None is the newest that did."""
        ...

    async def roll_back(self, policy_version: int) -> None:
        """Make a kept version's weights current again, under a new number."""
        ...

    def recall(self) -> ViewMemory:
        """Return what the view before this one left behind; empty without one."""
        ...

    def remember(self, memory: ViewMemory) -> None:
        """Keep what the next view is to find."""
        ...

    async def past_turns(self, session_id: str) -> list[PastTurn]:
        """Return a conversation as the agent service keeps it, oldest turn first."""
        ...

    async def search(self, text: str) -> list[SearchHit]:
        """Return the turns of all sessions that contain a text, whatever its case, newest first."""
        ...

    async def running(self) -> dict[str, str]:
        """Return the run of every turn in flight, whoever sent it, by session id."""
        ...

    def turn(self, session_id: str, text: str) -> AsyncIterator[TurnEvent]:
        """Run one turn of the agent."""
        ...

    def join(self, session_id: str) -> AsyncIterator[TurnEvent]:
        """Follow a session's turn in flight, whoever sent it, from its beginning.

        Raises: RefusedError: 404, no turn runs.
        """
        ...

    async def interrupt(self, session_id: str) -> None:
        """Stop a session's turn in flight."""
        ...

    async def approve(self, session_id: str, approval_id: str, choice: str) -> None:
        """Answer what the agent asked.

        Raises: RefusedError: 404 or 410, nobody waits for an answer any more.
        """
        ...

    async def close(self) -> None:
        """Let go of the stack; it runs on."""
        ...
