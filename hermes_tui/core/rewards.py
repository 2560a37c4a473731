"""Judging episodes."""

from __future__ import annotations

from hermes_tui.core.changes import Notice
from hermes_tui.core.context import ViewContext
from hermes_tui.core.models import EpisodeRow
from hermes_tui.core.row_reader import RowReader


class Rewards:
    """Gives rewards, and takes them back.

    Args:
        context: the stack, and the episodes that are known.
        rows: reads an episode's session again after a reward.
        grace_s: seconds until the trainer may claim a judged episode; until then it can be undone.
        range_: lowest and highest reward.
    """

    def __init__(
        self,
        context: ViewContext,
        rows: RowReader,
        *,
        grace_s: float = 2.0,
        range_: tuple[float, float] = (-1.0, 1.0),
    ) -> None:
        self.grace_s = grace_s
        self.range = range_
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier
        self._clock = context.clock
        self._rows = rows

    async def score(self, reward: float) -> None:
        """Judge the newest episode of the selected session."""
        episode = self._episode_to_judge()
        low, high = self.range
        if episode is None:
            return
        if not low <= reward <= high:
            text = f"a reward lies between {low:+g} and {high:+g}; {reward:+g} does not"
            self._notifier.say(text, "warning")
        elif await self._notifier.attempt(self._backend.set_reward(episode.episode_id, reward)):
            key = self._notifier.action_label("score_undo")
            name = self._state.episode_name(episode)
            self._notifier.say(f"{name}: {reward:+.1f} · {key} undoes it ({self.grace_s:g} s)")
            await self._notifier.attempt(self._rows.read_session(episode.session_id))

    def seconds_to_undo(self, episode: EpisodeRow | None) -> float:
        """Return for how many seconds a reward can surely be undone; 0.0 without a reward."""
        if episode is None or episode.state != "scored" or episode.scored_at is None:
            return 0.0
        return max(self.grace_s - (self._clock() - episode.scored_at), 0.0)

    async def undo(self) -> None:
        """Take back the reward of the selected session's newest judged episode."""
        rows = self._state.episodes_of(self._state.selected)
        judged = [row for row in rows if row.reward is not None]
        if not judged:
            self._notifier.say("nothing to undo: no episode here has a score")
            return
        newest = judged[-1]
        name = self._state.episode_name(newest)
        if newest.state != "scored":
            where = f"trained in step {newest.step}" if newest.step is not None else newest.state
            self._notifier.say(f"{name} is {where}: too late to undo", "warning")
        elif await self._notifier.attempt(self._backend.unset_reward(newest.episode_id)):
            self._notifier.notify(Notice(text=f"{name}: score taken back"))
            await self._notifier.attempt(self._rows.read_session(newest.session_id))

    def _episode_to_judge(self) -> EpisodeRow | None:
        """Return the episode that a score is for; None when there is none, which is reported."""
        state = self._state
        if not state.info.training:
            self._notifier.say("training is off: there is nothing to score")
            return None
        if state.running_turn(state.selected):
            self._notifier.say("the agent is still replying: score its reply when it has ended")
            return None
        if episode := state.to_score(state.selected):
            return episode
        if latest := state.latest(state.selected):
            name = state.episode_name(latest)
            self._notifier.say(f"{name} is {latest.state} already: send another message first")
        else:
            self._notifier.say("nothing to score yet: send a message first")
        return None
