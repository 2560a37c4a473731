"""An engine that says what a test tells it to, and a tokenizer of single bytes to say it with."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.engine.base import EngineOutput, EngineStats, SamplingParams

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@cache
def byte_tokenizer() -> Any:
    """Return a ChatML tokenizer whose other tokens are the 256 bytes; ids 0 to 2 are control."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*CONTROL_TOKENS, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in CONTROL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<|endoftext|>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
    )


@cache
def qwen_tokenizer() -> Any:
    """Return a byte tokenizer that has the control tokens of the Qwen3 family too."""
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.unk_token = None
    names = ("think", "tool_call", "tool_response")
    tokenizer.add_tokens([f"<{slash}{name}>" for name in names for slash in ("", "/")])
    vision = ("vision_start", "vision_end", "image_pad", "video_pad")
    tokenizer.add_tokens([f"<|{name}|>" for name in vision], special_tokens=True)
    return tokenizer


END = 2
"""Id of ``<|im_end|>``."""


def encode(text: str) -> list[int]:
    """Return a text's byte tokens."""
    return list(byte_tokenizer().encode(text, add_special_tokens=False))


@dataclass(kw_only=True)
class Script:
    """What one request gets."""

    token_ids: Sequence[int] = ()
    """Tokens, one output each."""
    finish_reason: str | None = "stop"
    """With the last token."""
    logprob: Callable[[int], Any] = field(default=lambda position: -0.5 - position / 1024)
    """Logprob by position."""
    error_after: int | None = None
    """Raise once so many tokens were given."""
    hold_after: int | None = None
    """Once so many tokens were given, wait until the engine's ``release`` is set."""
    stop_text: str | None = None
    """Reported with the last token."""
    fails: str | None = None
    """Refuse the request with this sentence."""
    removed_prob: Callable[[int], float] = field(default=lambda position: 0.5)
    """What the request's grammar ruled out, by position; a script that breaks it is an error."""


def says(text: str, **kwargs: Any) -> Script:
    """Return a script that says a text and stops."""
    return Script(token_ids=[*encode(text), END], **kwargs)


def allows(sampling: SamplingParams, token_ids: Sequence[int]) -> bool:
    """Return whether a request's grammar allows tokens of the byte tokenizer."""
    from llguidance import LLMatcher, LLTokenizer

    assert sampling.grammar is not None
    text = byte_tokenizer().backend_tokenizer.to_str()
    tokenizer = LLTokenizer(text, eos_token=list(sampling.stop_token_ids))
    matcher = LLMatcher(tokenizer, sampling.grammar)
    return all(matcher.consume_token(token_id) for token_id in token_ids)


class FakeEngine:
    """Gives each request the next script; satisfies ``Engine``."""

    backend = "fake"

    def __init__(self, *scripts: Script, max_model_len: int = 4096) -> None:
        self.scripts = list(scripts)
        self.default = says("ok")
        self.max_model_len = max_model_len
        self.policy_version = 0
        self.requests: list[tuple[list[int], SamplingParams]] = []
        self.num_running = 0
        self.num_waiting = 0
        self.num_closed_early = 0
        self.num_held = 0
        self.release = asyncio.Event()
        self.token_s = 0.0

    async def start(self) -> None: ...

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams
    ) -> AsyncIterator[EngineOutput]:
        self.requests.append((list(prompt_token_ids), sampling))
        script = self.scripts.pop(0) if self.scripts else self.default
        token_ids = list(script.token_ids)[: sampling.max_tokens]
        cut = len(token_ids) < len(script.token_ids)
        if script.fails:
            raise TrainingError(script.fails)
        if sampling.grammar is not None and not allows(sampling, token_ids):
            raise TrainingError("the grammar does not allow the script")
        self.num_running += 1
        finished = False
        try:
            for position, token_id in enumerate(token_ids):
                await self._pace(script, position)
                last = position == len(token_ids) - 1
                output = EngineOutput(
                    token_ids=(token_id,),
                    logprobs=(script.logprob(position),),
                    policy_versions=(self.policy_version,),
                    top_logprobs=self._top(token_id, sampling),
                    finish_reason=("length" if cut else script.finish_reason) if last else None,  # type: ignore[arg-type]
                    stop_text=script.stop_text if last else None,
                    removed_probs=(script.removed_prob(position),) if sampling.grammar else (),
                )
                finished = last
                yield output
            if script.error_after == len(token_ids):
                raise RuntimeError("the engine broke")
        finally:
            self.num_running -= 1
            self.num_closed_early += not finished

    async def _pace(self, script: Script, position: int) -> None:
        if script.error_after == position:
            raise RuntimeError("the engine broke")
        if script.hold_after == position:
            self.num_held += 1
            await self.release.wait()
        await asyncio.sleep(self.token_s)

    def _top(
        self, token_id: int, sampling: SamplingParams
    ) -> tuple[tuple[tuple[int, float], ...], ...]:
        if not sampling.top_logprobs:
            return ()
        return (tuple((token_id + i, -0.5 - i) for i in range(sampling.top_logprobs)),)

    async def swap(self, checkpoint: Path, policy_version: int) -> None:
        self.policy_version = policy_version

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def stop(self) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            paused=False,
            tokens_per_s=0.0,
            cached_tokens=0,
            prefix_hit_tokens=0,
            prompt_tokens=0,
        )


class FakeOrchestrator:
    """Trains nothing; answers as it was told."""

    def __init__(self) -> None:
        self.paused_reason: str | None = None
        self.rollback_answer: dict[str, Any] | Exception = {"step": 3, "policy_version": 3}

    async def pause(self, reason: str) -> None:
        self.paused_reason = reason

    async def resume(self) -> None:
        self.paused_reason = None

    async def checkpoint(self) -> dict[str, Any]:
        return {"policy_version": 0, "path": ""}

    async def rollback(self, version: int) -> dict[str, Any]:
        if isinstance(self.rollback_answer, Exception):
            raise self.rollback_answer
        return self.rollback_answer | {"rolled_back_to": version}

    def status(self) -> dict[str, Any]:
        return {
            "state": "waiting",
            "reason": "",
            "policy_version": 0,
            "paused": self.paused_reason is not None,
            "pause_reason": self.paused_reason,
        }
