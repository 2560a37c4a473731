"""Reading the rows of the stack into the view's state."""

from __future__ import annotations

from dataclasses import replace

from hermes_tui.core.changes import RowsChanged
from hermes_tui.core.context import ViewContext


class RowReader:
    """Reads processes, sessions, episodes, steps and the trainer's status.

    Args:
        context: what is read, and where it goes.
    """

    def __init__(self, context: ViewContext) -> None:
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier

    async def read_all(self) -> None:
        """Read everything that the panes show.

        Raises: HermesTuiError: the stack does not answer.
        """
        await self.read_processes()
        await self.read_sessions()
        if self._state.info.training:
            self._state.put_episodes(await self._backend.episodes())
            self._state.put_steps(await self._backend.steps(-1))
            self._state.trainer = await self._backend.trainer()
            await self.read_canaries()
        self._notifier.notify(RowsChanged())

    async def read_canaries(self) -> None:
        """Read the canary's answers of the two versions that are compared.

        Raises: HermesTuiError: the stack does not answer.
        """
        self._state.canaries = await self._backend.canaries(self._state.canary_choice)
        self._notifier.notify(RowsChanged())

    async def read_processes(self) -> None:
        """Read the processes.

        Raises: HermesTuiError: the stack does not answer.
        """
        rows = await self._backend.processes()
        self._state.processes = {row.name: row for row in rows}
        self._notifier.notify(RowsChanged())

    async def read_system(self) -> None:
        """Read a sample of the machine, and the processes with their memory and uptime.

        Raises: HermesTuiError: the stack does not answer.
        """
        self._state.samples.append(await self._backend.system())
        await self.read_processes()

    async def read_sessions(self) -> None:
        """Read the sessions; one that is no longer listed has ended.

        Raises: HermesTuiError: the stack does not answer.
        """
        rows = {row.session_id: row for row in await self._backend.sessions()}
        known = self._state.sessions
        # A trainer lists its ended sessions too. The agent service forgets one that was closed.
        gone = set() if self._state.info.training else known.keys() - rows.keys()
        ended = {session_id: replace(known[session_id], ended=True) for session_id in gone}
        self._state.sessions = known | ended | rows

    async def read_session(self, session_id: str) -> None:
        """Read the sessions, and one session's episodes.

        Raises: HermesTuiError: the stack does not answer.
        """
        await self.read_sessions()
        if self._state.info.training:
            self._state.put_episodes(await self._backend.episodes(session_id))
        self._notifier.notify(RowsChanged())

    async def read_trainer(self) -> None:
        """Read the trainer's status. No event reports a step that came to nothing: forget it here.

        Raises: HermesTuiError: the stack does not answer.
        """
        state = self._state
        started_at = state.step_started_at
        state.trainer = await self._backend.trainer()
        # A step that started while we read is newer than what was read.
        if not state.trainer.busy and state.step_started_at == started_at:
            state.step_started_at = None
