"""Completions: recorded before the engine sees them, and again with their outcome."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from hermes_tui_common.openai import message_text
from hermes_tui_training.algorithm.topics import topic_of
from hermes_tui_training.algorithm.watch import RecentReply
from hermes_tui_training.api.config import TopicsConfig
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import (
    NOT_OURS,
    Completion,
    CompletionKind,
    CompletionOutcome,
    PrefixRef,
)
from hermes_tui_training.store.database import INT_BYTES, floats_to_blob, ints_to_blob, to_json
from hermes_tui_training.store.rewards import score_unjudged
from hermes_tui_training.store.sessions import open_episode_row, set_topic
from hermes_tui_training.store.sqlite_rows import WholeRows, episode_payload, flatten_top
from hermes_tui_training.store.transactions import (
    ConflictError,
    Transactions,
    UnknownIdError,
    Writer,
    new_id,
)

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


_TITLE_CHARS = 200
"""Length of a session's title: more than a line shows, less than a pasted file."""


class Completions:
    """The completions of the store."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def mark_lost(self) -> None:
        """Mark the running completions as lost: their owner died before it recorded their end."""
        with self._transactions.write() as write:
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

    def begin(
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
        prefix_ref: PrefixRef | None = None,
        continues: str | None = None,
        topics: TopicsConfig | None = None,
    ) -> tuple[str, int]:
        """Record a request before the engine sees it; return its episode's id and its turn_index.

        Goes into the session's open episode; opens one when there is none.

        Args:
            retry_of: a completion that this one replaces; it becomes an aux call, so that the
                episode's turns are those that the person saw.
            prefix_ref: a finished completion that this one begins with. What they share is not
                stored again: a long conversation costs no more per turn than a short one.
            continues: the completion whose reply the request goes on with. Of the choices of its
                request it becomes the turn.
            topics: how a session that has no topic yet gets one; None leaves it without.

        Raises: ConflictError: the session was ended. UnknownIdError.
        """
        with self._transactions.write(durable=False) as write:
            session = write.execute(
                "SELECT * FROM sessions WHERE session_id = ?", (session_id,)
            ).fetchone()
            if session is None:
                raise UnknownIdError("there is no such session")
            if session["ended_at"] is not None:
                raise ConflictError(f"session {session_id} has been ended")
            episode = open_episode_row(write, session_id) or _open_episode(write, session)
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
                **_new_part(prompt_token_ids, request_messages, prefix_ref),
            }
            write.execute(
                f"INSERT INTO completions ({', '.join(columns)}) "  # noqa: S608  # our names
                f"VALUES ({', '.join('?' * len(columns))})",
                tuple(columns.values()),
            )
            if session["title"] is None and (title := _title(request_messages)):
                write.execute(
                    "UPDATE sessions SET title = ? WHERE session_id = ?", (title, session_id)
                )
                if session["topic"] is None and topics is not None:
                    set_topic(write, session, topic_of(session["task_id"], title, topics))
            if retry_of is not None:
                write.execute(
                    "UPDATE completions SET kind = 'aux', trainable = 0, "
                    "untrainable_reason = coalesce(untrainable_reason, 'aux_call') "
                    "WHERE completion_id = ? AND episode_id = ?",
                    (retry_of, episode_id),
                )
            if continues is not None:
                _make_turn(write, continues, episode_id)
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

    def finish(self, *outcomes: CompletionOutcome) -> None:
        """Record outcomes in one transaction; a completion's first outcome stays.

        Raises: UnknownIdError: there is no such completion; none of the outcomes is recorded.
        """
        with self._transactions.write() as write:
            for outcome in outcomes:
                episode_id = _finish(write, outcome)
                # Its session may have ended while it was sampled.
                score_unjudged(write, episode_id, self._transactions.unscored_reward)

    def of_session(self, session_id: str, *, limit: int = 64) -> list[Completion]:
        """Return the newest finished completions of a session over all its episodes, in order."""
        with self._transactions.database.exclusive() as connection:
            rows = connection.execute(
                "SELECT * FROM completions WHERE session_id = ? AND status = 'finished' "
                "ORDER BY seq DESC LIMIT ?",
                (session_id, limit),
            ).fetchall()
            whole = WholeRows(connection)
            return [whole.completion(row) for row in reversed(rows)]

    def recent_replies(self, limit: int) -> list[RecentReply]:
        """Return the newest replies of the agent's turns over all sessions, oldest first."""
        rows = self._transactions.database.query(
            "SELECT request_messages, message, length(token_ids) / ? AS num_tokens "
            "FROM completions WHERE kind = 'turn' AND status = 'finished' AND message IS NOT NULL "
            "ORDER BY seq DESC LIMIT ?",
            (INT_BYTES, limit),
        )
        return [
            RecentReply(
                question=_newest_text(row["request_messages"]),
                text=message_text(json.loads(row["message"])),
                num_tokens=row["num_tokens"] or 0,
            )
            for row in reversed(rows)
        ]

    def num_untrained(self) -> dict[str, int]:
        """Return how many completions may not be trained, by reason."""
        rows = self._transactions.database.query(
            "SELECT untrainable_reason AS reason, count(*) AS number FROM completions "
            "WHERE untrainable_reason IS NOT NULL GROUP BY 1"
        )
        return {row["reason"]: row["number"] for row in rows}


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


