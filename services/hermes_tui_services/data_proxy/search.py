"""Searching the text of all conversations.

SQLite looks through the turns' JSON as they are stored; what it finds is then read, since a name of
a field is no text. Ten thousand turns take about 50 ms, so there is no index to keep.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence

from hermes_tui_common.openai import message_text
from hermes_tui_services.api.protocol import ChatMessage
from hermes_tui_services.api.wire import SearchHit

AROUND_CHARS = 80
"""Characters of the text that are returned before and after what was found."""


def search(db: sqlite3.Connection, text: str, limit: int) -> list[SearchHit]:
    """Return the turns that contain a text, whatever its case; the newest comes first.

    Args:
        db: ``conversations.db``.
        text: what to find; not empty.
        limit: how many turns at most.
    """
    rows = db.execute(
        "SELECT session_key, run_id, messages, started_at, finished_at FROM turns"
        " WHERE messages LIKE ? ESCAPE '!' ORDER BY turn_id DESC",
        (_pattern(text),),
    )
    hits: list[SearchHit] = []
    for row in rows:
        if found := _found(json.loads(row["messages"]), text.lower()):
            before, match, after = found
            hits.append(
                SearchHit(
                    session_key=row["session_key"],
                    run_id=row["run_id"],
                    started_at=row["started_at"],
                    finished_at=row["finished_at"],
                    before=before,
                    match=match,
                    after=after,
                )
            )
            if len(hits) == limit:
                break
    return hits


def _pattern(text: str) -> str:
    """Return a LIKE pattern for a text within JSON; more may match it, but nothing less.

    LIKE ignores the case of ASCII letters only. Others are stored as escapes: any will do there.
    """
    stored = json.dumps(text)[1:-1]
    escaped = "".join(f"!{c}" if c in "!%_" else c for c in stored)
    parts = escaped.split("\\u")
    return "%" + "\\u____".join([parts[0], *(part[4:] for part in parts[1:])]) + "%"


def _found(messages: Sequence[ChatMessage], wanted: str) -> tuple[str, str, str] | None:
    """Return the first place of a lower-case text: what is before it, itself, what comes after."""
    for said in _texts(messages):
        at = said.lower().find(wanted)
        if at >= 0:
            end = at + len(wanted)
            return (
                said[max(at - AROUND_CHARS, 0) : at],
                said[at:end],
                said[end : end + AROUND_CHARS],
            )
    return None


def _texts(messages: Sequence[ChatMessage]) -> Iterator[str]:
    """Yield what was said and done, in order."""
    for message in messages:
        yield message_text(message)
        for call in message.get("tool_calls") or ():
            yield str(call["function"]["arguments"])
