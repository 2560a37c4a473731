"""Chooses which tokens are computed next: continuous batching with chunked prefill.

Every step computes one token of each running completion, and chunks of prompts. Chunks are shorter
while completions run, so that a long prompt does not stall their streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import torch

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.engine.decoder import Chunk, Decoder
from hermes_tui_training.engine.grammar import MaskWriter, TokenMasks
from hermes_tui_training.engine.prefix import PrefixCache, shared_prefix
from hermes_tui_training.engine.request import Delivery, Request
from hermes_tui_training.engine.sampling import Sampled, sample

_CHUNK_TOKENS = 256
"""Prompt tokens per step when no completion runs: more are no faster on a CPU."""

_SHARED_CHUNK_TOKENS = 128
"""Prompt tokens per step while completions run: about 0.15 s on two cores, embedded model."""

Deliver = Callable[[Request, Delivery], None]


class Scheduler:
    """Owns the requests of an engine; used by the engine's thread only."""

    def __init__(self, decoder: Decoder, *, max_num_seqs: int, prefix_cache_tokens: int) -> None:
        self.policy_version = 0
        self.prefix_hit_tokens = 0
        self.prompt_tokens = 0
        self.num_cached_tokens = 0
        self._decoder = decoder
        self._max_num_seqs = max_num_seqs
        self._prefixes = PrefixCache(prefix_cache_tokens)
        self._masks = MaskWriter(decoder.vocab_size, max_num_seqs)
        self._waiting: deque[Request] = deque()
        self._prefilling: list[Request] = []
        self._running: list[Request] = []
        self._oldest_first = True

    @property
    def num_running(self) -> int:
        """Requests that have a slot."""
        return len(self._running) + len(self._prefilling)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """True if there is a request."""
        return bool(self._waiting or self._prefilling or self._running)

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)
        self.prompt_tokens += len(request.prompt)

    def drop_aborted(self) -> None:
        """Free the slots of aborted requests."""
        for request in [*self._prefilling, *self._running]:
            if request.aborted:
                self._release(request)
        self._waiting = deque(r for r in self._waiting if not r.aborted)

    def drop_all(self) -> Iterator[Request]:
        """Remove and yield every request."""
        yield from [*self._waiting, *self._prefilling, *self._running]
        self._waiting.clear()
        self._prefilling.clear()
        self._running.clear()

    def weights_changed(self, policy_version: int) -> None:
        """Set the version of the next tokens, and clear the prefix cache of the old weights."""
        self.policy_version = policy_version
        self._prefixes.clear()
        self.num_cached_tokens = 0

    def step(self, deliver: Deliver) -> int:
        """Compute and sample once; return how many tokens were sampled."""
        while self._waiting and self.num_running < self._max_num_seqs:
            self._prefilling.append(self._waiting.popleft())
        batch = [(request, 1) for request in self._running]
        batch += self._chunks(_SHARED_CHUNK_TOKENS if self._running else _CHUNK_TOKENS)
        rows = [row for row, (request, size) in enumerate(batch) if request.num_to_compute == size]
        chosen = [batch[row][0] for row in rows]
        writing = self._masks.begin([request.matcher for request in chosen])
        chunks = [
            Chunk(token_ids=request.next_tokens(size), cache=request.cache)
            for request, size in batch
            if request.cache is not None
        ]
        logits = self._decoder.forward(chunks)
        if not chosen:
            return 0
        picked = logits if len(rows) == len(batch) else logits[rows]
        self._sample(chosen, picked, writing.result() if writing else None, deliver)
        return len(chosen)

    def _chunks(self, budget: int) -> list[tuple[Request, int]]:
        """Return the prompts to continue and the number of tokens of each.

        The oldest prompt and the shortest one go first in alternate steps: short ones do not wait
        for a long one, and the long one is never starved.
        """
        ready = [r for r in self._prefilling if r.cache is not None or self._begin(r)]
        by_size = sorted(ready, key=lambda request: request.num_to_compute)
        self._oldest_first = not self._oldest_first
        chunks: list[tuple[Request, int]] = []
        for request in [*ready[:1], *by_size] if self._oldest_first else by_size:
            if budget > 0 and all(request is not chosen for chosen, _ in chunks):
                size = min(budget, request.num_to_compute)
                chunks.append((request, size))
                budget -= size
        return chunks

    def _begin(self, request: Request) -> bool:
        """Give a request a cache with the longest cached prefix.

        Returns: False if a prompt that is being computed will share more: the request waits for it.
        """
        current = [
            r
            for r in [*self._prefilling, *self._running]
            if r.cache is not None and r.cache_version == self.policy_version
        ]
        held = [(r.token_ids, r.cache) for r in current if r.cache is not None]
        match = self._prefixes.find(request.prompt, held)
        coming = [shared_prefix(request.prompt[:-1], r.prompt) for r in current if not r.sampled]
        if max(coming, default=0) > (match.length if match else 0):
            return False
        cache = self._prefixes.claim(match) if match else None
        request.cache = cache or self._decoder.new_cache()
        request.cache_version = self.policy_version
        self.prefix_hit_tokens += request.cache.length
        self.num_cached_tokens = self._prefixes.num_tokens
        return True

    def _sample(
        self,
        chosen: list[Request],
        logits: torch.Tensor,
        masks: TokenMasks | None,
        deliver: Deliver,
    ) -> None:
        """Sample a token of each request, from its row of the logits."""
        params = [request.sampling for request in chosen]
        sampled = sample(logits, params, [r.random_source for r in chosen], masks)
        for request, token in zip(chosen, sampled, strict=True):
            if (failure := self._failure(request, token)) is not None:
                self._forget(request)
                deliver(request, TrainingError(failure))
                continue
            assert token is not None
            output = request.accept(token, self.policy_version)
            deliver(request, output)
            if output.finish_reason is not None:
                self._release(request)
            elif request in self._prefilling:
                self._prefilling.remove(request)
                self._running.append(request)

    def _failure(self, request: Request, token: Sampled | None) -> str | None:
        """Return why a request's token cannot be taken; None when it can."""
        if token is None:
            return f"the model's logits are not finite at version {self.policy_version}"
        error = request.matcher and request.matcher.error
        return f"the grammar of the reply could not go on: {error}" if error else None

    def _release(self, request: Request) -> None:
        """Free a slot and put its cache into the prefix cache."""
        self._forget(request)
        if request.cache is not None and request.cache_version == self.policy_version:
            self._prefixes.put(request.token_ids, request.cache)
            self.num_cached_tokens = self._prefixes.num_tokens

    def _forget(self, request: Request) -> None:
        for requests in (self._prefilling, self._running):
            if request in requests:
                requests.remove(request)
