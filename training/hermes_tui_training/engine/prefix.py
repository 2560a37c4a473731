"""The prefix cache: KV caches of finished sequences, for prompts with the same first tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hermes_tui_training.engine.decoder import Cache

TokenIds = NDArray[np.int64]


def shared_prefix(first: TokenIds, second: TokenIds) -> int:
    """Return the length of the common prefix of two sequences."""
    size = min(len(first), len(second))
    different = first[:size] != second[:size]
    return int(different.argmax()) if different.any() else size


@dataclass(frozen=True, slots=True)
class Match:
    """A cached sequence with a prefix of a prompt."""

    length: int
    """Length of the common prefix, in tokens."""
    cache: Cache
    """A cache with at least these tokens."""
    key: int | None
    """The entry of the prefix cache; None for a running sequence."""


class PrefixCache:
    """Holds up to ``capacity`` tokens; evicts the least recently used sequences first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[int, tuple[TokenIds, Cache]] = OrderedDict()
        self._next_key = 0

    @property
    def num_tokens(self) -> int:
        """Tokens in all entries."""
        return sum(cache.length for _, cache in self._entries.values())

    def find(self, prompt: TokenIds, running: Iterable[tuple[TokenIds, Cache]]) -> Match | None:
        """Return the cached sequence with the longest prefix of a prompt, or None.

        Args:
            prompt: the new sequence; its last token is never matched, since its logits are needed.
            running: tokens and caches of sequences that are being computed.
        """
        best: Match | None = None
        held = [(key, *entry) for key, entry in self._entries.items()]
        for key, tokens, cache in [*held, *((None, *entry) for entry in running)]:
            length = min(shared_prefix(prompt[:-1], tokens), cache.length)
            if length > (best.length if best else 0):
                best = Match(length, cache, key)
        return best

    def claim(self, match: Match) -> Cache | None:
        """Return a cache of the matched tokens, which the caller may extend.

        An entry that matches as a whole is moved out of the prefix cache. Of others the common
        prefix is copied; None if the cache cannot be shortened.
        """
        if match.key is not None:
            if match.length == match.cache.length:
                return self._entries.pop(match.key)[1]
            self._entries.move_to_end(match.key)
        return match.cache.fork(match.length)

    def put(self, token_ids: TokenIds, cache: Cache) -> None:
        """Add a finished sequence; ``token_ids`` may have more tokens than the cache."""
        token_ids = token_ids[: cache.length]
        if not 0 < cache.length <= self._capacity:
            return
        for key, (tokens, _) in list(self._entries.items()):
            if shared_prefix(token_ids, tokens) == len(tokens):
                del self._entries[key]  # a prefix of the new one
        self._entries[self._next_key] = (token_ids, cache)
        self._next_key += 1
        while self.num_tokens > self._capacity:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Remove everything; called when the weights change."""
        self._entries.clear()
