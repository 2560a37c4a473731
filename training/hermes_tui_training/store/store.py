"""What the trainer remembers: sessions, episodes, completions, rewards, steps, events.

One process owns the file (``trajectories.db``). Methods block for up to a few milliseconds, so
coroutines call them through ``asyncio.to_thread``; they are safe to use from any thread. A write
that returned survives the death of the process. Every change appends an event in its own
transaction and then wakes the subscribers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hermes_tui_training.store.canaries import Canaries
from hermes_tui_training.store.completions import Completions
from hermes_tui_training.store.episodes import Episodes
from hermes_tui_training.store.events import Events
from hermes_tui_training.store.heads import Heads
from hermes_tui_training.store.meta import Meta
from hermes_tui_training.store.retention_queries import Retention
from hermes_tui_training.store.rewards import Rewards
from hermes_tui_training.store.sessions import Sessions, hash_key
from hermes_tui_training.store.steps import Steps
from hermes_tui_training.store.transactions import (
    ConflictError,
    Transactions,
    UnknownIdError,
    new_id,
)

__all__ = ["ConflictError", "Store", "UnknownIdError", "hash_key", "new_id"]


class Store:
    """The trainer's database, in parts that share one connection."""

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], float] = time.time,
        unscored_reward: float | None = None,
    ) -> None:
        """Open or make the file; completions that ran when its last owner died are now ``lost``.

        Args:
            path: ``trajectories.db`` of the run directory.
            now: seconds since the epoch.
            unscored_reward: what an episode gets whose session ends before anybody judged it.

        Raises: ConfigError: the file cannot be opened.
        """
        self._transactions = transactions = Transactions(
            path, now=now, unscored_reward=unscored_reward
        )
        self.sessions = Sessions(transactions)
        """Keys, and what was started under them."""
        self.completions = Completions(transactions)
        """Requests and their outcomes."""
        self.episodes = Episodes(transactions)
        """Reading what was recorded."""
        self.rewards = Rewards(transactions, self.episodes)
        """Judging episodes."""
        self.steps = Steps(transactions, self.episodes)
        """Episodes on their way into the weights."""
        self.heads = Heads(transactions, self.sessions)
        """The newest version of each lineage."""
        self.canaries = Canaries(transactions)
        """Each version's answers to the canary's questions."""
        self.events = Events(transactions)
        """What happened."""
        self.meta = Meta(transactions)
        """Values that belong to no row."""
        self.retention = Retention(transactions)
        """Size, and forgetting."""
        self.notice = transactions.database.notice
        """What was damaged when the file was opened, and what was recovered; None: all is well."""
        self.completions.mark_lost()

    def close(self) -> None:
        """Close the file."""
        self._transactions.close()
