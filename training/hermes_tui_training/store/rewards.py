"""Rewards that people and programs give to episodes."""

from __future__ import annotations

import sqlite3

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import Episode
from hermes_tui_training.store.episodes import Episodes
from hermes_tui_training.store.transactions import (
    ConflictError,
    Transactions,
    UnknownIdError,
    Writer,
)


class NoRewardError(TrainingError):
    """A sentence was to be added to a reward that was never given."""


class Rewards:
    """Gives rewards to episodes, and takes them back."""

    def __init__(self, transactions: Transactions, episodes: Episodes) -> None:
        self._transactions = transactions
        self._episodes = episodes

    def set(
        self,
        episode_id: str,
        reward: float | None,
        *,
        completion_id: str | None = None,
        feedback: str | None = None,
    ) -> Episode:
        """Give an episode (or one of its completions) a reward; return the episode.

        A reward that a step has not claimed yet is replaced; the log keeps all.

        Args:
            episode_id: the episode.
            reward: the number; None keeps the one in force, for a sentence that comes later.
            completion_id: the completion that is rewarded alone; None for the whole episode.
            feedback: a sentence that says why; empty takes it away, None keeps what was said.

        Raises: UnknownIdError. NoRewardError: there is no reward to keep. ConflictError: a
            completion is in flight (passing), or the episode was claimed, trained or dropped.
        """
        said = None if feedback is None else feedback.strip() or None
        with self._transactions.write() as write:
            row = write.episode_row(episode_id)
            _require_scorable(write, row)
            if reward is None:
                in_force = _add_feedback(write, row, said)
            else:
                in_force = _give(write, row, reward, completion_id, said)
            write.set_episode(
                episode_id,
                EventKind.EPISODE_SCORED,
                state="scored",
                reward=in_force,
                feedback=row["feedback"] if feedback is None else said,
                scored_at=write.at,
            )
        return self._episodes.get(episode_id)

    def unset(self, episode_id: str) -> Episode:
        """Take all rewards of an episode back, and what was said with them; return it.

        The session's newest episode is open again while the session runs, any other is
        ``unscored``. An episode without a reward stays what it is.
        Raises: UnknownIdError. ConflictError: the episode was claimed, trained or dropped.
        """
        with self._transactions.write() as write:
            row = write.episode_row(episode_id)
            _require_scorable(write, row)
            if row["state"] == "scored":
                write.execute(
                    "UPDATE rewards SET taken_back_at = ? "
                    "WHERE episode_id = ? AND taken_back_at IS NULL",
                    (write.at, episode_id),
                )
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
                    feedback=None,
                    scored_at=None,
                )
        return self._episodes.get(episode_id)


def score_unjudged(write: Writer, episode_id: str, reward: float | None) -> None:
    """Give an episode that closed without a reward the one that stands for none.

    Nothing happens to an episode that is open, has a reward, or in which something is sampled.

    Args:
        reward: the number; None gives nothing.
    """
    row = write.episode_row(episode_id)
    if reward is None or row["state"] not in ("ended", "unscored"):
        return
    if _running_completion(write, episode_id) is None:
        _give(write, row, reward, None, None)
        write.set_episode(
            episode_id,
            EventKind.EPISODE_SCORED,
            state="scored",
            reward=reward,
            scored_at=write.at,
        )


def _running_completion(write: Writer, episode_id: str) -> str | None:
    """Return the id of a completion of an episode that is in flight, or None."""
    row = write.execute(
        "SELECT completion_id FROM completions WHERE episode_id = ? AND status = 'running'",
        (episode_id,),
    ).fetchone()
    return None if row is None else str(row["completion_id"])


def _give(
    write: Writer, row: sqlite3.Row, reward: float, completion_id: str | None, said: str | None
) -> float:
    """Add a reward to the log; return the episode's reward in force."""
    episode_id = row["episode_id"]
    if completion_id is not None:
        changed = write.execute(
            "UPDATE completions SET reward = ? WHERE completion_id = ? AND episode_id = ?",
            (reward, completion_id, episode_id),
        ).rowcount
        if not changed:
            raise UnknownIdError("the episode has no such completion")
    whole = write.execute(
        "SELECT count(*) FROM rewards "
        "WHERE episode_id = ? AND completion_id IS NULL AND taken_back_at IS NULL",
        (episode_id,),
    ).fetchone()[0]
    write.execute(
        "INSERT INTO rewards (episode_id, completion_id, reward, at, feedback) "
        "VALUES (?, ?, ?, ?, ?)",
        (episode_id, completion_id, reward, write.at, said),
    )
    return row["reward"] if completion_id is not None and whole else reward


def _add_feedback(write: Writer, row: sqlite3.Row, said: str | None) -> float:
    """Write a sentence beside the newest reward; return the episode's reward in force."""
    if row["state"] != "scored":
        raise NoRewardError(f"episode {row['episode_id']} has no reward yet")
    write.execute(
        "UPDATE rewards SET feedback = ? WHERE seq = (SELECT max(seq) FROM rewards "
        "WHERE episode_id = ? AND taken_back_at IS NULL)",
        (said, row["episode_id"]),
    )
    return float(row["reward"])


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
    running = _running_completion(write, episode_id)
    if running is not None:
        raise ConflictError(
            f"completion {running} of episode {episode_id} is still being "
            "sampled: give the reward when it has ended",
            passing=True,
        )