def _make_turn(write: Writer, completion_id: str, episode_id: str) -> None:
    """Make a choice the turn of its request, in place of the one that was it."""
    row = write.execute(
        "SELECT kind FROM completions WHERE completion_id = ? AND episode_id = ?",
        (completion_id, episode_id),
    ).fetchone()
    if row is None or row["kind"] != "choice":
        return
    first = completion_id.partition(":")[0]
    write.execute(
        "UPDATE completions SET kind = 'choice', trainable = 0, "
        "untrainable_reason = coalesce(untrainable_reason, 'other_choice') "
        "WHERE episode_id = ? AND kind = 'turn' AND (completion_id = ? OR completion_id LIKE ?)",
        (episode_id, first, f"{first}:%"),
    )
    write.execute(
        "UPDATE completions SET kind = 'turn', "
        "trainable = coalesce(untrainable_reason, 'other_choice') = 'other_choice', "
        "untrainable_reason = nullif(untrainable_reason, 'other_choice') WHERE completion_id = ?",
        (completion_id,),
    )


def _finish(write: Writer, outcome: CompletionOutcome) -> str:
    """Record an outcome; return the id of the completion's episode."""
    width, top_ids, top_values = flatten_top(outcome.top_logprobs)
    versions = [version for version in outcome.policy_versions if version != NOT_OURS]
    columns = {
        "status": "finished",
        "token_ids": ints_to_blob(outcome.token_ids),
        "logprobs": floats_to_blob(outcome.logprobs),
        "policy_versions": ints_to_blob(outcome.policy_versions),
        "policy_version_min": min(versions, default=None),
        "policy_version_max": max(versions, default=None),
        "top_width": width,
        "top_ids": ints_to_blob(top_ids),
        "top_logprobs": floats_to_blob(top_values),
        "removed_probs": floats_to_blob(outcome.removed_probs),
        "finish_reason": outcome.finish_reason,
        "message": None if outcome.message is None else to_json(outcome.message),
        "latency": to_json(outcome.latency),
        "trainable": int(outcome.trainable),
        "untrainable_reason": outcome.untrainable_reason,
        "error": outcome.error,
    }
    if outcome.prompt_token_ids is not None:
        columns["prompt_token_ids"] = ints_to_blob(outcome.prompt_token_ids)
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
    return str(row["episode_id"])


def _new_part(
    prompt_token_ids: Sequence[int], messages: list[dict[str, Any]], prefix_ref: PrefixRef | None
) -> dict[str, Any]:
    """Return the columns that hold a request, without what ``prefix_ref`` holds already."""
    ref = prefix_ref or PrefixRef(completion_id="", num_tokens=0, num_messages=0)
    return {
        "base_id": ref.completion_id or None,
        "base_tokens": ref.num_tokens,
        "base_messages": ref.num_messages,
        "prompt_token_ids": ints_to_blob(prompt_token_ids[ref.num_tokens :]),
        "request_messages": to_json(messages[ref.num_messages :]),
    }


def _newest_text(request_messages: str) -> str:
    """Return the text of a request's last message; what its base holds is not among them."""
    messages = json.loads(request_messages)
    return message_text(messages[-1]) if messages else ""


def _title(messages: Sequence[dict[str, Any]]) -> str:
    """Return the first words of the user in a conversation; empty for none."""
    said = (message_text(message) for message in messages if message.get("role") == "user")
    words = " ".join(next(said, "").split())[:_TITLE_CHARS]
    return words.encode(errors="replace").decode()  # half a surrogate pair is no text to SQLite
