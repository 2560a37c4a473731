"""What a vLLM server answers, in our words: sampled tokens, and its load."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hermes_tui_training.engine.base import EngineOutput, FinishReason, SamplingParams

_METRIC = re.compile(r"^vllm:(?P<name>\w+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A server's load."""

    num_waiting: int = 0
    """Requests in its queue."""
    cached_tokens: int = 0
    """Tokens whose keys and values it keeps."""
    prefix_hit_tokens: int = 0
    """Prompt tokens since its start that were in its prefix cache."""
    prompt_tokens: int = 0
    """All prompt tokens since its start."""


def outputs_of(
    chunk: dict[str, Any], sampling: SamplingParams, policy_version: int
) -> Iterator[EngineOutput]:
    """Yield the tokens of one chunk of a streamed completion.

    Args:
        chunk: as vLLM's completions API sends it, with ``return_token_ids`` and
            ``return_tokens_as_token_ids``.
        sampling: what was asked for.
        policy_version: version of the weights that sampled it.
    Raises: ValueError, KeyError: the chunk lacks something, or its counts disagree.
    """
    for choice in chunk["choices"]:
        finish = _finish(choice)
        token_ids = tuple(choice.get("token_ids") or ())
        if not token_ids and finish is None:
            continue
        logprobs = choice.get("logprobs") or {}
        sampled = tuple(float(value) for value in logprobs.get("token_logprobs") or ())
        if len(sampled) != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens with {len(sampled)} logprobs")
        tops: tuple[tuple[tuple[int, float], ...], ...] = ()
        if sampling.top_logprobs:
            tops = tuple(_top(row, sampling.top_logprobs) for row in logprobs["top_logprobs"])
        # vLLM tells logprobs after the grammar ruled tokens out, and not how many: none is trained.
        removed = (1.0,) * len(token_ids) if sampling.grammar is not None else ()
        yield EngineOutput(
            token_ids=token_ids,
            logprobs=sampled,
            policy_versions=(policy_version,) * len(token_ids),
            top_logprobs=tops,
            removed_probs=removed,
            finish_reason=finish,
        )


def _finish(choice: dict[str, Any]) -> FinishReason | None:
    reason = choice.get("finish_reason")
    if reason in (None, "stop", "length"):
        return reason
    raise ValueError(f"a completion ended with {reason!r}")


def _top(row: dict[str, float], count: int) -> tuple[tuple[int, float], ...]:
    """Return the likeliest tokens; vLLM adds the sampled one when it is none of them."""
    pairs = [
        (int(name.removeprefix("token_id:")), float(logprob))
        for name, logprob in row.items()
        if math.isfinite(logprob)
    ]
    pairs.sort(key=lambda pair: -pair[1])
    return tuple(pairs[:count])


def read_load(metrics: str) -> Load:
    """Return the load that a server's metrics tell.

    Args:
        metrics: in Prometheus' text format.
    """
    values: dict[str, float] = {}
    labels: dict[str, str] = {}
    for match in _METRIC.finditer(metrics):
        values[match["name"]] = values.get(match["name"], 0.0) + float(match["value"])
        if match["name"] == "cache_config_info":
            labels = dict(_LABEL.findall(match["labels"] or ""))
    room = _number(labels, "num_gpu_blocks") * _number(labels, "block_size")
    return Load(
        num_waiting=int(values.get("num_requests_waiting", 0)),
        cached_tokens=int(values.get("kv_cache_usage_perc", 0.0) * room),
        prefix_hit_tokens=int(values.get("prefix_cache_hits_total", 0)),
        prompt_tokens=int(values.get("prompt_tokens_total", 0)),
    )


def _number(labels: dict[str, str], name: str) -> int:
    return int(labels[name]) if labels.get(name, "").isdigit() else 0
