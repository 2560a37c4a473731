"""Rewards that people and programs give to episodes."""

from __future__ import annotations

import sqlite3

from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import Episode
from hermes_tui_training.store.episodes import Episodes
from hermes_tui_training.store.transactions import (
    ConflictError,
    Transactions,
    UnknownIdError,
    Writer,
)


class Rewards:
    """Gives rewards to episodes, and takes them back."""

    def __init__(self, transactions: Transactions, episodes: Episodes) -> None:
        self._transactions = transactions
        self._episodes = episodes

    def set(self, episode_id: str, reward: float, *, completion_id: str | None = None) -> Episode:
        """Give an episode (or one of its completions) a reward; return the episode.

        A reward that a step has not claimed yet is replaced; the log keeps all.
        Raises: UnknownIdError. ConflictError: a completion is in flight (passing), or the episode
            was claimed, trained or dropped.
        """
        with self._transactions.write() as write:
            row = write.episode_row(episode_id)
            _require_scorable(write, row)
            if completion_id is not None:
                changed = write.execute(
                    "UPDATE completions SET reward = ? WHERE completion_id = ? AND episode_id = ?",
                    (reward, completion_id, episode_id),
                ).rowcount
                if not changed:
                    raise UnknownIdError(f"episode {episode_id} has no completion {completion_id}")
            whole = write.execute(
                "SELECT count(*) FROM rewards WHERE episode_id = ? AND completion_id IS NULL",
                (episode_id,),
            ).fetchone()[0]
            in_force = row["reward"] if completion_id is not None and whole else reward
            write.execute(
                "INSERT INTO rewards (episode_id, completion_id, reward, at) VALUES (?, ?, ?, ?)",
                (episode_id, completion_id, reward, write.at),
            )
            write.set_episode(
                episode_id,
                EventKind.EPISODE_SCORED,
                state="scored",
                reward=in_force,
                scored_at=write.at,
            )
        return self._episodes.get(episode_id)

    def unset(self, episode_id: str) -> Episode:
        """Take all rewards of an episode back; return it.

        The session's newest episode is open again while the session runs, any other is
        ``unscored``. An episode without a reward stays what it is.
        Raises: UnknownIdError. ConflictError: the episode was claimed, trained or dropped.
        """
        with self._transactions.write() as write:
            row = write.episode_row(episode_id)
            _require_scorable(write, row)
            if row["state"] == "scored":
                write.execute("DELETE FROM rewards WHERE episode_id = ?", (episode_id,))
                write.execute(
                    "UPDATE completions SET reward = NULL WHERE episode_id = ?", (episode_id,)
                )
                newer = write.execute(
                    "SELECT 1 FROM episodes WHERE session_id = ? AND seq > ? "
                    "UNION ALL SELECT 1 FROM sessions WHERE session_id = ? "
                    "AND ended_at IS NOT NULL",
                    (row["session_id"], row["seq"], row["session_id"]),
                ).fetchone()
                write.set_episode(
                    episode_id,
                    EventKind.EPISODE_UNSCORED,
                    state="unscored" if newer else "open",
                    reward=None,
                    scored_at=None,
                )
        return self._episodes.get(episode_id)


def _require_scorable(write: Writer, row: sqlite3.Row) -> None:
    """Raise ConflictError unless an episode may get a reward now."""
    episode_id, step = row["episode_id"], row["step"]
    match row["state"]:
        case "trained":
            raise ConflictError(f"episode {episode_id} was already trained as part of step {step}")
        case "claimed":
            raise ConflictError(f"episode {episode_id} is being trained as part of step {step}")
        case "dropped":
            reason = row["dropped_reason"]
            raise ConflictError(f"episode {episode_id} was dropped ({reason}): it is not trained")
    running = write.execute(
        "SELECT completion_id FROM completions WHERE episode_id = ? AND status = 'running'",
        (episode_id,),
    ).fetchone()
    if running is not None:
        raise ConflictError(
            f"completion {running['completion_id']} of episode {episode_id} is still being "
            "sampled: give the reward when it has ended",
            passing=True,
        )
