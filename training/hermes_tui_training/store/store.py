"""What the trainer remembers: sessions, episodes, completions, rewards, steps, events.

One process owns the file (``trajectories.db``). Methods block for up to a few milliseconds, so
coroutines call them through ``asyncio.to_thread``; they are safe to use from any thread. A write
that returned survives the death of the process. Every change appends an event in its own
transaction and then wakes the subscribers.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import (
    Base,
    Completion,
    CompletionKind,
    CompletionOutcome,
    Episode,
    Session,
)
from hermes_tui_training.store.database import floats_to_blob, ints_to_blob, to_json
from hermes_tui_training.store.retention_queries import RetentionStore
from hermes_tui_training.store.sqlite_rows import (
    WholeRows,
    episode_payload,
    flatten_top,
    session_from,
)
from hermes_tui_training.store.steps import StepStore
from hermes_tui_training.store.transactions import ConflictError, UnknownIdError, Writer, new_id

__all__ = ["ConflictError", "Store", "UnknownIdError", "hash_key", "new_id"]

_SESSION = """
    SELECT s.*,
        (SELECT count(*) FROM episodes e WHERE e.session_id = s.session_id) AS num_episodes,
        (SELECT count(*) FROM completions c WHERE c.session_id = s.session_id) AS num_completions
    FROM sessions s
