"""The ``Engine`` protocol: samples tokens, and takes new weights without a pause in serving."""

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
    """Sample from the fewest likeliest tokens whose probabilities add up to this, in (0, 1]."""
    top_k: int = 0
    """Sample from this many of the likeliest tokens; 0 means all."""
    seed: int | None = None
    """Makes the completion reproducible; None draws a new seed."""
    stop: tuple[str, ...] = ()
    """Texts that end the completion as soon as the decoded text contains one."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the completion; the stop token itself is part of it."""
    top_logprobs: int = 0
    """How many alternatives to report per token, 0 to 20."""
    grammar: str | None = None
    """What the completion must be before one of ``stop_token_ids``, in llguidance's form of Lark;
    None lets it be anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutput:
    """The next tokens of one completion, usually one; all fields have the same length."""

    token_ids: tuple[int, ...]
    """Sampled ids."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each sampled id under softmax(logits / temperature), before any
    truncation by top_p or top_k; at temperature 0 under softmax(logits)."""
    policy_versions: tuple[int, ...]
    """Version of the weights that sampled each token."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """The likeliest (id, logprob) pairs per token, best first; empty when none were requested."""
    removed_probs: tuple[float, ...] = ()
    """Probability under the logprobs' distribution of all that the grammar ruled out where each id
    was sampled; empty without a grammar."""
    finish_reason: FinishReason | None = None
    """Why the completion ended; set on the last output only."""
    stop_text: str | None = None
    """The stop string that ended the completion, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The current load of an engine."""

    num_running: int
    """Requests that are being computed."""
    num_waiting: int
    """Requests in the queue."""
    paused: bool
    """True while sampling is paused."""
    tokens_per_s: float
    """Sampled tokens per second over the last five seconds, all requests together."""
    cached_tokens: int
    """Tokens in the prefix cache."""
    prefix_hit_tokens: int
    """Prompt tokens since the start that came from the prefix cache."""
    prompt_tokens: int
    """All prompt tokens since the start."""


class Engine(Protocol):
    """Samples completions of token prompts.

    Raises: TrainingError: from any method, when generation or a swap failed.
    """

    @property
    def backend(self) -> str:
        """Engine's short name, such as ``torch``."""
        ...

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens."""
        ...

    async def start(self) -> None:
        """Load the model; returns when the engine can take requests."""
        ...

    def generate(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams
    ) -> AsyncIterator[EngineOutput]:
        """Sample one completion.

        The iteration ends after the output with a ``finish_reason``. Closing the iterator
        (``aclose``) or cancelling its task aborts the request within one step.
        """
        ...

    async def swap(self, checkpoint: Path, policy_version: int) -> None:
        """Sample with the weights of a checkpoint directory from the next token on.

        The directory is in Hugging Face layout: ``model.safetensors`` (full), or peft's
        ``adapter_model.safetensors`` and ``adapter_config.json`` (an adapter on the base model).
        Requests in flight continue. The prefix cache is cleared. After a failure the old weights
        stay in use.
        """
        ...

    async def pause(self) -> None:
        """Stop sampling for now; requests in flight keep their state."""
        ...

    async def resume(self) -> None:
        """Sample again after ``pause``."""
        ...

    def stats(self) -> EngineStats:
        """Return the current load."""
        ...

    async def stop(self) -> None:
        """End all requests with an error and free the model."""
        ...
