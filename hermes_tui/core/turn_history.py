"""Reading recorded turns into the view's state."""

from __future__ import annotations

from bisect import bisect_right

from hermes_tui.core.changes import ChatTurn, EpisodeLoaded, RowsChanged, TurnChanged
from hermes_tui.core.context import ViewContext
from hermes_tui.core.models import CompletionRow, EpisodeDetail
from hermes_tui.core.recorded_turns import by_turn, kept_turns, measure, recorded_turns

MAX_EPISODES = 50
"""Newest episodes of a session whose turns are read into the chat."""

MAX_TITLES = 20
"""Newest sessions whose first message is read, for their title."""


class TurnHistory:
    """Reads turns that this view did not see while they ran.

    Args:
        context: what is read, and where it goes.
    """

    def __init__(self, context: ViewContext) -> None:
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier
        self._read_episodes: set[str] = set()
        self._read_branches: set[str] = set()

    async def load_episode(self, episode_id: str) -> None:
        """Read an episode with its completions, and update the turns that it holds.

        Raises: HermesTuiError: the stack does not answer.
        """
        detail = await self._backend.episode(episode_id)
        self._state.put_episodes([detail.row])
        self._measure_live_turns(detail)
        for turn in self._put_turns(detail):
            self._notifier.notify(TurnChanged(turn=turn))
        self._notifier.notify(EpisodeLoaded(detail=detail))

    async def read_session(self, session_id: str) -> list[ChatTurn]:
        """Read a session's turns; return those that are new or changed.

        Raises: HermesTuiError: the stack does not answer.
        """
        changed: list[ChatTurn] = []
        if not self._state.info.training:
            past = kept_turns(session_id, await self._backend.past_turns(session_id))
            changed += self._state.put_turns(session_id, past)
        elif session_id not in self._read_branches:
            changed += await self._read_before_branch(session_id)
        for row in self._state.episodes_of(session_id)[-MAX_EPISODES:]:
            if row.episode_id not in self._read_episodes:
                changed += self._put_turns(await self._backend.episode(row.episode_id))
        return changed

    async def _read_before_branch(self, session_id: str) -> list[ChatTurn]:
        """Read the turns that a branch begins with; they were recorded in another session."""
        session = self._state.sessions.get(session_id)
        if session is None or not session.branch_of:
            return []
        self._read_branches.add(session_id)
        kept = await self._backend.past_turns(session_id)
        before = [turn for turn in kept if turn.finished_at <= session.created_at]
        return self._state.put_turns(session_id, kept_turns(session_id, before))

    async def read_titles(self) -> None:
        """Read the first turns of the newest sessions: a session's title is its first message.

        Raises: HermesTuiError: the stack does not answer.
        """
        by_age = sorted(self._state.sessions.values(), key=lambda row: row.created_at)
        for session in reversed(by_age[-MAX_TITLES:]):
            if session.title or self._state.turns.get(session.session_id):
                continue
            if not self._state.info.training:
                await self.read_session(session.session_id)
            elif episodes := self._state.episodes_of(session.session_id):
                self._put_turns(await self._backend.episode(episodes[0].episode_id))
            self._notifier.notify(RowsChanged())

    def _measure_live_turns(self, detail: EpisodeDetail) -> None:
        """Give the turns that this view saw while they ran the figures that were recorded."""
        turns = self._state.turns.get(detail.row.session_id, ())
        live = [turn for turn in turns if turn.source != "read"]
        starts = [turn.started_at for turn in live]
        by_index: dict[int, list[CompletionRow]] = {}
        for completions in by_turn(detail):
            started_at = completions[0].created_at
            index = bisect_right(starts, started_at) - 1
            if index >= 0 and live[index].ran_at(started_at):
                by_index.setdefault(index, []).extend(completions)
        for index, completions in by_index.items():
            turn = live[index]
            if turn.state == "running":
                continue
            turn.episode_id = detail.row.episode_id
            measure(turn, completions)
            self._notifier.notify(TurnChanged(turn=turn))

    def _put_turns(self, detail: EpisodeDetail) -> list[ChatTurn]:
        self._read_episodes.add(detail.row.episode_id)
        return self._state.put_turns(detail.row.session_id, recorded_turns(detail))