"""


def hash_key(key: str) -> str:
    """Return the SHA-256 of a session key, in hexadecimal: all that is stored of it."""
    return hashlib.sha256(key.encode()).hexdigest()


class Store(StepStore, RetentionStore):
    """The trainer's database.

    Reading episodes is in ``store_episodes``, what the orchestrator does in ``store_steps``, the
    canary's answers in ``store_canaries``, what bounds the size in ``store_retention``, events and
    meta values in ``store_base``.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        """Open or make the file; completions that ran when its last owner died are now ``lost``.

        Args:
            path: ``trajectories.db`` of the run directory.
            now: seconds since the epoch.

        Raises: ConfigError: the file cannot be opened.
        """
        super().__init__(path, now=now)
        self._mark_lost()

    def _mark_lost(self) -> None:
        with self._write() as write:
            rows = write.execute("SELECT * FROM completions WHERE status = 'running'").fetchall()
            for row in rows:
                write.execute(
                    "UPDATE completions SET status = 'lost', untrainable_reason = 'lost', "
                    "error = ? WHERE completion_id = ?",
                    ("the trainer stopped before the outcome was recorded", row["completion_id"]),
                )
                write.event(
                    EventKind.COMPLETION_FINISHED,
                    {
                        "completion_id": row["completion_id"],
                        "session_id": row["session_id"],
                        "episode_id": row["episode_id"],
                        "status": "lost",
                        "trainable": False,
                        "untrainable_reason": "lost",
                    },
                )

    # -- sessions ---------------------------------------------------------------------------

    def create_session(self, *, key_hash: str, task_id: str, group_id: str) -> Session:
        """Start a session; a running one under the same key is ended in the same transaction.

        The old session's open episode becomes ``unscored``.
        Raises: ConflictError: the group is another task's.
        """
        session_id = new_id("sess-")
        with self._write() as write:
            other = write.execute(
                "SELECT task_id FROM sessions WHERE group_id = ? AND task_id != ?",
                (group_id, task_id),
            ).fetchone()
            if other is not None:
                raise ConflictError(
                    f"group {group_id} belongs to the task {other['task_id']!r}: "
                    "a group holds sessions of one task"
                )
            running = write.execute(
                "SELECT session_id FROM sessions WHERE key_hash = ? AND ended_at IS NULL",
                (key_hash,),
            ).fetchall()
            for row in running:
                self._end_session(write, row["session_id"], "unscored")
            write.execute(
                "INSERT INTO sessions (session_id, key_hash, task_id, group_id, created_at, "
                "last_active_at) VALUES (?, ?, ?, ?, ?, ?)",
                (session_id, key_hash, task_id, group_id, write.at, write.at),
            )
            write.event(
                EventKind.SESSION_STARTED,
                {"session_id": session_id, "task_id": task_id, "group_id": group_id},
            )
        session = self.session(session_id)
        assert session is not None
        return session

    def session(self, session_id: str) -> Session | None:
        """Return a session, or None."""
        rows = self._database.query(f"{_SESSION} WHERE s.session_id = ?", (session_id,))
        return session_from(rows[0]) if rows else None

    def session_by_key_hash(self, key_hash: str) -> Session | None:
        """Return the newest session of a key, ended or not; None for an unknown key."""
        rows = self._database.query(
            f"{_SESSION} WHERE s.key_hash = ? ORDER BY s.rowid DESC LIMIT 1", (key_hash,)
        )
        return session_from(rows[0]) if rows else None

    def sessions(self, *, limit: int = 1000) -> list[Session]:
        """Return the newest sessions, oldest first."""
        rows = self._database.query(f"{_SESSION} ORDER BY s.rowid DESC LIMIT ?", (limit,))
        return [session_from(row) for row in reversed(rows)]

    def num_sessions(self) -> int:
        """Return how many sessions run."""
        rows = self._database.query("SELECT count(*) FROM sessions WHERE ended_at IS NULL")
        return int(rows[0][0])

    def end_session(self, session_id: str) -> Session:
        """End a session, if it was not ended yet; its open episode becomes ``ended``.

        Raises: UnknownIdError.
        """
        with self._write() as write:
            self._end_session(write, session_id, "ended")
        session = self.session(session_id)
        if session is None:
            raise UnknownIdError(f"there is no session {session_id!r}")
        return session

    def _end_session(self, write: Writer, session_id: str, state: str) -> None:
        changed = write.execute(
            "UPDATE sessions SET ended_at = ? WHERE session_id = ? AND ended_at IS NULL",
            (write.at, session_id),
        ).rowcount
        if not changed:
            return
        row = self._open_row(write, session_id)
        if row is not None:
            write.set_episode(row["episode_id"], EventKind.EPISODE_ENDED, state=state)
        write.event(EventKind.SESSION_ENDED, {"session_id": session_id})

    @staticmethod
    def _open_row(write: Writer, session_id: str) -> sqlite3.Row | None:
        row = write.execute(
            "SELECT * FROM episodes WHERE session_id = ? ORDER BY seq DESC LIMIT 1", (session_id,)
        ).fetchone()
        return row if row is not None and row["state"] == "open" else None

    # -- completions ------------------------------------------------------------------------

    def begin_completion(
        self,
        *,
        completion_id: str,
        session_id: str,
        prompt_token_ids: Sequence[int],
        sampling: dict[str, Any],
        request_messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        prefix: dict[str, Any],
        kind: CompletionKind = "turn",
        retry_of: str | None = None,
        base: Base | None = None,
    ) -> tuple[str, int]:
        """Record a request before the engine sees it; return its episode's id and its turn_index.

        Goes into the session's open episode; opens one when there is none.

        Args:
            retry_of: a completion that this one replaces; it becomes an aux call, so that the
                episode's turns are those that the person saw.
            base: a finished completion that this one begins with; what they share is not stored
                again, so that a long conversation costs no more per turn than a short one.

        Raises: ConflictError: the session was ended. UnknownIdError.
        """
        with self._write(durable=False) as write:
            session = write.execute(
                "SELECT * FROM sessions WHERE session_id = ?", (session_id,)
            ).fetchone()
            if session is None:
                raise UnknownIdError(f"there is no session {session_id!r}")
            if session["ended_at"] is not None:
                raise ConflictError(f"session {session_id} has been ended")
            episode = self._open_row(write, session_id) or self._open_episode(write, session)
            episode_id: str = episode["episode_id"]
            turn_index: int = write.execute(
                "SELECT count(*) FROM completions WHERE episode_id = ?", (episode_id,)
            ).fetchone()[0]
            columns = {
                "completion_id": completion_id,
                "episode_id": episode_id,
                "session_id": session_id,
                "turn_index": turn_index,
                "created_at": write.at,
                "status": "running",
                "kind": kind,
                "sampling": to_json(sampling),
                "tools": to_json(tools),
                "prefix": to_json(prefix),
                **_new_part(prompt_token_ids, request_messages, base),
            }
            write.execute(
                f"INSERT INTO completions ({', '.join(columns)}) "  # noqa: S608  # our names
                f"VALUES ({', '.join('?' * len(columns))})",
                tuple(columns.values()),
            )
            if retry_of is not None:
                write.execute(
                    "UPDATE completions SET kind = 'aux', trainable = 0, "
                    "untrainable_reason = coalesce(untrainable_reason, 'aux_call') "
                    "WHERE completion_id = ? AND episode_id = ?",
                    (retry_of, episode_id),
                )
            write.execute(
                "UPDATE sessions SET last_active_at = ? WHERE session_id = ?",
                (write.at, session_id),
            )
            write.event(
                EventKind.COMPLETION_STARTED,
                {
                    "completion_id": completion_id,
                    "session_id": session_id,
                    "episode_id": episode_id,
                    "turn_index": turn_index,
                    "kind": kind,
                    "num_prompt_tokens": len(prompt_token_ids),
                    "prefix": prefix,
                },
            )
        return episode_id, turn_index

    @staticmethod
    def _open_episode(write: Writer, session: sqlite3.Row) -> sqlite3.Row:
        episode_id = new_id("ep-")
        write.execute(
            "INSERT INTO episodes (episode_id, session_id, group_id, task_id, state, created_at) "
            "VALUES (?, ?, ?, ?, 'open', ?)",
            (episode_id, session["session_id"], session["group_id"], session["task_id"], write.at),
        )
        row = write.episode_row(episode_id)
        write.event(EventKind.EPISODE_OPENED, episode_payload(row))
        return row

    def finish_completion(self, completion_id: str, **outcome: Any) -> None:
        """Record one completion's outcome, of which the arguments are the fields."""
        self.finish_completions([CompletionOutcome(completion_id=completion_id, **outcome)])

    def finish_completions(self, outcomes: Sequence[CompletionOutcome]) -> None:
        """Record outcomes in one transaction; a completion's first outcome stays.

        Raises: UnknownIdError: there is no such completion; none of the outcomes is recorded.
        """
        with self._write() as write:
            for outcome in outcomes:
                self._finish(write, outcome)

    @staticmethod
    def _finish(write: Writer, outcome: CompletionOutcome) -> None:
        width, top_ids, top_values = flatten_top(outcome.top_logprobs)
        columns = {
            "status": "finished",
            "token_ids": ints_to_blob(outcome.token_ids),
            "logprobs": floats_to_blob(outcome.logprobs),
            "policy_versions": ints_to_blob(outcome.policy_versions),
            "policy_version_min": min(outcome.policy_versions, default=None),
            "policy_version_max": max(outcome.policy_versions, default=None),
            "top_width": width,
            "top_ids": ints_to_blob(top_ids),
            "top_logprobs": floats_to_blob(top_values),
            "finish_reason": outcome.finish_reason,
            "message": None if outcome.message is None else to_json(outcome.message),
            "latency": to_json(outcome.latency),
            "trainable": int(outcome.trainable),
            "untrainable_reason": outcome.untrainable_reason,
            "error": outcome.error,
        }
        assignments = ", ".join(f"{name} = ?" for name in columns)
        changed = write.execute(
            f"UPDATE completions SET {assignments} "  # noqa: S608  # our names
            "WHERE completion_id = ? AND status = 'running'",
            (*columns.values(), outcome.completion_id),
        ).rowcount
        row = write.execute(
            f"SELECT {', '.join(_FINISHED_KEYS)} FROM completions "  # noqa: S608  # our names
            "WHERE completion_id = ?",
            (outcome.completion_id,),
        ).fetchone()
        if row is None:
            raise UnknownIdError(f"there is no completion {outcome.completion_id!r}")
        if changed:
            write.event(
                EventKind.COMPLETION_FINISHED,
                {
                    **{key: row[key] for key in _FINISHED_KEYS},
                    "trainable": outcome.trainable,
                    "num_tokens": len(outcome.token_ids),
                    "latency": outcome.latency,
                },
            )

    def session_completions(self, session_id: str, *, limit: int = 64) -> list[Completion]:
        """Return the newest finished completions of a session over all its episodes, in order."""
        with self._database.exclusive() as connection:
            rows = connection.execute(
                "SELECT * FROM completions WHERE session_id = ? AND status = 'finished' "
                "ORDER BY seq DESC LIMIT ?",
                (session_id, limit),
            ).fetchall()
            whole = WholeRows(connection)
            return [whole.completion(row) for row in reversed(rows)]

    def untrained(self) -> dict[str, int]:
        """Return how many completions may not be trained, by reason."""
        rows = self._database.query(
            "SELECT untrainable_reason AS reason, count(*) AS number FROM completions "
            "WHERE untrainable_reason IS NOT NULL GROUP BY 1"
        )
        return {row["reason"]: row["number"] for row in rows}

    # -- rewards ----------------------------------------------------------------------------

    def set_reward(
        self, episode_id: str, reward: float, *, completion_id: str | None = None
    ) -> Episode:
        """Give an episode (or one of its completions) a reward; return the episode.

        A reward that a step has not claimed yet is replaced; the log keeps all.
        Raises: UnknownIdError. ConflictError: a completion is in flight (passing), or the episode
            was claimed, trained or dropped.
        """
        with self._write() as write:
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
        return self.episode(episode_id)

    def unset_reward(self, episode_id: str) -> Episode:
        """Take all rewards of an episode back; return it.

        The session's newest episode is open again while the session runs, any other is
        ``unscored``. An episode without a reward stays what it is.
        Raises: UnknownIdError. ConflictError: the episode was claimed, trained or dropped.
        """
        with self._write() as write:
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
        return self.episode(episode_id)


_FINISHED_KEYS = (
    "completion_id",
    "session_id",
    "episode_id",
    "turn_index",
    "kind",
    "status",
    "finish_reason",
    "untrainable_reason",
    "policy_version_min",
    "policy_version_max",
    "error",
)
"""What ``completion.finished`` says of a row."""


def _new_part(
    prompt_token_ids: Sequence[int], messages: list[dict[str, Any]], base: Base | None
) -> dict[str, Any]:
    """Return the columns that hold a request, without what its base holds already."""
    if base is None:
        base = Base(completion_id="", num_tokens=0, num_messages=0)
    return {
        "base_id": base.completion_id or None,
        "base_tokens": base.num_tokens,
        "base_messages": base.num_messages,
        "prompt_token_ids": ints_to_blob(prompt_token_ids[base.num_tokens :]),
        "request_messages": to_json(messages[base.num_messages :]),
    }


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
