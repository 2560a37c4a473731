"""Reading recorded episodes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from hermes_tui_training.api.types import Episode, EpisodeState
from hermes_tui_training.api.wire import EpisodeSummary
from hermes_tui_training.store.sqlite_rows import EPISODE_KEYS, WholeRows, episode_from
from hermes_tui_training.store.transactions import Transactions, UnknownIdError

_SUMMARY = """
    SELECT e.*, count(c.seq) AS num_completions,
        coalesce(sum(c.trainable), 0) AS num_trainable,
        coalesce(sum(c.trainable OR (c.reward IS NOT NULL AND c.policy_version_min IS NOT NULL
            AND c.untrainable_reason IN ('truncated', 'client_left'))), 0) AS num_learnable,
        (SELECT untrainable_reason FROM completions r WHERE r.episode_id = e.episode_id
            AND untrainable_reason IS NOT NULL ORDER BY kind = 'turn' DESC, seq LIMIT 1) AS why,
        coalesce(sum(c.status = 'lost'), 0) AS num_lost,
        min(c.policy_version_min) AS policy_version_min,
        max(c.policy_version_max) AS policy_version_max
    FROM ({chosen}) e LEFT JOIN completions c ON c.episode_id = e.episode_id
    GROUP BY e.seq ORDER BY e.seq
"""

_EPISODES = """
    SELECT episodes.*, coalesce(topic, sessions.task_id) AS topic, sampled_by
    FROM episodes JOIN sessions USING (session_id)
"""

_SUMMARY_KEYS = (
    "num_completions",
    "num_trainable",
    "num_lost",
    "policy_version_min",
    "policy_version_max",
)


class Episodes:
    """Reads the episodes of the store."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def get(self, episode_id: str) -> Episode:
        """Return an episode with its completions.

        Raises: UnknownIdError.
        """
        found = self._load("episode_id = ?", (episode_id,), 1)
        if not found:
            raise UnknownIdError("there is no such episode")
        return found[0]

    def id_of_completion(self, completion_id: str) -> str:
        """Return the id of the episode that a completion belongs to.

        Raises: UnknownIdError.
        """
        rows = self._transactions.database.query(
            "SELECT episode_id FROM completions WHERE completion_id = ?", (completion_id,)
        )
        if not rows:
            raise UnknownIdError("there is no such completion")
        return str(rows[0]["episode_id"])

    def newest_of(self, session_id: str) -> Episode | None:
        """Return a session's newest episode, whatever its state; None before the first."""
        rows = self._transactions.database.query(
            "SELECT episode_id FROM episodes WHERE session_id = ? ORDER BY seq DESC LIMIT 1",
            (session_id,),
        )
        return self.get(rows[0]["episode_id"]) if rows else None

    def find(
        self,
        *,
        session_id: str | None = None,
        group_id: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Episode]:
        """Return episodes with their completions, oldest first; ``after`` is an episode's id."""
        where, parameters = _episode_filter(session_id, group_id, state, after)
        return self._load(where, parameters, limit)

    def _load(self, where: str, parameters: Sequence[Any], limit: int) -> list[Episode]:
        with self._transactions.database.exclusive() as connection:
            rows = connection.execute(
                f"SELECT * FROM ({_EPISODES}) WHERE {where} ORDER BY seq LIMIT ?",  # noqa: S608
                (*parameters, limit),
            ).fetchall()
            whole = WholeRows(connection)
            return [
                episode_from(
                    row,
                    [
                        whole.completion(completion)
                        for completion in connection.execute(
                            "SELECT * FROM completions WHERE episode_id = ? ORDER BY seq",
                            (row["episode_id"],),
                        )
                    ],
                    connection.execute(
                        "SELECT * FROM rewards WHERE episode_id = ? ORDER BY seq",
                        (row["episode_id"],),
                    ).fetchall(),
                )
                for row in rows
            ]

    def summaries(
        self,
        *,
        session_id: str | None = None,
        group_id: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[EpisodeSummary]:
        """Return episodes without their completions, oldest first; ``staleness`` is not set."""
        where, parameters = _episode_filter(session_id, group_id, state, after)
        chosen = f"SELECT * FROM ({_EPISODES}) WHERE {where} ORDER BY seq LIMIT ?"  # noqa: S608
        rows = self._transactions.database.query(
            _SUMMARY.format(chosen=chosen), (*parameters, limit)
        )
        keys = (*EPISODE_KEYS, *_SUMMARY_KEYS)
        return [
            EpisodeSummary(
                **{key: row[key] for key in keys},
                will_train=(reason := _obstacle(row)) is None,
                reason=reason,
            )
            for row in rows
        ]

    def num_by_state(self) -> dict[EpisodeState, int]:
        """Return the number of episodes by state."""
        query = "SELECT state, count(*) FROM episodes GROUP BY state"
        return {row[0]: row[1] for row in self._transactions.database.query(query)}


def _obstacle(row: sqlite3.Row) -> str | None:
    """Return what ``Episode.obstacle`` says, from an episode's summary."""
    if row["dropped_reason"] is not None:
        return str(row["dropped_reason"])
    if row["num_lost"]:
        return "incomplete"
    if row["sampled_by"] is not None and row["state"] != "trained":
        return "other_model"
    if row["num_learnable"] or not row["num_completions"]:
        return None
    return str(row["why"] or "no_token_ids")


def _episode_filter(
    session_id: str | None, group_id: str | None, state: str | None, after: str | None
) -> tuple[str, list[Any]]:
    """Return a WHERE clause over ``episodes`` and its parameters."""
    given = {"session_id = ?": session_id, "group_id = ?": group_id, "state = ?": state}
    after_clause = "seq > coalesce((SELECT seq FROM episodes WHERE episode_id = ?), 0)"
    given[after_clause] = after
    present = {clause: value for clause, value in given.items() if value is not None}
    return " AND ".join(present) or "1", list(present.values())
