"""One message to several siblings of a group, and rewards that tell their replies apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Literal

from hermes_tui.core.changes import ChatTurn, Notice
from hermes_tui.core.controller import Controller
from hermes_tui.core.models import EpisodeRow, SessionRow
from hermes_tui.core.reward_text import reward_text
from hermes_tui.core.state import ViewState
from hermes_tui.core.waiting import lacks_scores

MIN_SIBLINGS, MAX_SIBLINGS = 2, 9
"""How many replies can be compared: each has a digit key."""

TASK_ID = "compare"
"""Task of the sessions that are started to be compared."""


class Comparison:
    """Siblings, their replies, and which of them are picked.

    Args:
        controller: runs the turns and reports to the front end.
        size: how many siblings.
    """

    def __init__(self, controller: Controller, size: int) -> None:
        assert MIN_SIBLINGS <= size <= MAX_SIBLINGS
        self.size = size
        self.text = ""
        """The message; empty before it is sent."""
        self.turns: list[ChatTurn] = []
        """Their turns, in the order of their keys; empty before they are started."""
        self.picked: set[int] = set()
        """Indices of the siblings that are better than the others."""
        self.retried = False
        """Whether the second one is another try of the first, in a branch of its session."""
        self._controller = controller
        self._state = controller.state
        self._notifier = controller.notifier
        self._backend = controller.backend

    @classmethod
    async def of_retry(cls, controller: Controller, turn: ChatTurn) -> Comparison | None:
        """Return the comparison of a reply with another one to the same message.

        The other one is said in a branch; ``run`` runs it.

        Returns: None when the branch could not be started.
        """
        rows: list[SessionRow] = []

        async def start() -> None:
            rows.append(await controller.branches.before(turn, compared=True))

        if not await controller.notifier.attempt(start()):
            return None
        comparison = cls(controller, 2)
        comparison.retried, comparison.text = True, turn.user_text
        comparison.turns = [turn, controller.turns.begin(rows[0].session_id, turn.user_text)]
        return comparison

    @classmethod
    async def of_group(cls, controller: Controller, group_id: str) -> Comparison | None:
        """Return the comparison of a group that was asked before, with what was picked in it.

        Returns: None when it has no siblings that can be compared, or nothing is kept of them.
        """
        state = controller.state
        rows = [row for row in state.sessions.values() if row.group_id == group_id]
        if not MIN_SIBLINGS <= len(rows) <= MAX_SIBLINGS:
            return None
        for row in rows:
            await controller.notifier.attempt(controller.history.read_session(row.session_id))
        turns = [state.turns.get(row.session_id, [])[-1:] for row in rows]
        found = [turn for newest in turns for turn in newest]
        if len(found) < MIN_SIBLINGS:
            return None
        comparison = cls(controller, len(found))
        comparison.turns, comparison.text = found, found[0].user_text
        high = controller.rewards.range[1]
        comparison.picked = {
            index
            for index in range(len(found))
            if (episode := comparison.episode(index)) and episode.reward == high
        }
        return comparison

    @property
    def group_id(self) -> str:
        """Their group; empty before they are started."""
        row = self._state.sessions.get(self.turns[0].session_id) if self.turns else None
        return row.group_id if row else ""

    @property
    def num_running(self) -> int:
        """How many are still replying."""
        return sum(turn.state == "running" for turn in self.turns)

    def episode(self, index: int) -> EpisodeRow | None:
        """Return the episode of a sibling's turn, which its reward judges, or None."""
        turn = self.turns[index]
        return self._state.episode(turn.episode_id) or self._state.latest(turn.session_id)

    @property
    def scored(self) -> bool:
        """Whether any of them has a reward."""
        return any(row.reward is not None for row in self._episodes())

    async def ask(self, text: str) -> bool:
        """Start the siblings, send each the message, and return when the last turn has ended.

        Returns: False when they could not be started.
        """
        self.text = text
        if not await self._notifier.attempt(self._start(text)):
            self.text = ""
            return False
        await self.run()
        return True

    async def run(self) -> None:
        """Run the turns that were begun; returns when the last one has ended."""
        async with asyncio.TaskGroup() as tasks:
            for turn in self.turns:
                if turn.state == "running":
                    tasks.create_task(self._controller.turns.run(turn))

    async def _start(self, text: str) -> None:
        rows = await self._backend.start_siblings(TASK_ID, self.size)
        self._state.sessions |= {row.session_id: row for row in rows}
        self.turns = [self._controller.turns.begin(row.session_id, text) for row in rows]

    def _takes_score(self, turn: ChatTurn) -> bool:
        """Return whether a sibling's episode can be judged and trained."""
        episode = self.episode(self.turns.index(turn))
        return episode is not None and not self._controller.rewards.judge(episode).refusal

    def toggle(self, index: int) -> None:
        """Pick a sibling, or take that back."""
        if index < len(self.turns):
            self.picked ^= {index}

    async def score(self) -> None:
        """Give the picked ones the highest reward, and the others the lowest.

        A sibling without an episode to judge, such as one that failed, is left out.
        """
        if problem := self._refusal():
            self._say(problem, "warning")
            return
        low, high = self._controller.rewards.range
        requests: list[Awaitable[None]] = []
        for index, turn in enumerate(self.turns):
            if self._takes_score(turn) and (episode := self.episode(index)):
                reward = high if index in self.picked else low
                requests.append(self._backend.set_reward(episode.episode_id, reward))
        if await self._send(requests):
            key = self._notifier.action_label("compare_undo")
            scores = f"{reward_text(high)}, the others {reward_text(low)}"
            alike = " · all alike: nothing to learn" if len(self.picked) == self.size else ""
            self._say(
                f"{len(self.picked)} of {self.size} picked: {scores}{alike} · {key} takes it back"
            )

    def _refusal(self) -> str:
        """Return why no reward can be given now; empty when one can."""
        if not self._state.info.training:
            return "training is off: there is nothing to score"
        if not self.turns:
            return "send them a message first"
        if self.num_running:
            label = self._notifier.action_label
            key = label("compare_interrupt") or label("turn_interrupt")
            return f"{self.num_running} of {self.size} are still replying: {key} stops them"
        if not any(map(self._takes_score, self.turns)):
            return self._why_none()
        return "" if self.picked else "pick the best first, by number; several are a tie"

    def _why_none(self) -> str:
        """Return why no sibling can be judged."""
        judge = self._controller.rewards.judge
        reasons = {judge(row).untrainable for row in self._episodes()} - {""}
        why = f": {', '.join(sorted(reasons))}" if reasons else ""
        return f"none of them can be judged any more{why}"

    async def undo(self) -> None:
        """Take back the rewards that no step has claimed."""
        scored = [row for row in self._episodes() if row.state == "scored"]
        if scored:
            if await self._send([self._backend.unset_reward(row.episode_id) for row in scored]):
                self._say(f"{len(scored)} scores taken back")
        elif self.scored:
            self._say("too late to undo: the trainer has claimed them", "warning")
        else:
            self._say("nothing to undo")

    def _episodes(self) -> list[EpisodeRow]:
        rows = (self.episode(index) for index in range(len(self.turns)))
        return [row for row in rows if row is not None]

    async def _send(self, requests: list[Awaitable[None]]) -> bool:
        """Send requests one after the other; return whether all succeeded."""
        succeeded = [await self._notifier.attempt(request) for request in requests]
        for turn in self.turns:
            await self._notifier.attempt(self._controller.rows.read_session(turn.session_id))
        return all(succeeded)

    def _say(self, text: str, severity: Literal["information", "warning"] = "information") -> None:
        """Say what became of the picks, in place of what was said of them before."""
        self._notifier.notify(Notice(text=text, severity=severity, replaces=True))

    async def interrupt(self) -> None:
        """Stop those that are still replying."""
        for turn in self.turns:
            if turn.state == "running":
                await self._notifier.attempt(self._backend.interrupt(turn.session_id))


def unscored_groups(state: ViewState) -> list[str]:
    """Return the groups of siblings that were asked to be compared and have no score yet.

    The newest comes first.
    """
    groups: dict[str, list[str]] = {}
    for session in state.sessions.values():
        if session.task_id == TASK_ID and session.group_id:
            groups.setdefault(session.group_id, []).append(session.session_id)
    return [
        group_id
        for group_id, session_ids in reversed(groups.items())
        if len(session_ids) >= MIN_SIBLINGS
        and any(state.episodes_of(session_id) for session_id in session_ids)
        and all(
            row.reward is None and row.state != "dropped"
            for session_id in session_ids
            for row in state.episodes_of(session_id)
        )
    ]


def group_to_judge(state: ViewState, *marked: str) -> str:
    """Return the group to open again: with siblings to score, of a marked session if it can be.

    Args:
        state: what is known.
        marked: ids of sessions, the first one is preferred; without a group the newest is meant.

    Returns: its id; empty when no group waits for a score.
    """
    siblings = state.siblings()
    for session_id in marked:
        if session_id in siblings and lacks_scores(
            state, group_id := state.sessions[session_id].group_id
        ):
            return group_id
    return next(iter(unscored_groups(state)), "")
