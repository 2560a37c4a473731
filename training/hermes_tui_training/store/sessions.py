"""Sessions: one key each, and the episodes that were recorded under it."""

from __future__ import annotations

import hashlib
import sqlite3

from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import EndReason, EpisodeState, Session
from hermes_tui_training.store.rewards import score_unjudged
from hermes_tui_training.store.sqlite_rows import session_from
from hermes_tui_training.store.transactions import (
    ConflictError,
    Transactions,
    UnknownIdError,
    Writer,
    new_id,
)

_SESSION = """
    SELECT s.*,
        (SELECT count(*) FROM episodes e WHERE e.session_id = s.session_id) AS num_episodes,
        (SELECT count(*) FROM completions c WHERE c.session_id = s.session_id) AS num_completions
    FROM sessions s
"""


_DELETE = (
    "DELETE FROM rewards WHERE episode_id IN "
    "(SELECT episode_id FROM episodes WHERE session_id = ?)",
    "DELETE FROM completions WHERE session_id = ?",
    "DELETE FROM episodes WHERE session_id = ?",
    "DELETE FROM sessions WHERE session_id = ?",
)


def hash_key(key: str) -> str:
    """Return the SHA-256 of a session key, in hexadecimal: all that is stored of it."""
    return hashlib.sha256(key.encode()).hexdigest()


