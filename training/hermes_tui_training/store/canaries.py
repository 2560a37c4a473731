"""The answers of each policy version to the canary's questions."""

from __future__ import annotations

from dataclasses import asdict

from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import CanaryAnswer
from hermes_tui_training.store.database import (
    floats_from_blob,
    floats_to_blob,
    ints_from_blob,
    ints_to_blob,
)
from hermes_tui_training.store.transactions import Transactions

_EVENTS = {
    "answered": EventKind.CANARY_ANSWERED,
    "skipped": EventKind.CANARY_SKIPPED,
    "failed": EventKind.CANARY_SKIPPED,
}
_EVENT_KEYS = ("policy_version", "position", "prompt", "status", "reason", "text", "finish_reason")


class Canaries:
    """The canary's answers."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def put(self, answer: CanaryAnswer) -> None:
        """Keep an answer, or why there is none; a later one of the same version replaces it."""
        row = asdict(answer)
        columns = {
            **row,
            "token_ids": ints_to_blob(answer.token_ids),
            "logprobs": floats_to_blob(answer.logprobs),
        }
        with self._transactions.write() as write:
            write.execute(
                f"INSERT OR REPLACE INTO canaries ({', '.join(columns)}) "  # noqa: S608  # our names
                f"VALUES ({', '.join('?' * len(columns))})",
                tuple(columns.values()),
            )
            payload = {
                **{key: row[key] for key in _EVENT_KEYS},
                "num_tokens": len(answer.token_ids),
            }
            write.event(_EVENTS[answer.status], payload)

    def answers(self, policy_version: int | None = None) -> list[CanaryAnswer]:
        """Return a version's answers, in order of the questions.

        Args:
            policy_version: None gives those of the two newest versions that answered, older first.
        """
        if policy_version is not None:
            versions = [policy_version]
        else:
            newest = self._transactions.database.query(
                "SELECT DISTINCT policy_version FROM canaries WHERE status = 'answered' "
                "ORDER BY policy_version DESC LIMIT 2"
            )
            versions = [row["policy_version"] for row in newest]
        rows = self._transactions.database.query(
            "SELECT * FROM canaries WHERE policy_version IN (?, ?) "
            "ORDER BY policy_version, position",
            (*versions, None, None)[:2],
        )
        return [
            CanaryAnswer(
                **{
                    **dict(row),
                    "token_ids": ints_from_blob(row["token_ids"]),
                    "logprobs": floats_from_blob(row["logprobs"]),
                }
            )
            for row in rows
        ]
