"""The state of one completion while it is sampled: its tokens, its cache, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.chat_template.detokenizer import Detokenizer, TokenTexts
from hermes_tui_training.engine.base import EngineOutput, FinishReason, SamplingParams
from hermes_tui_training.engine.decoder import Cache
from hermes_tui_training.engine.grammar import Matcher
from hermes_tui_training.engine.prefix import TokenIds
from hermes_tui_training.engine.sampling import Sampled, random_source

Delivery = EngineOutput | TrainingError


class StopTexts:
    """Looks for stop texts in the tokens of one completion."""

    def __init__(self, token_texts: TokenTexts, texts: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(token_texts)
        self._texts = texts
        self._keep = max(len(text) for text in texts) - 1
        self._tail = ""

    def feed(self, token_id: int) -> str | None:
        """Add a token; return the stop text that it completes, the earliest of several, or None."""
        self._tail += self._detokenizer.push(token_id)
        found = [(self._tail.find(text), text) for text in self._texts if text in self._tail]
        # A match further back would have been found before.
        self._tail = self._tail[-self._keep :] if self._keep else ""
        return min(found)[1] if found else None


class Request:
    """One completion; owned by the engine's thread once it is submitted."""

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        max_length: int,
        stop_texts: StopTexts | None,
        matcher: Matcher | None = None,
    ) -> None:
        self.prompt: TokenIds = np.asarray(prompt_token_ids, dtype=np.int64)
        self.sampling = sampling
        self.matcher = matcher
        """What its grammar allows next; None without one."""
        self.outputs: asyncio.Queue[Delivery] = asyncio.Queue()
        self.sampled: list[int] = []
        self.random_source = random_source(sampling.seed)
        self.cache: Cache | None = None
        """None until its prompt is being computed."""
        self.cache_version = -1
        """Version of the weights that computed the first tokens in the cache."""
        self.aborted = False
        """Set by the caller; read by the engine's thread."""
        self._max_sampled = min(sampling.max_tokens, max_length - len(self.prompt))
        self._stop_texts = stop_texts
        self._stop_ids = frozenset(sampling.stop_token_ids)

    @property
    def num_to_compute(self) -> int:
        """Prompt and sampled tokens that are not in the cache yet."""
        computed = self.cache.length if self.cache else 0
        return len(self.prompt) + len(self.sampled) - computed

    @property
    def token_ids(self) -> TokenIds:
        """Prompt and sampled tokens."""
        return np.concatenate([self.prompt, np.asarray(self.sampled, dtype=np.int64)])

    def next_tokens(self, limit: int) -> list[int]:
        """Return the next tokens to compute, at most ``limit``."""
        assert self.cache is not None
        if self.sampled:
            return self.sampled[-1:]
        start = self.cache.length
        tokens: list[int] = self.prompt[start : start + limit].tolist()
        return tokens

    def accept(self, sampled: Sampled, policy_version: int) -> EngineOutput:
        """Add a sampled token and return the output for the caller."""
        self.sampled.append(sampled.token_id)
        if self.matcher is not None:
            self.matcher.accept(sampled.token_id)
        stop_text = self._stop_texts.feed(sampled.token_id) if self._stop_texts else None
        finish: FinishReason | None = None
        if stop_text is not None or sampled.token_id in self._stop_ids:
            finish = "stop"
        elif len(self.sampled) >= self._max_sampled:
            finish = "length"
        top = sampled.top_logprobs
        return EngineOutput(
            token_ids=(sampled.token_id,),
            logprobs=(sampled.logprob,),
            policy_versions=(policy_version,),
            top_logprobs=() if top is None else (top,),
            removed_probs=() if self.matcher is None else (sampled.removed_prob,),
            finish_reason=finish,
            stop_text=stop_text,
        )