class Sessions:
    """The sessions of the store."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def create(
        self,
        *,
        key_hash: str,
        task_id: str,
        group_id: str,
        branch_of: str | None = None,
        group_position: int = 0,
    ) -> Session:
        """Start a session; a running one under the same key is ended in the same transaction.

        The old session's open episode becomes ``unscored``.

        Args:
            key_hash: of its key.
            task_id: its task.
            group_id: its group.
            branch_of: the session whose conversation it goes on with.
            group_position: with which episode of its siblings its first one is compared, from 0.

        Raises: ConflictError: the group is another task's.
        """
        session_id = new_id("sess-")
        with self._transactions.write() as write:
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
                self.end_in(write, row["session_id"], "unscored", "refreshed")
            write.execute(
                "INSERT INTO sessions (session_id, key_hash, task_id, group_id, created_at, "
                "last_active_at, branch_of, group_position) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    session_id,
                    key_hash,
                    task_id,
                    group_id,
                    write.at,
                    write.at,
                    branch_of,
                    group_position,
                ),
            )
            write.event(
                EventKind.SESSION_STARTED,
                {"session_id": session_id, "task_id": task_id, "group_id": group_id},
            )
        session = self.get(session_id)
        assert session is not None
        return session

    def get(self, session_id: str) -> Session | None:
        """Return a session, or None."""
        rows = self._transactions.database.query(
            f"{_SESSION} WHERE s.session_id = ?", (session_id,)
        )
        return session_from(rows[0]) if rows else None

    def is_refreshed(self, session_id: str) -> bool:
        """Return whether a session has ended and another one runs under its key."""
        rows = self._transactions.database.query(
            "SELECT 1 FROM sessions old JOIN sessions new USING (key_hash) "
            "WHERE old.session_id = ? AND old.ended_at IS NOT NULL AND new.ended_at IS NULL",
            (session_id,),
        )
        return bool(rows)

    def by_key_hash(self, key_hash: str) -> Session | None:
        """Return the newest session of a key, ended or not; None for an unknown key."""
        rows = self._transactions.database.query(
            f"{_SESSION} WHERE s.key_hash = ? ORDER BY s.rowid DESC LIMIT 1", (key_hash,)
        )
        return session_from(rows[0]) if rows else None

    def sharing_key(self, session_id: str) -> Session | None:
        """Return the newest session under the key of a session; None for an unknown session."""
        rows = self._transactions.database.query(
            f"{_SESSION} JOIN sessions other USING (key_hash) WHERE other.session_id = ? "
            "ORDER BY s.rowid DESC LIMIT 1",
            (session_id,),
        )
        return session_from(rows[0]) if rows else None

    def newest(self, *, limit: int = 1000) -> list[Session]:
        """Return the newest sessions, oldest first."""
        rows = self._transactions.database.query(
            f"{_SESSION} ORDER BY s.rowid DESC LIMIT ?", (limit,)
        )
        return [session_from(row) for row in reversed(rows)]

    def num_running(self) -> int:
        """Return how many sessions run."""
        rows = self._transactions.database.query(
            "SELECT count(*) FROM sessions WHERE ended_at IS NULL"
        )
        return int(rows[0][0])

    def set_topic(self, session_id: str, topic: str) -> Session:
        """Say what a session and its siblings are about; counts from the next step on.

        Raises: UnknownIdError.
        """
        with self._transactions.write() as write:
            row = write.execute(
                "SELECT session_id, group_id FROM sessions WHERE session_id = ?", (session_id,)
            ).fetchone()
            if row is None:
                raise UnknownIdError(f"there is no session {session_id!r}")
            set_topic(write, row, topic)
        session = self.get(session_id)
        assert session is not None
        return session

    def group_position(self, episode_id: str) -> int:
        """Return with which episodes of its group an episode is compared, from 0.

        Raises: UnknownIdError.
        """
        rows = self._transactions.database.query(
            "SELECT s.group_position + (SELECT count(*) FROM episodes before "
            "WHERE before.session_id = e.session_id AND before.seq < e.seq) AS position "
            "FROM episodes e JOIN sessions s USING (session_id) WHERE e.episode_id = ?",
            (episode_id,),
        )
        if not rows:
            raise UnknownIdError(f"there is no episode {episode_id!r}")
        return int(rows[0]["position"])

    def rename(self, session_id: str, title: str) -> Session:
        """Give a session a name. Raises: UnknownIdError."""
        with self._transactions.write() as write:
            renamed = write.execute(
                "UPDATE sessions SET title = ? WHERE session_id = ?", (title, session_id)
            )
            if not renamed.rowcount:
                raise UnknownIdError(f"there is no session {session_id!r}")
            write.event(EventKind.SESSION_RENAMED, {"session_id": session_id, "title": title})
        session = self.get(session_id)
        assert session is not None
        return session

    def delete(self, session_id: str) -> None:
        """Delete a session with all that was recorded in it; rows of steps stay.

        Raises: UnknownIdError. ConflictError: a completion runs, or a score waits for its step.
        """
        with self._transactions.write() as write:
            known = "SELECT 1 FROM sessions WHERE session_id = ?"
            if not write.execute(known, (session_id,)).fetchone():
                raise UnknownIdError(f"there is no session {session_id!r}")
            running = "SELECT 1 FROM completions WHERE session_id = ? AND status = 'running'"
            if write.execute(running, (session_id,)).fetchone():
                raise ConflictError(f"a completion of session {session_id} runs", passing=True)
            waits = "SELECT 1 FROM episodes WHERE session_id = ? AND state IN ('scored', 'claimed')"
            if write.execute(waits, (session_id,)).fetchone():
                raise ConflictError(
                    f"a score of session {session_id} waits for its step: take it back first, or "
                    "wait until it is trained"
                )
            for statement in _DELETE:
                write.execute(statement, (session_id,))
            write.event(EventKind.SESSION_FORGOTTEN, {"session_id": session_id})

    def end(self, session_id: str) -> Session:
        """End a session, if it was not ended yet; its open episode becomes ``ended``.

        Raises: UnknownIdError.
        """
        with self._transactions.write() as write:
            self.end_in(write, session_id, "ended", "asked")
        session = self.get(session_id)
        if session is None:
            raise UnknownIdError("there is no such session")
        return session

    def end_idle(self, active_before: float) -> list[str]:
        """End the sessions in which nothing was sampled since a time; return their ids.

        Args:
            active_before: seconds since the epoch.
        """
        idle = (
            "SELECT session_id FROM sessions s WHERE ended_at IS NULL AND last_active_at < ? "
            "AND NOT EXISTS (SELECT 1 FROM completions c "
            "WHERE c.session_id = s.session_id AND c.status = 'running')"
        )
        # Looked up first: a transaction waits for the disk, and there is rarely anything to do.
        if not self._transactions.database.query(idle, (active_before,)):
            return []
        with self._transactions.write() as write:
            ids = [row["session_id"] for row in write.execute(idle, (active_before,)).fetchall()]
            for session_id in ids:
                self.end_in(write, session_id, "unscored", "idle")
        return ids

    def end_in(
        self, write: Writer, session_id: str, episode_state: EpisodeState, reason: EndReason
    ) -> None:
        """End a session within a transaction, if it was not ended yet.

        Args:
            write: the transaction.
            session_id: the session.
            episode_state: what its open episode becomes.
            reason: why.
        """
        changed = write.execute(
            "UPDATE sessions SET ended_at = ?, end_reason = ? "
            "WHERE session_id = ? AND ended_at IS NULL",
            (write.at, reason, session_id),
        ).rowcount
        if not changed:
            return
        row = open_episode_row(write, session_id)
        if row is not None:
            write.set_episode(row["episode_id"], EventKind.EPISODE_ENDED, state=episode_state)
            score_unjudged(write, row["episode_id"], self._transactions.unscored_reward)
        write.event(EventKind.SESSION_ENDED, {"session_id": session_id, "reason": reason})


def set_topic(write: Writer, session: sqlite3.Row, topic: str) -> None:
    """Give a session and its siblings a topic: a group has one."""
    write.execute("UPDATE sessions SET topic = ? WHERE group_id = ?", (topic, session["group_id"]))
    payload = {"session_id": session["session_id"], "group_id": session["group_id"]}
    write.event(EventKind.SESSION_TOPIC_SET, {**payload, "topic": topic})


def open_episode_row(write: Writer, session_id: str) -> sqlite3.Row | None:
    """Return the row of a session's open episode, or None."""
    row = write.execute(
        "SELECT * FROM episodes WHERE session_id = ? ORDER BY seq DESC LIMIT 1", (session_id,)
    ).fetchone()
    return row if row is not None and row["state"] == "open" else None
