"""Forgetting the oldest groups of sessions, so that the file stays within its bound."""

from __future__ import annotations

from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.store.transactions import Transactions

_OLDEST = """
    SELECT group_id FROM sessions GROUP BY group_id
    HAVING max(last_active_at) < ?
        AND NOT EXISTS (
            SELECT 1 FROM episodes e
            WHERE e.group_id = sessions.group_id AND e.state IN ('scored', 'claimed')
        )
        AND NOT EXISTS (
            SELECT 1 FROM completions c JOIN sessions s ON s.session_id = c.session_id
            WHERE c.status = 'running' AND s.group_id = sessions.group_id
        )
    ORDER BY max(last_active_at) LIMIT 1
"""

_FORGET = (
    "DELETE FROM rewards WHERE episode_id IN (SELECT episode_id FROM episodes WHERE group_id = ?)",
    "DELETE FROM completions WHERE episode_id IN "
    "(SELECT episode_id FROM episodes WHERE group_id = ?)",
    "DELETE FROM episodes WHERE group_id = ?",
    "DELETE FROM sessions WHERE group_id = ?",
)


class Retention:
    """Measures the store, and deletes its oldest groups.

    A group is deleted as a whole. A completion is stored as what it adds to earlier ones of its
    session, and the advantages of siblings depend on each other.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def num_bytes(self) -> int:
        """Return the bytes in use; the file may also hold free space, which is used next."""
        with self._transactions.database.exclusive() as connection:
            pages, free, page_bytes = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return int((pages - free) * page_bytes)

    def forget_oldest(self, idle_since: float) -> list[str]:
        """Delete the group whose last request is oldest; return the ids of its sessions.

        Their keys work no longer. Rows of steps stay. A group with an episode that waits for a
        step or is in one, or with a completion that runs, is never deleted.

        Args:
            idle_since: only groups without a request since then, seconds since the epoch.

        Returns: nothing when no group may go.
        """
        with self._transactions.write() as write:
            row = write.execute(_OLDEST, (idle_since,)).fetchone()
            if row is None:
                return []
            group_id = row["group_id"]
            session_ids = [
                str(session["session_id"])
                for session in write.execute(
                    "SELECT session_id FROM sessions WHERE group_id = ? ORDER BY rowid", (group_id,)
                )
            ]
            for statement in _FORGET:
                write.execute(statement, (group_id,))
            for session_id in session_ids:
                write.event(EventKind.SESSION_FORGOTTEN, {"session_id": session_id})
        return session_ids
