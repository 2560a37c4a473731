"""What the trainer remembers: sessions, episodes, completions, rewards, steps, events.

One process owns the file (``trajectories.db``). Methods block for up to a few milliseconds, so
coroutines call them through ``asyncio.to_thread``; they are safe to use from any thread. A write
that returned survives the death of the process. Every change appends an event in its own
transaction and then wakes the subscribers.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, get_args

from hermes_tui_services.errors import TrainingError
from hermes_tui_training.database import Database, floats_to_blob, ints_to_blob, to_json
from hermes_tui_training.feed import Feed, Subscription
from hermes_tui_training.protocol import EventKind
from hermes_tui_training.rows import (
    EPISODE_KEYS,
    TopLogprobs,
    completion_from,
    episode_from,
    episode_payload,
    flatten_top,
    session_from,
)
from hermes_tui_training.types import (
    Completion,
    CompletionKind,
    Episode,
    Event,
    Session,
    TrainedCompletion,
    UntrainableReason,
)

EVENTS_KEPT = 20_000
"""Stored events; enough to replay some hours of work to a view that was away."""

_PRUNE_EVERY = 512

_SESSION = """
    SELECT s.*,
        (SELECT count(*) FROM episodes e WHERE e.session_id = s.session_id) AS num_episodes,
        (SELECT count(*) FROM completions c WHERE c.session_id = s.session_id) AS num_completions
    FROM sessions s
"""


_SUMMARY = """
    SELECT e.*, count(c.seq) AS num_completions,
        coalesce(sum(c.trainable), 0) AS num_trainable,
        coalesce(sum(c.status = 'lost'), 0) AS num_lost,
        min(c.policy_version_min) AS policy_version_min,
        max(c.policy_version_max) AS policy_version_max
    FROM ({chosen}) e LEFT JOIN completions c ON c.episode_id = e.episode_id
    GROUP BY e.seq ORDER BY e.seq
"""


class UnknownIdError(TrainingError):
    """The store has no such session, episode or completion."""


class ConflictError(TrainingError):
    """The state of an episode forbids a change; the text says which and why.

    Args:
        passing: whether the same request may succeed a little later.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


def hash_key(key: str) -> str:
    """Return the SHA-256 of a session key, in hexadecimal: all that is stored of it."""
    return hashlib.sha256(key.encode()).hexdigest()


def new_id(prefix: str) -> str:
    """Return a new identifier: the prefix and 96 random bits."""
    return prefix + secrets.token_hex(12)


