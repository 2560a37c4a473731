"""One message to several siblings of a group, and a judgement that tells them apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from hermes_tui.core.changes import ChatTurn
from hermes_tui.core.controller import Controller
from hermes_tui.core.models import EpisodeRow

MIN_SIBLINGS, MAX_SIBLINGS = 2, 9
"""How many replies can be compared: each has a digit key."""

TASK_ID = "compare"
"""Task of the sessions that are started to be compared."""


class Comparison:
    """Siblings, what they say, and which of them are picked.

    Args:
        controller: runs the turns and tells the front end.
        size: how many siblings.
    """

    def __init__(self, controller: Controller, size: int) -> None:
        assert MIN_SIBLINGS <= size <= MAX_SIBLINGS
        self.size = size
        self.text = ""
        """What they were told; empty before."""
        self.turns: list[ChatTurn] = []
        """Their turns, in the order of their keys; empty before they are started."""
        self.picked: set[int] = set()
        """Places, from 0, of those that are better than the others."""
        self._controller = controller

    @property
    def num_running(self) -> int:
        """How many still speak."""
        return sum(turn.state == "running" for turn in self.turns)

    def episode(self, place: int) -> EpisodeRow | None:
        """Return what is judged of a sibling: the episode of its turn, or None."""
        return self._controller.state.latest(self.turns[place].session_id)

    @property
    def scored(self) -> bool:
        """Whether any of them has a reward."""
        episodes = [self.episode(place) for place in range(len(self.turns))]
        return any(row is not None and row.reward is not None for row in episodes)

    async def ask(self, text: str) -> bool:
        """Start the siblings, say the same to each, and return when the last one has ended.

        Returns: False when they could not be started.
        """
        self.text = text
        if not await self._controller.attempt(self._start(text)):
            self.text = ""
            return False
        async with asyncio.TaskGroup() as tasks:
            for turn in self.turns:
                tasks.create_task(self._controller.run_turn(turn))
        return True

    async def _start(self, text: str) -> None:
        rows = await self._controller.backend.start_siblings(TASK_ID, self.size)
        self._controller.state.sessions |= {row.session_id: row for row in rows}
        self.turns = [self._controller.begin_turn(row.session_id, text) for row in rows]

    def toggle(self, place: int) -> None:
        """Pick a sibling, or take that back."""
        if place < len(self.turns):
            self.picked ^= {place}

    async def score(self) -> None:
        """Give the picked ones the highest reward, and the others the lowest.

        A sibling that has no episode to judge, because it failed, is left out.
        """
        controller = self._controller
        if problem := self._not_yet():
            controller.say(problem, "warning")
            return
        low, high = controller.reward_range
        given: list[Awaitable[None]] = []
        for place in range(self.size):
            episode = controller.state.to_score(self.turns[place].session_id)
            if episode is not None:
                reward = high if place in self.picked else low
                given.append(self._controller.backend.set_reward(episode.episode_id, reward))
        if await self._all(given):
            undo = controller.call("compare_undo")
            alike = " · all alike: nothing to learn" if len(self.picked) == self.size else ""
            controller.say(
                f"{len(self.picked)} of {self.size} picked: {high:+.1f}, the others {low:+.1f}"
                f"{alike} · {undo} undoes it ({controller.grace_s:g} s)"
            )

    def _not_yet(self) -> str:
        if not self._controller.state.info.training:
            return "training is off: there is nothing to score"
        if not self.turns:
            return "say something to them first"
        if self.num_running:
            return f"not yet: {self.num_running} of {self.size} still speak"
        if not any(
            self._controller.state.to_score(turn.session_id) is not None for turn in self.turns
        ):
            return "none of them can be judged any more"
        return "" if self.picked else "pick the best first: its number; several are a tie"

    async def undo(self) -> None:
        """Take the rewards back that no step has claimed."""
        rows = [self.episode(place) for place in range(len(self.turns))]
        scored = [row for row in rows if row is not None and row.state == "scored"]
        if not scored:
            late = any(row is not None and row.reward is not None for row in rows)
            text = "too late to undo: the trainer has them" if late else "nothing to undo"
            self._controller.say(text, "warning" if late else "information")
        elif await self._all(
            [self._controller.backend.unset_reward(row.episode_id) for row in scored]
        ):
            self._controller.say(f"{len(scored)} scores taken back")

    async def _all(self, doing: list[Awaitable[None]]) -> bool:
        well = [await self._controller.attempt(one) for one in doing]
        for turn in self.turns:
            await self._controller.attempt(self._controller.reread(turn.session_id))
        return all(well)

    async def interrupt(self) -> None:
        """Stop those that still speak."""
        for turn in self.turns:
            if turn.state == "running":
                await self._controller.attempt(self._controller.backend.interrupt(turn.session_id))
