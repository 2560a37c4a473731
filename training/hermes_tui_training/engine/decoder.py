"""What the torch engine needs of a model: caches, and one forward pass over several sequences.

Shapes: S segments, T tokens of all segments, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

State = dict[str, Tensor]
"""Weights by their Hugging Face names."""


class Cache(Protocol):
    """Keys and values of the first ``length`` tokens of one sequence."""

    @property
    def length(self) -> int:
        """Tokens whose keys and values are held."""
        ...

    def fork(self, length: int) -> Cache | None:
        """Return a copy of the first ``length`` tokens; None where the model cannot cut a cache."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The next tokens of one sequence."""

    token_ids: Sequence[int]
    """Tokens to compute, at least one; they follow those in the cache."""
    cache: Cache
    """The sequence's cache; holds these tokens too afterwards."""


class Decoder(Protocol):
    """A causal language model.

    Not thread-safe but for ``prepare``, which may run beside ``forward``.
    """

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def context_length(self) -> int:
        """Longest sequence the model was made for, in tokens."""
        ...

    def new_cache(self) -> Cache:
        """Return an empty cache."""
        ...

    def forward(self, segments: Sequence[Segment]) -> Tensor:
        """Return the logits after each segment's last token, [S, V] float32."""
        ...

    def prepare(self, state: State) -> Callable[[], None]:
        """Lay out new weights beside those in use; the returned call puts them in their place."""
        ...