class _Writer:
    """One transaction's connection, and the events that it appends."""

    def __init__(self, connection: sqlite3.Connection, at: float) -> None:
        self.connection = connection
        self.at = at
        self.events: list[Event] = []

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self.connection.execute(sql, parameters)

    def event(self, kind: EventKind, payload: dict[str, Any]) -> None:
        cursor = self.execute(
            "INSERT INTO events (kind, payload, at) VALUES (?, ?, ?)",
            (kind, to_json(payload), self.at),
        )
        event_id = cursor.lastrowid
        assert event_id is not None
        if event_id % _PRUNE_EVERY == 0:
            self.execute("DELETE FROM events WHERE event_id <= ?", (event_id - EVENTS_KEPT,))
        self.events.append(Event(kind=kind, payload=payload, at=self.at, event_id=event_id))

    def episode_row(self, episode_id: str) -> sqlite3.Row:
        row = self.execute("SELECT * FROM episodes WHERE episode_id = ?", (episode_id,)).fetchone()
        if row is None:
            raise UnknownIdError(f"there is no episode {episode_id!r}")
        assert isinstance(row, sqlite3.Row)
        return row

    def set_episode(self, episode_id: str, kind: EventKind, **columns: Any) -> None:
        """Change an episode and say so."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        self.execute(
            f"UPDATE episodes SET {assignments} WHERE episode_id = ?",  # noqa: S608  # our names
            (*columns.values(), episode_id),
        )
        self.event(kind, episode_payload(self.episode_row(episode_id)))

    def set_meta(self, key: str, value: Any) -> None:
        self.execute(
            "INSERT INTO meta (key, value) VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, to_json(value)),
        )


class Store:
    """The trainer's database."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        """Open or make the file; completions that ran when its last owner died are now ``lost``.

        Args:
            path: ``trajectories.db`` of the run directory.
            now: seconds since the epoch.

        Raises: ConfigError: the file cannot be opened.
        """
        self._database = Database(path)
        self._now = now
        self._feed = Feed()
        self._mark_lost()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextmanager
    def _write(self, *, durable: bool = True) -> Iterator[_Writer]:
        # Publishing under the lock keeps subscribers' order that of the event ids.
        with self._database.exclusive():
            with self._database.transaction(durable=durable) as connection:
                writer = _Writer(connection, self._now())
                yield writer
            self._feed.publish(writer.events)

    def _mark_lost(self) -> None:
        with self._write() as write:
            rows = write.execute("SELECT * FROM completions WHERE status = 'running'").fetchall()
            for row in rows:
                write.execute(
                    "UPDATE completions SET status = 'lost', trainable = 0, error = ? "
                    "WHERE completion_id = ?",
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
                    },
                )

    # -- sessions ---------------------------------------------------------------------------

    def create_session(self, *, key_hash: str, task_id: str, group_id: str) -> Session:
        """Start a session; a running one under the same key is ended in the same transaction.

        The old session's open episode becomes ``unscored``.
        """
        session_id = new_id("sess-")
        with self._write() as write:
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

    def _end_session(self, write: _Writer, session_id: str, state: str) -> None:
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
    def _open_row(write: _Writer, session_id: str) -> sqlite3.Row | None:
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
    ) -> tuple[str, int]:
        """Record a request before the engine sees it; return its episode's id and its turn_index.

        Goes into the session's open episode; opens one when there is none.

        Args:
            retry_of: a completion that this one replaces; it becomes an aux call, so that the
                episode's turns are those that the person saw.

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
                "request_messages": to_json(request_messages),
                "tools": to_json(tools),
                "prefix": to_json(prefix),
                "prompt_token_ids": ints_to_blob(prompt_token_ids),
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
    def _open_episode(write: _Writer, session: sqlite3.Row) -> sqlite3.Row:
        episode_id = new_id("ep-")
        write.execute(
            "INSERT INTO episodes (episode_id, session_id, group_id, task_id, state, created_at) "
            "VALUES (?, ?, ?, ?, 'open', ?)",
            (episode_id, session["session_id"], session["group_id"], session["task_id"], write.at),
        )
        row = write.episode_row(episode_id)
        write.event(EventKind.EPISODE_OPENED, episode_payload(row))
        return row

    def finish_completion(
        self,
        completion_id: str,
        *,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        policy_versions: Sequence[int],
        top_logprobs: TopLogprobs = (),
        finish_reason: str | None,
        message: dict[str, Any] | None,
        latency: dict[str, float],
        trainable: bool,
        untrainable_reason: UntrainableReason | None,
        error: str | None = None,
    ) -> None:
        """Record a completion's outcome; the first outcome stays.

        Args:
            token_ids, logprobs, policy_versions: as many of each; what was sampled so far when it
                broke off.
            finish_reason: None when it broke off.

        Raises: UnknownIdError.
        """
        if not len(token_ids) == len(logprobs) == len(policy_versions):
            raise ValueError("token_ids, logprobs and policy_versions differ in length")
        width, top_ids, top_values = flatten_top(top_logprobs)
        columns = {
            "status": "finished",
            "token_ids": ints_to_blob(token_ids),
            "logprobs": floats_to_blob(logprobs),
            "policy_versions": ints_to_blob(policy_versions),
            "policy_version_min": min(policy_versions, default=None),
            "policy_version_max": max(policy_versions, default=None),
            "top_width": width,
            "top_ids": ints_to_blob(top_ids),
            "top_logprobs": floats_to_blob(top_values),
            "finish_reason": finish_reason,
            "message": None if message is None else to_json(message),
            "latency": to_json(latency),
            "trainable": int(trainable),
            "untrainable_reason": untrainable_reason,
            "error": error,
        }
        with self._write() as write:
            assignments = ", ".join(f"{name} = ?" for name in columns)
            changed = write.execute(
                f"UPDATE completions SET {assignments} "  # noqa: S608  # our names
                "WHERE completion_id = ? AND status = 'running'",
                (*columns.values(), completion_id),
            ).rowcount
            row = write.execute(
                "SELECT * FROM completions WHERE completion_id = ?", (completion_id,)
            ).fetchone()
            if row is None:
                raise UnknownIdError(f"there is no completion {completion_id!r}")
            if changed:
                write.event(EventKind.COMPLETION_FINISHED, _finished_payload(row))

    def session_completions(self, session_id: str, *, limit: int = 64) -> list[Completion]:
        """Return the newest finished completions of a session over all its episodes, in order."""
        rows = self._database.query(
            "SELECT * FROM completions WHERE session_id = ? AND status = 'finished' "
            "ORDER BY seq DESC LIMIT ?",
            (session_id, limit),
        )
        return [completion_from(row) for row in reversed(rows)]

    def untrained(self) -> dict[str, int]:
        """Return how many completions may not be trained, by reason."""
        rows = self._database.query(
            "SELECT untrainable_reason AS reason, count(*) AS number FROM completions "
            "WHERE untrainable_reason IS NOT NULL GROUP BY 1 "
            "UNION ALL SELECT 'lost', count(*) FROM completions WHERE status = 'lost'"
        )
        return {row["reason"]: row["number"] for row in rows if row["number"]}

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

    # -- reading episodes -------------------------------------------------------------------

    def episode(self, episode_id: str) -> Episode:
        """Return an episode with its completions.

        Raises: UnknownIdError.
        """
        found = self._load_episodes("episode_id = ?", (episode_id,), 1)
        if not found:
            raise UnknownIdError(f"there is no episode {episode_id!r}")
        return found[0]

    def episode_of(self, completion_id: str) -> str:
        """Return the id of the episode that a completion belongs to.

        Raises: UnknownIdError.
        """
        rows = self._database.query(
            "SELECT episode_id FROM completions WHERE completion_id = ?", (completion_id,)
        )
        if not rows:
            raise UnknownIdError(f"there is no completion {completion_id!r}")
        return str(rows[0]["episode_id"])

    def current_episode(self, session_id: str) -> Episode | None:
        """Return a session's newest episode, whatever its state; None before the first."""
        rows = self._database.query(
            "SELECT episode_id FROM episodes WHERE session_id = ? ORDER BY seq DESC LIMIT 1",
            (session_id,),
        )
        return self.episode(rows[0]["episode_id"]) if rows else None

    def episodes(
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
        return self._load_episodes(where, parameters, limit)

    def _load_episodes(self, where: str, parameters: Sequence[Any], limit: int) -> list[Episode]:
        with self._database.exclusive() as connection:
            rows = connection.execute(
                f"SELECT * FROM episodes WHERE {where} ORDER BY seq LIMIT ?",  # noqa: S608
                (*parameters, limit),
            ).fetchall()
            children = [
                (
                    connection.execute(
                        "SELECT * FROM completions WHERE episode_id = ? ORDER BY seq",
                        (row["episode_id"],),
                    ).fetchall(),
                    connection.execute(
                        "SELECT * FROM rewards WHERE episode_id = ? ORDER BY seq",
                        (row["episode_id"],),
                    ).fetchall(),
                )
                for row in rows
            ]
        return [
            episode_from(row, completions, rewards)
            for row, (completions, rewards) in zip(rows, children, strict=True)
        ]

    def summaries(
        self,
        *,
        session_id: str | None = None,
        group_id: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Return episodes as JSON without their completions, oldest first.

        Each has the keys of ``EPISODE_KEYS``, num_completions, num_trainable, num_lost,
        policy_version_min and policy_version_max.
        """
        where, parameters = _episode_filter(session_id, group_id, state, after)
        chosen = f"SELECT * FROM episodes WHERE {where} ORDER BY seq LIMIT ?"  # noqa: S608
        rows = self._database.query(_SUMMARY.format(chosen=chosen), (*parameters, limit))
        return [{key: row[key] for key in (*EPISODE_KEYS, *_SUMMARY_KEYS)} for row in rows]

    # -- steps ------------------------------------------------------------------------------

    def policy_version(self) -> int:
        """Return the version of the last committed step; 0 before the first."""
        return int(self.get_meta("policy_version", 0))

    def waiting(self) -> dict[str, Any]:
        """Return what the next step waits for.

        ``states``: number of episodes by state; ``oldest_scored_at``, ``newest_scored_at``: when
        the longest and the last waiting rewards were given, seconds since the epoch, or None.
        """
        with self._database.exclusive() as connection:
            states = connection.execute("SELECT state, count(*) FROM episodes GROUP BY state")
            counts = {row[0]: row[1] for row in states}
            oldest, newest = connection.execute(
                "SELECT min(scored_at), max(scored_at) FROM episodes WHERE state = 'scored'"
            ).fetchone()
        return {"states": counts, "oldest_scored_at": oldest, "newest_scored_at": newest}

    def claim(
        self,
        *,
        step: int,
        limit: int,
        min_count: int,
        scored_before: float,
        min_policy_version: int,
    ) -> list[Episode]:
        """Take scored episodes for a step, oldest first; nothing when there are too few.

        Episodes that can never be trained are dropped on the way, with their reason: ``stale``,
        ``incomplete`` (a completion was lost), or why its completions are untrainable.

        Args:
            step: the step that claims.
            limit: how many at most.
            min_count: how many at least.
            scored_before: only episodes whose reward was given up to then, seconds since the epoch.
            min_policy_version: oldest version that may be trained.
        """
        with self._write() as write:
            rows = write.execute(
                "SELECT episode_id FROM episodes WHERE state = 'scored' AND scored_at <= ? "
                "ORDER BY seq",
                (scored_before,),
            ).fetchall()
            taken: list[str] = []
            for row in rows:
                if len(taken) == limit:
                    break
                obstacle = _claim_obstacle(write, row["episode_id"], min_policy_version)
                if obstacle is None:
                    taken.append(row["episode_id"])
                else:
                    _drop(write, row["episode_id"], obstacle)
            if len(taken) < min_count:
                taken = []
            for episode_id in taken:
                write.set_episode(episode_id, EventKind.EPISODE_CLAIMED, state="claimed", step=step)
        return [self.episode(episode_id) for episode_id in taken]

    def claimed(self) -> list[Episode]:
        """Return the claimed episodes, oldest first."""
        return self._load_episodes("state = 'claimed'", (), -1)

    def release_claims(self, except_ids: Collection[str] = ()) -> None:
        """Give claimed episodes back to ``scored``, except some."""
        with self._write() as write:
            rows = write.execute(
                "SELECT episode_id FROM episodes WHERE state = 'claimed' ORDER BY seq"
            ).fetchall()
            for row in rows:
                if row["episode_id"] not in except_ids:
                    write.set_episode(
                        row["episode_id"], EventKind.EPISODE_SCORED, state="scored", step=None
                    )

    def drop(self, episode_ids: Collection[str], reason: str) -> None:
        """Mark episodes as never to be trained; trained ones stay what they are.

        Raises: UnknownIdError.
        """
        with self._write() as write:
            for episode_id in episode_ids:
                if write.episode_row(episode_id)["state"] not in ("trained", "dropped"):
                    _drop(write, episode_id, reason)

    def commit_step(
        self,
        row: dict[str, Any],
        trained: Sequence[TrainedCompletion],
        baselines: dict[str, Any],
    ) -> None:
        """Record a finished step in one transaction.

        Its episodes become ``trained``, its completions get what was done to them, and the policy
        version becomes the step's.

        Args:
            row: the step's row; needs step, policy_version and episode_ids.
            trained: what the step did to each completion.
            baselines: stored as the meta value ``baselines``.

        Raises: ConflictError: the step is recorded already, or an episode is neither claimed nor
            scored. UnknownIdError.
        """
        with self._write() as write:
            try:
                write.execute(
                    "INSERT INTO steps (step, policy_version, row) VALUES (?, ?, ?)",
                    (row["step"], row["policy_version"], to_json(row)),
                )
            except sqlite3.IntegrityError as error:
                raise ConflictError(f"step {row['step']} is recorded already") from error
            for episode_id in row["episode_ids"]:
                state = write.episode_row(episode_id)["state"]
                if state not in ("claimed", "scored"):
                    raise ConflictError(f"episode {episode_id} is {state}, it cannot be trained")
                write.set_episode(
                    episode_id, EventKind.EPISODE_TRAINED, state="trained", step=row["step"]
                )
            for completion in trained:
                write.execute(
                    "UPDATE completions SET advantage = ?, proximal_logprobs = ?, "
                    "after_logprobs = ? WHERE completion_id = ?",
                    (
                        completion.advantage,
                        floats_to_blob(completion.proximal_logprobs),
                        floats_to_blob(completion.after_logprobs),
                        completion.completion_id,
                    ),
                )
            write.set_meta("policy_version", row["policy_version"])
            write.set_meta("baselines", baselines)
            write.event(EventKind.STEP_FINISHED, row)

    def steps(self, *, after: int = -1, limit: int = 1000) -> list[dict[str, Any]]:
        """Return the rows of steps whose number is above ``after``, oldest first."""
        rows = self._database.query(
            "SELECT row FROM steps WHERE step > ? ORDER BY step LIMIT ?", (after, limit)
        )
        return [json.loads(row["row"]) for row in rows]

    def get_meta(self, key: str, default: Any = None) -> Any:
        """Return a JSON value that was kept under a name."""
        rows = self._database.query("SELECT value FROM meta WHERE key = ?", (key,))
        return json.loads(rows[0]["value"]) if rows else default

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a JSON value under a name."""
        with self._write() as write:
            write.set_meta(key, value)

    # -- events -----------------------------------------------------------------------------

    def add_event(self, kind: EventKind, payload: dict[str, Any]) -> None:
        """Append an event that belongs to no other change."""
        with self._write() as write:
            write.event(kind, payload)

    def publish_transient(self, kind: EventKind, payload: dict[str, Any]) -> None:
        """Tell the subscribers something that is not stored."""
        self._feed.publish([Event(kind=kind, payload=payload, at=self._now())])

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return stored events whose id is above ``after``, oldest first."""
        rows = self._database.query(
            "SELECT * FROM events WHERE event_id > ? ORDER BY event_id LIMIT ?", (after, limit)
        )
        return [
            Event(
                kind=row["kind"],
                payload=json.loads(row["payload"]),
                at=row["at"],
                event_id=row["event_id"],
            )
            for row in rows
        ]

    def event_range(self) -> tuple[int, int]:
        """Return the ids of the oldest and the newest stored event; 0, 0 without any."""
        row = self._database.query("SELECT min(event_id), max(event_id) FROM events")[0]
        return int(row[0] or 0), int(row[1] or 0)

    def subscribe(self) -> AbstractContextManager[Subscription]:
        """Receive events live: ``with store.subscribe() as s: events, lost = await s.batch()``."""
        return self._feed.subscribe()


_SUMMARY_KEYS = (
    "num_completions",
    "num_trainable",
    "num_lost",
    "policy_version_min",
    "policy_version_max",
)


def _episode_filter(
    session_id: str | None, group_id: str | None, state: str | None, after: str | None
) -> tuple[str, list[Any]]:
    """Return a WHERE clause over ``episodes`` and its parameters."""
    given = {"session_id = ?": session_id, "group_id = ?": group_id, "state = ?": state}
    after_clause = "seq > coalesce((SELECT seq FROM episodes WHERE episode_id = ?), 0)"
    given[after_clause] = after
    present = {clause: value for clause, value in given.items() if value is not None}
    return " AND ".join(present) or "1", list(present.values())


def _finished_payload(row: sqlite3.Row) -> dict[str, Any]:
    """Return what ``completion.finished`` says."""
    keys = (
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
    return {
        **{key: row[key] for key in keys},
        "trainable": bool(row["trainable"]),
        "num_tokens": len(row["token_ids"]) // 4,
        "latency": json.loads(row["latency"]),
    }


def _require_scorable(write: _Writer, row: sqlite3.Row) -> None:
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


def _claim_obstacle(write: _Writer, episode_id: str, min_policy_version: int) -> str | None:
    """Return why an episode can never be trained, or None."""
    rows = write.execute(
        "SELECT status, trainable, untrainable_reason, policy_version_min FROM completions "
        "WHERE episode_id = ? ORDER BY seq",
        (episode_id,),
    ).fetchall()
    if any(row["status"] != "finished" for row in rows):
        return "incomplete"
    trainable = [row for row in rows if row["trainable"]]
    if not trainable:
        return next((row["untrainable_reason"] for row in rows), None) or "no_token_ids"
    if min(row["policy_version_min"] for row in trainable) < min_policy_version:
        return "stale"
    return None


def _drop(write: _Writer, episode_id: str, reason: str) -> None:
    """Drop an episode; a reason that is one of completions' is written on them too."""
    if reason in get_args(UntrainableReason):
        write.execute(
            "UPDATE completions SET trainable = 0, untrainable_reason = ? "
            "WHERE episode_id = ? AND trainable = 1",
            (reason, episode_id),
        )
    write.set_episode(episode_id, EventKind.EPISODE_DROPPED, state="dropped", dropped_reason=reason)
