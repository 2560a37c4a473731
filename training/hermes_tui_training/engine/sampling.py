"""From logits to tokens: temperature, top_k, top_p, seeds, and the recorded logprobs.

A token is drawn by an exponential race: e is drawn from Exp(1) for every token, and the largest
p / e wins. That gives the same distribution as inverting the cumulative distribution, and is more
stable. Logits differ by about 1e-6 between batches. That moves every boundary of the cumulative sum
and flips draws between unlikely neighbours. In a race only near ties flip.

Shapes: S sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hermes_tui_training.engine.base import SamplingParams
from hermes_tui_training.engine.grammar import TokenMasks

_CANDIDATES = 256
"""For top_p, sort this many of the likeliest tokens, and all only if they do not reach it."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled token."""

    token_id: int
    """Its id."""
    logprob: float
    """Natural log-probability under softmax(logits / temperature), before truncation."""
    top_logprobs: tuple[tuple[int, float], ...] | None
    """The likeliest (id, logprob) pairs, best first; None when none were requested."""
    removed_prob: float
    """Probability of what a grammar ruled out, under the same distribution; 0.0 without one."""


def random_source(seed: int | None) -> np.random.Generator:
    """Return a completion's own generator; without a seed it differs each time."""
    return np.random.Generator(np.random.SFC64(None if seed is None else seed % 2**64))


@torch.inference_mode()
def sample(
    logits_SV: Tensor,
    params: Sequence[SamplingParams],
    sources: Sequence[np.random.Generator],
    masks: TokenMasks | None = None,
) -> list[Sampled | None]:
    """Sample one token per sequence.

    Args:
        logits_SV: float32.
        params: one per sequence.
        sources: one per sequence. V numbers are drawn from each, unless it is greedy: the same seed
            and logits give the same tokens in any batch.
        masks: of the sequences that have a grammar. A mask is applied before top_k and top_p; the
            logprobs are those without it.
    Returns: one per sequence; None if its logits are not finite.
    """
    temperatures = [p.temperature or 1.0 for p in params]
    scaled = logits_SV / torch.tensor(temperatures, device=logits_SV.device)[:, None]
    normalizer = scaled.logsumexp(-1, keepdim=True)
    logprobs_SV = scaled - normalizer
    choices_SV, removed = logprobs_SV, [0.0] * len(params)
    if masks is not None:
        choices_SV = _masked(logprobs_SV, masks, removed)
    tokens = _choose(choices_SV, params, sources)
    chosen = logprobs_SV.gather(1, tokens[:, None])[:, 0].tolist()
    finite = normalizer[:, 0].isfinite().tolist()
    return [
        Sampled(token, logprob, _top(logprobs_SV[row], p.top_logprobs), removed[row])
        if ok
        else None
        for row, (token, logprob, ok, p) in enumerate(
            zip(tokens.tolist(), chosen, finite, params, strict=True)
        )
    ]


def _masked(logprobs_SV: Tensor, masks: TokenMasks, removed: list[float]) -> Tensor:
    """Return the logprobs with what grammars rule out at -inf; note the ``removed`` probability."""
    allowed_RV = masks.allowed_RV.to(logprobs_SV.device)
    rows_RV = logprobs_SV[masks.rows]
    sums = rows_RV.exp().masked_fill_(allowed_RV, 0.0).sum(-1).tolist()
    for row, prob in zip(masks.rows, sums, strict=True):
        removed[row] = prob
    rows_RV.masked_fill_(~allowed_RV, -torch.inf)
    # What is left may be so unlikely that its probabilities are 0 in float32: the best becomes 1.
    rows_RV -= rows_RV.amax(-1, keepdim=True)
    masked_SV = logprobs_SV.clone()
    masked_SV[masks.rows] = rows_RV
    return masked_SV


def _choose(
    logprobs_SV: Tensor, params: Sequence[SamplingParams], sources: Sequence[np.random.Generator]
) -> Tensor:
    """Return the chosen ids, [S]."""
    if all(p.temperature == 0 for p in params):
        return logprobs_SV.argmax(-1)
    scores_SV = logprobs_SV.exp()
    # Drawn in float64, then rounded: float32 draws are too coarse near 0, where races are won.
    times = np.ones(scores_SV.shape, dtype=np.float32)
    for row, (p, source) in enumerate(zip(params, sources, strict=True)):
        if p.temperature > 0:
            times[row] = source.standard_exponential(scores_SV.shape[1])
        if p.top_p < 1 or p.top_k > 0:
            probs, ids = _truncated(scores_SV[row], p)
            scores_SV[row] = torch.zeros_like(scores_SV[row]).scatter_(0, ids, probs)
    return scores_SV.div_(torch.from_numpy(times).to(scores_SV.device)).argmax(-1)


def _truncated(probs_V: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Apply top_k, then top_p; return the remaining probabilities and ids, likeliest first."""
    size = len(probs_V)
    wanted = min(params.top_k or size, size)
    probs, ids = probs_V.topk(min(wanted, _CANDIDATES))
    mass = float(probs_V.sum()) if wanted == size else None
    if wanted > _CANDIDATES and (mass is None or probs.sum() < params.top_p * mass):
        probs, ids = probs_V.topk(wanted)
    if params.top_p < 1:
        total = probs.sum() if mass is None else mass
        # A token stays if the likelier ones before it do not reach top_p.
        before = probs.cumsum(0) - probs
        kept = max(int((before < params.top_p * total).sum()), 1)
        probs, ids = probs[:kept], ids[:kept]
    return probs, ids


def _top(logprobs_V: Tensor, count: int) -> tuple[tuple[int, float], ...] | None:
    if not count:
        return None
    values, ids = logprobs_V.topk(min(count, len(logprobs_V)))
    return tuple(zip(ids.tolist(), values.tolist(), strict=True))
