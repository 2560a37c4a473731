"""The torch engine's interface to a model: KV caches, and one forward pass over many sequences.

Shapes: S sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """What an adapter adds to a weight: up @ down."""

    up: Tensor
    """[out, rank] float32."""
    down: Tensor
    """[rank, in] float32, with the adapter's scale in it."""

    def merged_into(self, weight: Tensor) -> Tensor:
        """Return the sum, in float32."""
        return torch.addmm(weight.float(), self.up, self.down)


class State(Mapping[str, Tensor]):
    """Weights by their Hugging Face names.

    A changed weight, such as a merged LoRA weight, is computed each time it is read. A caller that
    reads weights one by one therefore needs memory for one of them only.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        changes: Mapping[str, Callable[[], Tensor]] | None = None,
        adapters: Mapping[str, LowRank] | None = None,
    ) -> None:
        """
        Args:
            tensors: all weights, often memory-mapped files.
            changes: computes each weight that differs from the base model's; all others equal it.
                None when it is not known which weights differ.
            adapters: what is added to weights; ``changes`` has each of them merged.
        """
        self._tensors = tensors
        self._changes = changes
        self._adapters = adapters or {}

    def __getitem__(self, name: str) -> Tensor:
        if self._changes and name in self._changes:
            return self._changes[name]()
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def unmerged(self, name: str) -> tuple[Tensor, LowRank | None]:
        """Return a weight without its adapter, and the adapter; None when it has none."""
        adapter = self._adapters.get(name)
        return (self[name] if adapter is None else self._tensors[name]), adapter

    def is_base(self, name: str) -> bool:
        """True if a weight is known to equal the base model's; also for a name that neither has."""
        return self._changes is not None and name not in self._changes


class Cache(Protocol):
    """KV cache of one sequence: the keys and values of its first ``length`` tokens."""

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""
        ...

    def fork(self, length: int) -> Cache | None:
        """Return a copy of the first ``length`` tokens; None if the cache cannot be shortened."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens of one sequence to compute in one forward pass."""

    token_ids: Sequence[int]
    """At least one; they follow the tokens in the cache."""
    cache: Cache
    """The sequence's cache; the forward pass adds these tokens to it."""


class Decoder(Protocol):
    """A causal language model.

    Not thread-safe, except that ``prepare`` may run in another thread during ``forward``.
    """

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def context_length(self) -> int:
        """Longest sequence that the model was trained for, in tokens."""
        ...

    def new_cache(self) -> Cache:
        """Return an empty cache."""
        ...

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Return the logits after each chunk's last token, [S, V] float32, one row per chunk."""
        ...

    def prepare(self, state: State) -> Callable[[], None]:
        """Load new weights beside those in use; calling the result switches to them."""
        ...
