"""Rows of the trainer's database as the dataclasses of ``api.types``."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from hermes_tui_training.api.types import Completion, Episode, RewardEntry, Session
from hermes_tui_training.store.database import INT_BYTES, floats_from_blob, ints_from_blob

TopLogprobs = tuple[tuple[tuple[int, float], ...], ...]

NO_TOKEN = -1
"""Stands for a missing alternative, so that all positions have equally many."""


def flatten_top(top: TopLogprobs) -> tuple[int, list[int], list[float]]:
    """Return alternatives per position as width, ids and logprobs, both [positions * width]."""
    width = max((len(alternatives) for alternatives in top), default=0)
    ids, logprobs = [], []
    for alternatives in top:
        padded = [*alternatives, *[(NO_TOKEN, 0.0)] * (width - len(alternatives))]
        ids += [token_id for token_id, _ in padded]
        logprobs += [logprob for _, logprob in padded]
    return width, ids, logprobs


def unflatten_top(width: int, ids: Sequence[int], logprobs: Sequence[float]) -> TopLogprobs:
    """Undo ``flatten_top``."""
    pairs = list(zip(ids, logprobs, strict=True))
    return tuple(
        tuple(pair for pair in pairs[start : start + width] if pair[0] != NO_TOKEN)
        for start in range(0, len(pairs), width or 1)
    )


class WholeRows:
    """Makes rows of ``completions`` whole: a row holds only what its base row has not got."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[str, tuple[bytes, bytes, list[dict[str, Any]]]] = {}

    def completion(self, row: sqlite3.Row) -> Completion:
        """Return a row with all of its prompt and messages."""
        links = [row]
        while (base_id := links[-1]["base_id"]) is not None and base_id not in self._known:
            links.append(self._link(base_id))
        whole = self._known.get(base_id) if base_id is not None else None
        for link in reversed(links):
            prompt, messages = link["prompt_token_ids"], json.loads(link["request_messages"])
            if whole is not None:
                base_prompt, base_sampled, base_messages = whole
                prompt = (base_prompt + base_sampled)[: link["base_tokens"] * INT_BYTES] + prompt
                messages = base_messages[: link["base_messages"]] + messages
            whole = (prompt, link["token_ids"] or b"", messages)
        assert whole is not None, "the row itself is one of the links"
        # Only the newest row is cached: the next one usually extends it.
        self._known[row["completion_id"]] = whole
        return _completion_from(row, prompt, messages)

    def _link(self, completion_id: str) -> sqlite3.Row:
        row = self._connection.execute(
            "SELECT completion_id, base_id, base_tokens, base_messages, prompt_token_ids, "
            "token_ids, request_messages FROM completions WHERE completion_id = ?",
            (completion_id,),
        ).fetchone()
        assert isinstance(row, sqlite3.Row), "a base row is deleted with all that extend it"
        return row


def _completion_from(row: sqlite3.Row, prompt: bytes, messages: list[dict[str, Any]]) -> Completion:
    return Completion(
        completion_id=row["completion_id"],
        episode_id=row["episode_id"],
        turn_index=row["turn_index"],
        created_at=row["created_at"],
        prompt_token_ids=ints_from_blob(prompt),
        token_ids=ints_from_blob(row["token_ids"]),
        logprobs=floats_from_blob(row["logprobs"]),
        policy_versions=ints_from_blob(row["policy_versions"]),
        top_logprobs=unflatten_top(
            row["top_width"],
            ints_from_blob(row["top_ids"]),
            floats_from_blob(row["top_logprobs"]),
        ),
        removed_probs=floats_from_blob(row["removed_probs"]),
        finish_reason=row["finish_reason"],
        sampling=json.loads(row["sampling"]),
        request_messages=messages,
        tools=json.loads(row["tools"]),
        message=json.loads(row["message"]) if row["message"] else None,
        latency=json.loads(row["latency"]),
        trainable=bool(row["trainable"]),
        untrainable_reason=row["untrainable_reason"],
        prefix=json.loads(row["prefix"]),
        kind=row["kind"],
        status=row["status"],
        error=row["error"],
        reward=row["reward"],
        advantage=row["advantage"],
        proximal_logprobs=floats_from_blob(row["proximal_logprobs"]),
        after_logprobs=floats_from_blob(row["after_logprobs"]),
    )


def episode_from(
    row: sqlite3.Row, completions: Sequence[Completion], rewards: Sequence[sqlite3.Row]
) -> Episode:
    """Return a row of ``episodes`` with its completions and rewards, each in order."""
    return Episode(
        episode_id=row["episode_id"],
        session_id=row["session_id"],
        group_id=row["group_id"],
        task_id=row["task_id"],
        topic=row["topic"],
        sampled_by=row["sampled_by"],
        state=row["state"],
        reward=row["reward"],
        reward_log=tuple(
            RewardEntry(
                reward=r["reward"],
                interaction_id=r["completion_id"],
                at=r["at"],
                feedback=r["feedback"],
                taken_back_at=r["taken_back_at"],
            )
            for r in rewards
        ),
        feedback=row["feedback"],
        scored_at=row["scored_at"],
        created_at=row["created_at"],
        step=row["step"],
        dropped_reason=row["dropped_reason"],
        completions=tuple(completions),
    )


def session_from(row: sqlite3.Row) -> Session:
    """Return a row of ``sessions`` with its counts."""
    return Session(
        session_id=row["session_id"],
        task_id=row["task_id"],
        group_id=row["group_id"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        end_reason=row["end_reason"],
        last_active_at=row["last_active_at"],
        title=row["title"],
        topic=row["topic"] or row["task_id"],
        sampled_by=row["sampled_by"],
        branch_of=row["branch_of"],
        num_episodes=row["num_episodes"],
        num_completions=row["num_completions"],
    )


EPISODE_KEYS = (
    "episode_id",
    "session_id",
    "group_id",
    "task_id",
    "state",
    "reward",
    "feedback",
    "step",
    "dropped_reason",
    "created_at",
    "scored_at",
)


def episode_payload(row: sqlite3.Row) -> dict[str, Any]:
    """Return what an event says about an episode."""
    return {key: row[key] for key in EPISODE_KEYS}
