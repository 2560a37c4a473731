"""What a scored episode waits for, in words."""

from __future__ import annotations

import math

from hermes_tui.core.models import EpisodeRow
from hermes_tui.core.sanitize import one_line
from hermes_tui.core.state import ViewState
from hermes_tui_common.disk import PHRASE

NEXT = "trains next"
"""A scored episode waits for nothing but the grace and the step that runs."""


def when_trained(state: ViewState, episode: EpisodeRow, now: float) -> str:
    """Return when a scored episode is trained, such as ``waits for 2 siblings, at most 48 s more``.

    Args:
        state: what is known.
        episode: scored, and not claimed yet.
        now: seconds since the epoch.
    """
    trainer, session = state.trainer, state.sessions.get(episode.session_id)
    if session is not None and session.sampled_by:
        return f"waits until {one_line(session.sampled_by)} is served again"
    if trainer.state == "paused":
        return "training is held"
    if trainer.learner_lost:
        return "the learner is not there"
    if trainer.reason.startswith(PHRASE):
        return one_line(trainer.reason)
    if siblings := siblings_wait(state, episode, now):
        return siblings
    missing = trainer.batch_size - max(trainer.num_scored, 1)
    return f"trains with {missing} more" if missing > 0 else NEXT


def siblings_wait(state: ViewState, episode: EpisodeRow, now: float) -> str:
    """Return how a scored episode waits for its siblings; empty when it does not."""
    session = state.sessions.get(episode.session_id)
    if session is None or not session.group_id:
        return ""
    for group in state.trainer.groups:
        if group.group_id == session.group_id:
            left, many = group.ready_at - now, group.num_missing != 1
            siblings = f"{group.num_missing} sibling{'s' if many else ''}"
            return f"waits for {siblings}, at most {math.ceil(left)} s more" if left > 0 else ""
    # The trainer has not told of this group yet. With nothing ready, it can't be trained next.
    if state.trainer.num_scored or not lacks_scores(state, session.group_id):
        return ""
    return "waits for the rest of its group"


def lacks_scores(state: ViewState, group_id: str) -> bool:
    """Return whether the newest episode of any sibling of a group may still be scored."""
    newest = [
        state.latest(session.session_id)
        for session in state.sessions.values()
        if session.group_id == group_id
    ]
    return any(row is not None and row.state in ("open", "ended", "unscored") for row in newest)
