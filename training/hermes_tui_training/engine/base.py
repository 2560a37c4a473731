"""What an engine is: it samples tokens, and takes new weights while it goes on serving."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one completion is sampled."""

    max_tokens: int
    """Upper bound of sampled tokens, at least 1."""
    temperature: float = 1.0
    """Logits are divided by it; 0 is greedy."""
    top_p: float = 1.0
    """Smallest set of tokens whose probabilities reach this is kept, in (0, 1]."""
    top_k: int = 0
    """How many of the likeliest tokens are kept; 0 keeps all."""
    seed: int | None = None
    """Makes the completion reproducible; None draws one."""
    stop: tuple[str, ...] = ()
    """Texts that end the completion once the decoded tokens hold one."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the completion; the stop token itself is part of it."""
    top_logprobs: int = 0
    """How many alternatives to report per token, 0 to 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutput:
    """Tokens that one completion gained, usually one; all sequences are equally long."""

    token_ids: tuple[int, ...]
    """Sampled ids."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each sampled id under softmax(logits / temperature), before any
    truncation by top_p or top_k; at temperature 0 under softmax(logits)."""
    policy_versions: tuple[int, ...]
    """Version of the weights that made each token."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token its likeliest (id, logprob) pairs, best first; empty when none were asked for."""
    finish_reason: FinishReason | None = None
    """Set on the last output only."""
    stop_text: str | None = None
    """The stop string that ended the completion, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What an engine is doing now."""

    num_running: int
    """Requests being decoded."""
    num_waiting: int
    """Requests that wait for a slot."""
    paused: bool
    """Whether sampling is held."""
    tokens_per_s: float
    """Sampled tokens per second over the last seconds, all requests together."""
    cached_tokens: int
    """Tokens whose keys and values are kept for later prompts."""
    prefix_hit_tokens: int
    """Prompt tokens that did not have to be computed, since start."""
    prompt_tokens: int
    """Prompt tokens received, since start."""


class Engine(Protocol):
    """Samples completions of token prompts.

    Raises: TrainingError: from any method, when generation or a swap failed; its text says why.
    """

    @property
    def backend(self) -> str:
        """Engine's short name, such as ``torch``."""
        ...

    @property
    def policy_version(self) -> int:
        """Version of the weights that sample now."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens."""
        ...

    async def start(self) -> None:
        """Load what is needed; returns once completions can be asked for."""
        ...

    def generate(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams
    ) -> AsyncIterator[EngineOutput]:
        """Sample one completion.

        Closing the iterator (``aclose``) or cancelling its task aborts the request within one step
        and frees its slot. Iteration ends after the output that has a ``finish_reason``.
        """
        ...

    async def swap(self, checkpoint: Path, policy_version: int) -> None:
        """Serve the weights of a checkpoint directory from the next token boundary on.

        The directory is in Hugging Face layout: ``model.safetensors`` (full), or peft's
        ``adapter_model.safetensors`` and ``adapter_config.json`` (an adapter on the base model).
        Requests in flight go on; the prefix cache is dropped. On failure the old weights serve on.
        """
        ...

    async def pause(self) -> None:
        """Hold sampling; requests in flight keep their state."""
        ...

    async def resume(self) -> None:
        """Go on sampling."""
        ...

    def stats(self) -> EngineStats:
        """Return what the engine is doing now."""
        ...

    async def stop(self) -> None:
        """End all requests and free everything."""
        ...
