"""Reads from the database which scored episodes belong together."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence

from hermes_tui_training.algorithm.groups import SiblingGroup

_AWAITED = ("open", "ended")
"""Episodes in these states may still be scored; one that was closed without a reward may not."""


def read_sibling_groups(connection: sqlite3.Connection, now: float) -> list[SiblingGroup]:
    """Return the groups that have a scored episode, oldest first.

    What another model sampled than the one that is served waits for that one.

    Args:
        connection: of the trainer's database.
        now: seconds since the epoch.
    """
    rows = connection.execute(
        "SELECT group_id FROM episodes JOIN sessions USING (session_id, group_id) "
        "WHERE state = 'scored' AND sampled_by IS NULL GROUP BY group_id"
    ).fetchall()
    groups = [group for row in rows for group in _groups_of(connection, row["group_id"], now)]
    return sorted(groups, key=lambda group: group.seq)


def _groups_of(connection: sqlite3.Connection, group_id: str, now: float) -> list[SiblingGroup]:
    """Return the scored groups that the sessions of a ``group_id`` form.

    Number n holds the n-th episode of each session. A branch that is compared with a later episode
    of the session that it left has its first one there.
    """
    sessions = connection.execute(
        "SELECT session_id, ended_at, group_position, sampled_by FROM sessions WHERE group_id = ?",
        (group_id,),
    ).fetchall()
    first = {row["session_id"]: int(row["group_position"]) for row in sessions}
    episodes = connection.execute(
        "SELECT e.* FROM episodes e JOIN sessions s USING (session_id) "
        "WHERE e.group_id = ? AND s.sampled_by IS NULL ORDER BY e.seq",
        (group_id,),
    ).fetchall()
    by_position: list[list[sqlite3.Row]] = []
    num_seen: dict[str, int] = {}
    for row in episodes:
        session_id = row["session_id"]
        position = first[session_id] + num_seen.get(session_id, 0)
        num_seen[session_id] = num_seen.get(session_id, 0) + 1
        by_position += [[] for _ in range(position + 1 - len(by_position))]
        by_position[position].append(row)
    # A session that has not begun is waited for with its first episode only. Later on only those
    # that took part count: a person may go on with one sibling alone.
    silent = Counter(
        first[s["session_id"]]
        for s in sessions
        if s["sampled_by"] is None and s["ended_at"] is None and s["session_id"] not in num_seen
    )
    return [
        _group(group_id, rows, silent[position], now)
        for position, rows in enumerate(by_position)
        if any(row["state"] == "scored" for row in rows)
    ]


def _group(group_id: str, rows: Sequence[sqlite3.Row], num_silent: int, now: float) -> SiblingGroup:
    scored = [row for row in rows if row["state"] == "scored"]
    # A reward of the future was given before the clock was set back: nothing waits for its time.
    times = [row["scored_at"] if row["scored_at"] <= now else 0.0 for row in scored]
    return SiblingGroup(
        group_id=group_id,
        task_id=scored[0]["task_id"],
        episode_ids=tuple(row["episode_id"] for row in scored),
        seq=scored[0]["seq"],
        first_scored_at=min(times),
        last_scored_at=max(times),
        num_awaited=num_silent + sum(row["state"] in _AWAITED for row in rows),
    )
