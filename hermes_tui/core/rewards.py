"""Judging episodes: what a score is for, giving it, saying why, taking it back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Literal

from hermes_tui.core.changes import Notice
from hermes_tui.core.context import ViewContext
from hermes_tui.core.models import EpisodeRow
from hermes_tui.core.reasons import reason_text, why_untrainable
from hermes_tui.core.reward_text import reward_text
from hermes_tui.core.row_reader import RowReader
from hermes_tui.core.waiting import NEXT, when_trained
from hermes_tui_training.api.config import TrainingConfig
from hermes_tui_training.api.protocol import MAX_FEEDBACK_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTarget:
    """What a score would be for, as it is before a key is pressed."""

    episode: EpisodeRow | None
    """The episode; None when there is none to judge."""
    refusal: str = ""
    """Why it takes no score, as a sentence; empty when it takes one."""
    untrainable: str = ""
    """Why it can't be trained, without a subject; empty when it can, or nothing is known."""


class Rewards:
    """Gives rewards, and takes them back.

    Args:
        context: the stack, and the episodes that are known.
        rows: reads an episode's session again after a reward.
        training: the range of rewards, how long one can surely be taken back, and how many versions
            an episode may be behind.
    """

    def __init__(self, context: ViewContext, rows: RowReader, training: TrainingConfig) -> None:
        self.grace_s = training.reward.grace_s
        """Seconds until the trainer may claim a judged episode."""
        self.range = training.reward.range
        """Lowest and highest reward."""
        self._max_staleness = training.max_staleness
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier
        self._clock = context.clock
        self._rows = rows
        self._last_scored = ""
        self._again = ""
        """Action that gave the last score and takes it back; empty when none does both."""
        self._turn = asyncio.Lock()  # one score after the other, in the order of the keys

    # What a score is for -------------------------------------------------------------------

    @property
    def target(self) -> ScoreTarget:
        """What a score is for now: the episode that the screen marks."""
        state = self._state
        if not state.info.training:
            return ScoreTarget(episode=None, refusal="training is off: there is nothing to score")
        episode = state.marked_episode
        running = state.running_turn(state.marked_session)
        if running and episode and state.pointed[1]:
            is_next = running.episode_id == episode.episode_id
        else:
            # Until its first completion began, a running turn has no episode yet.
            pinned = state.pinned and state.marked_session == state.selected
            is_next = running is not None and not (pinned and episode)
        if is_next:
            return ScoreTarget(
                episode=episode,
                refusal="the agent is still replying: score its reply when it has ended",
            )
        if episode is None:
            return ScoreTarget(episode=None, refusal="nothing to score yet: send a message first")
        return self.judge(episode)

    def point_at(self, session_id: str = "", episode_id: str = "") -> bool:
        """Mark what the cursor of a list stands on; return whether that is new.

        Args:
            session_id: the session; empty marks what is open.
            episode_id: its episode; empty is the open one, in another session the newest.
        """
        before, self._state.pointed = self._state.pointed, (session_id, episode_id)
        return before != self._state.pointed

    def judge(self, episode: EpisodeRow) -> ScoreTarget:
        """Return whether an episode takes a score, and if not why."""
        name = self._state.episode_name(episode)
        match episode.state:
            case "claimed" | "trained":
                where = "being trained" if episode.state == "claimed" else "trained"
                step = "" if episode.step is None else f" in step {episode.step}"
                return ScoreTarget(
                    episode=episode,
                    refusal=f"{name} is {where}{step} already: send another message first",
                )
            case "dropped":
                untrainable = reason_text(episode.dropped_reason) or "it was dropped"
            case _:
                turns = self._state.turns.get(episode.session_id, ())
                untrainable = why_untrainable(episode, turns, self._max_staleness)
        refusal = f"{name} can't be trained: {untrainable}" if untrainable else ""
        return ScoreTarget(episode=episode, refusal=refusal, untrainable=untrainable)

    # Scoring -------------------------------------------------------------------------------

    def score(self, reward: float, feedback: str | None = None) -> Coroutine[object, object, bool]:
        """Judge the episode that is marked now; return whether it was judged.

        Args:
            reward: the number.
            feedback: a sentence that says why; None adds none.
        """
        return self._score(self.target, reward, feedback)

    def toggle(self, reward: float, action_id: str = "") -> Coroutine[object, object, bool]:
        """Judge the episode that is marked now, or take the same reward back.

        Args:
            reward: the number.
            action_id: the action that gives this reward and no other; its key is named as the
                one that takes it back.
        """
        return self._score(self.target, reward, None, again=action_id, toggles=True)

    async def _score(
        self,
        target: ScoreTarget,
        reward: float,
        feedback: str | None,
        *,
        again: str = "",
        toggles: bool = False,
    ) -> bool:
        async with self._turn:
            # What the key was pressed for stays its target; its state may have moved on.
            episode = target.episode and self._state.episode(target.episode.episode_id)
            is_scored = episode is not None and episode.state == "scored"
            if toggles and episode and is_scored and episode.reward == reward:
                return await self._take_back(episode)
            refusal = self._refusal(target, reward, feedback)
            if refusal or episode is None:
                self.refuse(refusal)
                return False
            given = self._backend.set_reward(episode.episode_id, reward, feedback)
            if not await self._notifier.attempt(given):
                return False
            self._last_scored, self._again = episode.episode_id, again
            await self._notifier.attempt(self._rows.read_session(episode.session_id))
            self._report(episode.episode_id)
            return True

    def refuse(self, reason: str) -> None:
        """Tell the person why there is no score."""
        self._notifier.notify(Notice(text=reason, severity="warning", refuses_score=True))

    def _refusal(self, target: ScoreTarget, reward: float, feedback: str | None) -> str:
        low, high = self.range
        if target.refusal or target.episode is None:
            return target.refusal
        if not low <= reward <= high:
            bounds = f"{reward_text(low)} and {reward_text(high)}"
            return f"a reward lies between {bounds}; {reward_text(reward)} does not"
        return _too_long(feedback)

    def _report(self, episode_id: str, news: str = "") -> None:
        episode = self._state.episode(episode_id)
        if episode is not None and episode.state == "scored":
            text = f"{self._state.episode_name(episode)}: {news}{self.countdown(episode)}"
            self._notifier.notify(Notice(text=text, episode_id=episode_id))

    # Saying why ----------------------------------------------------------------------------

    @property
    def scored(self) -> EpisodeRow | None:
        """The episode whose score is taken back or explained next; None when none can be.

        The marked one when it is scored; else the last one that this view scored, else the newest
        one of the session. A step has not claimed it.
        """
        state = self._state
        rows = state.episodes_of(state.selected)
        newest = max(rows, key=lambda row: row.scored_at or 0.0, default=None)
        for row in (state.marked_episode, state.episode(self._last_scored), newest):
            if row is not None and row.state == "scored":
                return row
        return None

    async def explain(self, feedback: str, episode_id: str = "") -> bool:
        """Add a sentence to a score, which keeps its number; return whether it was added.

        Args:
            feedback: the sentence; empty takes the one away that is there.
            episode_id: the scored episode; empty takes that of ``scored``.
        """
        async with self._turn:
            episode = self._state.episode(episode_id) if episode_id else self.scored
            if episode is None or episode.state != "scored":
                self._notifier.say("score it first: a sentence goes with a score", "warning")
                return False
            if problem := _too_long(feedback):
                self._notifier.say(problem, "warning")
                return False
            given = self._backend.set_reward(episode.episode_id, None, feedback.strip())
            if not await self._notifier.attempt(given):
                return False
            await self._notifier.attempt(self._rows.read_session(episode.session_id))
            self._report(episode.episode_id, "why is kept · " if feedback.strip() else "")
            return True

    async def hold(self, episode_id: str) -> None:
        """Keep a score from being claimed, until cancelled: while its sentence is typed.

        Each renewal begins the grace anew. Returns when the score is gone or was claimed.
        """
        while (episode := self._state.episode(episode_id)) and episode.state == "scored":
            renewed = self._backend.set_reward(episode_id, None, episode.feedback or "")
            if not await self._notifier.attempt(renewed):
                return
            await asyncio.sleep(max(self.grace_s / 2, _MIN_HOLD_S))

    # Taking back ---------------------------------------------------------------------------

    def seconds_to_undo(self, episode: EpisodeRow | None) -> float:
        """Return for how many seconds a reward can surely be undone; 0.0 without a reward."""
        if episode is None or episode.state != "scored" or episode.scored_at is None:
            return 0.0
        return max(self.grace_s - (self._clock() - episode.scored_at), 0.0)

    def countdown(self, episode: EpisodeRow) -> str:
        """Return a scored episode in one line: its reward, when it trains, what takes it back.

        Such as ``scored +0.35 · trains in 4 s · F3 again or u takes it back``.
        """
        if episode.state != "scored" or episode.reward is None:
            return ""
        keys = [self._notifier.action_label("score_undo")]
        if self._again and episode.episode_id == self._last_scored:
            keys.insert(0, f"{self._notifier.action_label(self._again)} again")
        score = f"scored {reward_text(episode.reward)}"
        return f"{score} · {self._when(episode)} · {' or '.join(keys)} takes it back"

    def _when(self, episode: EpisodeRow) -> str:
        """Return when a scored episode is trained."""
        when, seconds = self.when(episode), self.seconds_to_undo(episode)
        return f"trains in {math.ceil(seconds)} s" if when == NEXT and seconds > 0 else when

    def when(self, episode: EpisodeRow) -> str:
        """Return what a scored episode waits for, beside the grace in which it is taken back."""
        return when_trained(self._state, episode, self._clock())

    async def undo(self) -> bool:
        """Take back the score that ``scored`` names; return whether it was taken back."""
        async with self._turn:
            if episode := self.scored:
                return await self._take_back(episode)
            self._notifier.say(*self._why_no_undo())
            return False

    def _why_no_undo(self) -> tuple[str, Literal["information", "warning"]]:
        rows = self._state.episodes_of(self._state.selected)
        last = self._state.episode(self._last_scored)
        judged = [row for row in (*rows, last) if row is not None and row.reward is not None]
        if not judged:
            return "nothing to undo: no episode here has a score", "information"
        row = max(judged, key=lambda row: row.scored_at or 0.0)
        where = f"trained in step {row.step}" if row.step is not None else row.state
        return f"{self._state.episode_name(row)} is {where}: too late to undo", "warning"

    async def _take_back(self, episode: EpisodeRow) -> bool:
        name = self._state.episode_name(episode)
        if not await self._notifier.attempt(self._backend.unset_reward(episode.episode_id)):
            return False
        self._last_scored = self._again = ""
        self._notifier.notify(Notice(text=f"{name}: score taken back"))
        await self._notifier.attempt(self._rows.read_session(episode.session_id))
        return True


_MIN_HOLD_S = 0.1
"""Pause between two renewals at least, whatever the grace."""


def _too_long(feedback: str | None) -> str:
    """Return what is wrong with a sentence; empty when nothing is."""
    if feedback is None or len(feedback) <= MAX_FEEDBACK_CHARS:
        return ""
    return f"the sentence has {len(feedback)} characters; {MAX_FEEDBACK_CHARS} are taken"
