"""Heads: the newest version of each lineage. One lineage is in use, the others wait.

Numbers of versions are unique in a run directory, whatever lineage a version is of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hermes_tui_training.api.types import LineageId
from hermes_tui_training.store.meta import Meta
from hermes_tui_training.store.sessions import Sessions
from hermes_tui_training.store.transactions import Transactions, Writer

_IN_USE = "lineage"
_OTHERS = "heads"


class Heads:
    """Which lineage is in use, and where the others stand."""

    def __init__(self, transactions: Transactions, sessions: Sessions) -> None:
        self._transactions = transactions
        self._sessions = sessions
        self._meta = Meta(transactions)

    def in_use(self) -> LineageId | None:
        """Return the lineage in use; None in a file that never named one."""
        known = self._meta.get(_IN_USE)
        return LineageId(**known) if known else None

    def others(self) -> dict[LineageId, int]:
        """Return the heads of the lineages that are not in use."""
        rows = self._meta.get(_OTHERS, [])
        return {LineageId(**row["lineage"]): int(row["policy_version"]) for row in rows}

    def enter(self, lineage: LineageId, left: LineageId) -> None:
        """Take a lineage into use, in one transaction; it goes on from its head, a new one from 0.

        What was sampled by the lineage that is left waits for it: its sessions end, since their
        token ids may be another vocabulary's, and their scores are not trained meanwhile.

        Args:
            lineage: the one to use.
            left: the one that was in use.
        """
        with self._transactions.write() as write:
            write.set_meta(_IN_USE, asdict(lineage))
            if lineage == left:
                return
            version, baselines = _value(write, "policy_version", 0), _value(write, "baselines", {})
            put_head(write, left, version, baselines)
            rows = _value(write, _OTHERS, [])
            own = [row for row in rows if row["lineage"] == asdict(lineage)]
            write.set_meta(_OTHERS, [row for row in rows if row not in own])
            write.set_meta("policy_version", own[0]["policy_version"] if own else 0)
            write.set_meta("baselines", own[0]["baselines"] if own else {})
            running = "SELECT session_id FROM sessions WHERE ended_at IS NULL"
            for session in write.execute(running).fetchall():
                self._sessions.end_in(write, session["session_id"], "ended", "other_model")
            write.execute(
                "UPDATE sessions SET sampled_by = ? WHERE sampled_by IS NULL", (left.name,)
            )
            write.execute(
                "UPDATE sessions SET sampled_by = NULL WHERE sampled_by = ?", (lineage.name,)
            )
            # Version 0 is the model that a lineage begins with: another one's answers are not its.
            write.execute("DELETE FROM canaries WHERE policy_version = 0")


def move_head(
    write: Writer, version: int, baselines: Mapping[str, Any], lineage: LineageId | None = None
) -> None:
    """Make a version the head of its lineage.

    Args:
        write: the transaction.
        version: the version.
        baselines: as they are after it.
        lineage: the version's; None is the one in use.
    """
    if lineage is not None and asdict(lineage) != _value(write, _IN_USE, asdict(lineage)):
        put_head(write, lineage, version, baselines)
        return
    write.set_meta("policy_version", version)
    write.set_meta("baselines", baselines)


def put_head(write: Writer, lineage: LineageId, version: int, baselines: Mapping[str, Any]) -> None:
    """Note where a lineage that is not in use stands."""
    rows = [row for row in _value(write, _OTHERS, []) if row["lineage"] != asdict(lineage)]
    head = {"lineage": asdict(lineage), "policy_version": version, "baselines": baselines}
    write.set_meta(_OTHERS, [*rows, head])


def _value(write: Writer, key: str, default: Any) -> Any:
    row = write.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return default if row is None else json.loads(row["value"])
