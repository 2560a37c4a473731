"""Which scored episodes go to the weights together: a group's siblings, or a lone episode.

Siblings are the sessions of one ``group_id``. The first episode of each is held against the first
episodes of the others, the second against the second, and so on: a *round*. A round waits for
siblings that may still be scored, until ``training.group.timeout_s`` after its first reward.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

_AWAITED = ("open", "ended")
"""States of an episode that a person may still be judging; one closed without a reward is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Scored episodes that are claimed together."""

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


def read_units(connection: sqlite3.Connection) -> list[Unit]:
    """Return what waits to be claimed, oldest first."""
    groups = connection.execute(
        "SELECT group_id FROM episodes WHERE state = 'scored' GROUP BY group_id"
    ).fetchall()
    units = [unit for row in groups for unit in _group_units(connection, row["group_id"])]
    return sorted(units, key=lambda unit: unit.seq)


def _group_units(connection: sqlite3.Connection, group_id: str) -> list[Unit]:
    """Return the rounds of a group that have a scored episode."""
    sessions = connection.execute(
        "SELECT session_id, ended_at FROM sessions WHERE group_id = ?", (group_id,)
    ).fetchall()
    episodes = connection.execute(
        "SELECT episode_id, session_id, task_id, state, seq, scored_at FROM episodes "
        "WHERE group_id = ? ORDER BY seq",
        (group_id,),
    ).fetchall()
    rounds: list[list[sqlite3.Row]] = []
    counts: dict[str, int] = {}
    for row in episodes:
        index = counts.get(row["session_id"], 0)
        counts[row["session_id"]] = index + 1
        if index == len(rounds):
            rounds.append([])
        rounds[index].append(row)
    # A sibling that has not begun is waited for in the first round; later rounds are of those
    # that took part, since a person may well go on with one of them alone.
    num_silent = sum(s["ended_at"] is None and s["session_id"] not in counts for s in sessions)
    return [
        _unit(group_id, rows, num_silent if index == 0 else 0)
        for index, rows in enumerate(rounds)
        if any(row["state"] == "scored" for row in rows)
    ]


def _unit(group_id: str, rows: Sequence[sqlite3.Row], num_silent: int) -> Unit:
    scored = [row for row in rows if row["state"] == "scored"]
    times = [row["scored_at"] for row in scored]
    return Unit(
        group_id=group_id,
        task_id=scored[0]["task_id"],
        episode_ids=tuple(row["episode_id"] for row in scored),
        seq=scored[0]["seq"],
        first_scored_at=min(times),
        last_scored_at=max(times),
        num_awaited=num_silent + sum(row["state"] in _AWAITED for row in rows),
    )


def waiting_text(
    units: Sequence[Unit], *, batch_size: int, grace_s: float, timeout_s: float, now: float
) -> str:
    """Say in words what the next step waits for.

    Args:
        units: what has been scored.
        batch_size: units that make a step.
        grace_s, timeout_s: as for ``Unit.ready_at``.
        now: seconds since the epoch.
    """
    whole = [unit for unit in units if not unit.num_awaited]
    parts = [f"{len(whole)} of {batch_size} scored"]
    held_s = max((unit.last_scored_at for unit in whole), default=0.0) + grace_s - now
    if len(whole) >= batch_size and held_s > 0:
        parts.append(f"{held_s:.1f} s left to take it back")
    for unit in units:
        left_s = unit.ready_at(grace_s, timeout_s) - now
        if unit.num_awaited and left_s > 0:
            parts.append(
                f"{_named(unit.group_id)} has {len(unit.episode_ids)} of {unit.num_siblings} "
                f"scored and waits up to {left_s:.0f} s for the others"
            )
    return "; ".join(parts)


def _named(group_id: str) -> str:
    """Return a group's id as the subject of a sentence; those that we mint say what they are."""
    return group_id if group_id.startswith("group") else f"group {group_id}"
