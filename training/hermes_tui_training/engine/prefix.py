"""Keys and values of finished sequences, kept for prompts that begin with the same tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hermes_tui_training.engine.decoder import Cache

TokenIds = NDArray[np.int64]


def shared_prefix(first: TokenIds, second: TokenIds) -> int:
    """Return how many tokens two sequences have in common from the start."""
    size = min(len(first), len(second))
    different = first[:size] != second[:size]
    return int(different.argmax()) if different.any() else size


@dataclass(frozen=True, slots=True)
class Match:
    """A held sequence that begins as a prompt does."""

    length: int
    """Tokens in common."""
    cache: Cache
    """Holds at least those."""
    key: int | None
    """The entry it is; None for a running sequence."""


class PrefixCache:
    """Least recently used sequences go first once more than ``capacity`` tokens are held."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[int, tuple[TokenIds, Cache]] = OrderedDict()
        self._next_key = 0

    @property
    def num_tokens(self) -> int:
        """Tokens held."""
        return sum(cache.length for _, cache in self._entries.values())

    def find(self, prompt: TokenIds, running: Iterable[tuple[TokenIds, Cache]]) -> Match | None:
        """Return the longest held prefix of a prompt, or None.

        Args:
            prompt: the new sequence; at least its last token is left to compute.
            running: tokens and caches of sequences that are being extended now.
        """
        best: Match | None = None
        held = [(key, *entry) for key, entry in self._entries.items()]
        for key, tokens, cache in [*held, *((None, *entry) for entry in running)]:
            length = min(shared_prefix(prompt[:-1], tokens), cache.length)
            if length > (best.length if best else 0):
                best = Match(length, cache, key)
        return best

    def claim(self, match: Match) -> Cache | None:
        """Return a cache of what matched, for the caller to extend; None where it cannot be cut.

        An entry that matched as a whole is handed over; of others the shared part is copied.
        """
        if match.key is not None:
            if match.length == match.cache.length:
                return self._entries.pop(match.key)[1]
            self._entries.move_to_end(match.key)
        return match.cache.fork(match.length)

    def put(self, token_ids: TokenIds, cache: Cache) -> None:
        """Keep a finished sequence; ``token_ids`` are at least those in the cache."""
        token_ids = token_ids[: cache.length]
        if not 0 < cache.length <= self._capacity:
            return
        for key, (tokens, _) in list(self._entries.items()):
            if shared_prefix(token_ids, tokens) == len(tokens):
                del self._entries[key]  # the new one holds all of it
        self._entries[self._next_key] = (token_ids, cache)
        self._next_key += 1
        while self.num_tokens > self._capacity:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget everything, since the weights that made it are gone."""
        self._entries.clear()
