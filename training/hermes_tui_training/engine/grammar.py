"""Grammars in sampling: which tokens may come next, for completions that must have a form.

llguidance reads a grammar and the tokens that were sampled, and says which may follow. It knows
tokens and nothing of weights: a swap in the middle of a completion changes nothing here.

Shapes: R constrained sequences of a step, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from hermes_tui_common.errors import TrainingError

_WORD_BITS = 32
"""llguidance writes its masks in words of this size."""


class Matcher:
    """What one completion may go on with."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def error(self) -> str | None:
        """Why it cannot go on, such as a grammar that takes too much work; None while it can."""
        return self._matcher.get_error() if self._matcher.is_error() else None

    def accept(self, token_id: int) -> None:
        """Take a sampled token; one that the grammar does not allow is an ``error``."""
        self._matcher.consume_token(token_id)

    def fill(self, address: int, num_bytes: int) -> None:
        """Write the mask of the next token, a bit per token, to memory."""
        self._matcher.unsafe_compute_mask_ptr(address, num_bytes)


class Grammars:
    """Makes matchers; safe to use from any thread."""

    def __init__(self, tokenizer_file: Path, vocab_size: int) -> None:
        self._file = tokenizer_file
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._tokenizers: dict[tuple[int, ...], LLTokenizer] = {}

    def matcher(self, grammar: str, stop_token_ids: Sequence[int]) -> Matcher:
        """Return the matcher of a new completion. The first one takes 0.2 s, others 1 ms.

        Args:
            grammar: in llguidance's form of Lark.
            stop_token_ids: allowed where the grammar may end, and only there.

        Raises: TrainingError: there is no tokenizer, or the grammar is not valid.
        """
        made = Matcher(LLMatcher(self._tokenizer(tuple(stop_token_ids)), grammar, log_level=0))
        if made.error is not None:
            raise TrainingError(f"the grammar of the reply is not valid: {made.error}")
        return made

    def _tokenizer(self, stop_token_ids: tuple[int, ...]) -> LLTokenizer:
        with self._lock:
            if stop_token_ids not in self._tokenizers:
                try:
                    text = self._file.read_text(encoding="utf-8")
                    made = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=[*stop_token_ids])
                except (OSError, ValueError) as error:
                    raise TrainingError(
                        f"grammars need a tokenizer.json that llguidance reads: {error}"
                    ) from error
                self._tokenizers[stop_token_ids] = made
            return self._tokenizers[stop_token_ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMasks:
    """What the constrained sequences of a batch may sample."""

    rows: list[int]
    """[R] their rows in the batch."""
    allowed_RV: Tensor
    """[R, V] bool, true for what the grammar allows."""


class MaskWriter:
    """Computes masks on a thread of its own, so that the model computes meanwhile.

    A mask takes 0.01 ms for most grammars, and milliseconds for some.
    """

    def __init__(self, vocab_size: int, max_num_seqs: int) -> None:
        words = -(-vocab_size // _WORD_BITS)
        self._vocab_size = vocab_size
        self._bits = np.zeros((max_num_seqs, words), dtype=np.int32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    def begin(self, matchers: Sequence[Matcher | None]) -> Future[TokenMasks] | None:
        """Begin the masks of a batch, one matcher or None per sequence; None when all are None."""
        constrained = [(row, matcher) for row, matcher in enumerate(matchers) if matcher]
        return self._thread.submit(self._write, constrained) if constrained else None

    def _write(self, constrained: Sequence[tuple[int, Matcher]]) -> TokenMasks:
        used = self._bits[: len(constrained)]
        for line, (_, matcher) in zip(used, constrained, strict=True):
            matcher.fill(line.ctypes.data, line.nbytes)
        bits = np.unpackbits(used.view(np.uint8), axis=1, count=self._vocab_size, bitorder="little")
        return TokenMasks(
            rows=[row for row, _ in constrained],
            allowed_RV=torch.from_numpy(bits.view(np.bool_)),
        )
