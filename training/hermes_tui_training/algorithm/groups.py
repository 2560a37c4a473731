"""Scored episodes that are trained together: siblings of one group, or one lone episode.

Siblings are the sessions of one ``group_id``. Their first episodes are compared with each other,
then their second ones, and so on. Each such set is one ``SiblingGroup``. It waits for siblings that
may still be scored, for at most ``training.group.timeout_s`` after its first reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingGroup:
    """Scored episodes that one step takes together; a lone episode is a group of one."""

    group_id: str
    """Their group."""
    task_id: str
    """Their task."""
    episode_ids: tuple[str, ...]
    """The scored ones, oldest first; at least one."""
    seq: int
    """Position of the oldest among all episodes."""
    first_scored_at: float
    """When the first reward was given, seconds since the epoch."""
    last_scored_at: float
    """When the last one was."""
    num_awaited: int
    """Siblings that may still be scored."""

    @property
    def num_siblings(self) -> int:
        """How many it could become."""
        return len(self.episode_ids) + self.num_awaited

    def ready_at(self, grace_s: float, timeout_s: float) -> float:
        """Return from when on it may be claimed, seconds since the epoch.

        Args:
            grace_s: for how long a reward may be taken back.
            timeout_s: for how long, from the first reward on, siblings are waited for.
        """
        graced = self.last_scored_at + grace_s
        return max(graced, self.first_scored_at + timeout_s) if self.num_awaited else graced


def waiting_text(
    groups: Sequence[SiblingGroup], *, batch_size: int, grace_s: float, timeout_s: float, now: float
) -> str:
    """Say in words what the next step waits for.

    Args:
        groups: what has been scored.
        batch_size: groups that make a step.
        grace_s, timeout_s: as for ``SiblingGroup.ready_at``.
        now: seconds since the epoch.
    """
    whole = [group for group in groups if not group.num_awaited]
    parts = [f"{len(whole)} of {batch_size} scored"]
    held_s = max((group.last_scored_at for group in whole), default=0.0) + grace_s - now
    if len(whole) >= batch_size and held_s > 0:
        parts.append(f"{held_s:.1f} s left to take it back")
    for group in groups:
        left_s = group.ready_at(grace_s, timeout_s) - now
        if group.num_awaited and left_s > 0:
            parts.append(
                f"{_named(group.group_id)} has {len(group.episode_ids)} of {group.num_siblings} "
                f"scored and waits up to {left_s:.0f} s for the others"
            )
    return "; ".join(parts)


def _named(group_id: str) -> str:
    """Return a group's id as the subject of a sentence; those that we mint say what they are."""
    return group_id if group_id.startswith("group") else f"group {group_id}"
