"""Single JSON values under a name: the policy version, the baselines, why training is paused."""

from __future__ import annotations

import json
from typing import Any

from hermes_tui_training.store.transactions import Transactions


class Meta:
    """Values that belong to no row."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def get(self, key: str, default: Any = None) -> Any:
        """Return the JSON value under a name; the default when there is none."""
        query = "SELECT value FROM meta WHERE key = ?"
        rows = self._transactions.database.query(query, (key,))
        return json.loads(rows[0]["value"]) if rows else default

    def set(self, key: str, value: Any) -> None:
        """Keep a JSON value under a name."""
        with self._transactions.write() as write:
            write.set_meta(key, value)
