"""What the torch engine needs of a model: caches, and one forward pass over several sequences.

Shapes: S segments, T tokens of all segments, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class State(Mapping[str, Tensor]):
    """Weights by their Hugging Face names.

    A changed weight is computed each time it is asked for: whoever lays weights out one by one
    needs memory for one of them.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        changes: Mapping[str, Callable[[], Tensor]] | None = None,
    ) -> None:
        """
        Args:
            tensors: all weights, often maps of files.
            changes: how to compute those that are not the base model's; all others are. None when
                nothing is known of the base model.
        """
        self._tensors = tensors
        self._changes = changes

    def __getitem__(self, name: str) -> Tensor:
        if self._changes and name in self._changes:
            return self._changes[name]()
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def is_base(self, name: str) -> bool:
        """Whether a weight, there or not, is surely what it is in the base model."""
        return self._changes is not None and name not in self._changes


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
