"""The sampler against the probabilities that it should follow."""

from __future__ import annotations

import math

import pytest
import torch

from hermes_tui_training.engine.base import SamplingParams
from hermes_tui_training.engine.sampling import Sampled, random_source, sample

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0, 0.5])


def draw(count: int, logits: torch.Tensor = LOGITS, seed: int = 7, **how: float) -> list[Sampled]:
    """Sample ``count`` times from one completion's random numbers."""
    params = SamplingParams(max_tokens=1, **how)  # type: ignore[arg-type]
    source = random_source(seed)
    batches = [sample(logits[None], [params], [source])[0] for _ in range(count)]
    return [sampled for sampled in batches if sampled is not None]


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 4, "top_p": 0.9},
    ],
)
def test_draws_follow_the_probabilities(how: dict[str, float]) -> None:
    probs = (LOGITS / how["temperature"]).softmax(0)
    order = probs.argsort(descending=True)
    kept = order[: int(how.get("top_k", 6))]
    within = probs[kept] / probs[kept].sum()
    before = within.cumsum(0) - within
    kept = kept[before < how.get("top_p", 1.0)]
    expected = torch.zeros(6).index_put((kept,), probs[kept] / probs[kept].sum())

    count = 6000
    found = torch.bincount(torch.tensor([s.token_id for s in draw(count, **how)]), minlength=6)
    assert set(found.nonzero()[:, 0].tolist()) == set(kept.tolist())
    chi_square = ((found - count * expected) ** 2 / (count * expected))[kept].sum()
    assert chi_square < 20.5  # 5 degrees of freedom: exceeded once in a thousand seeds


def test_rare_tokens_come_as_often_as_they_should() -> None:
    # One token holds half; 50,000 share the other half: each 1e-5, where coarse draws would fail.
    logits = torch.zeros(50_001)
    logits[0] = math.log(50_000)
    rare = sum(s.token_id != 0 for s in draw(1500, logits))
    assert abs(rare - 750) < 3.3 * math.sqrt(1500 / 4)


@pytest.mark.parametrize(
    ("how", "allowed"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.5}, {0}),  # 0.561, 0.206, 0.125, 0.076, 0.028, 0.004
        ({"top_p": 0.76}, {0, 1}),
        ({"top_p": 0.78}, {0, 1, 5}),
        ({"top_k": 3, "top_p": 0.6}, {0}),  # top_p of what top_k left: 0.63, 0.23, 0.14
        ({"top_p": 1e-9}, {0}),
        ({"top_k": 100}, {0, 1, 2, 3, 4, 5}),
    ],
)
def test_truncation_keeps_the_smallest_set(how: dict[str, float], allowed: set[int]) -> None:
    assert {s.token_id for s in draw(1500, **how)} == allowed


def test_top_p_over_more_candidates_than_are_sorted_first() -> None:
    logits = torch.zeros(1000)
    drawn = {s.token_id for s in draw(3000, logits, top_p=0.5)}
    assert 450 < len(drawn) <= 501  # rounding may let one more in


def test_logprobs_are_those_before_truncation_at_the_temperature() -> None:
    at_half = (LOGITS / 0.5).log_softmax(0)
    for sampled in draw(50, temperature=0.5, top_k=2):
        assert sampled.logprob == pytest.approx(float(at_half[sampled.token_id]), abs=1e-6)
    greedy = draw(1, temperature=0.0)[0]
    assert greedy.token_id == 0
    assert greedy.logprob == pytest.approx(float(LOGITS.log_softmax(0)[0]), abs=1e-6)


def test_top_logprobs_are_the_likeliest_in_order() -> None:
    sampled = draw(1, top_logprobs=3)[0]
    expected = LOGITS.log_softmax(0)
    assert sampled.top_logprobs is not None
    assert [token for token, _ in sampled.top_logprobs] == [0, 1, 5]
    for token, logprob in sampled.top_logprobs:
        assert logprob == pytest.approx(float(expected[token]), abs=1e-6)
    assert draw(1)[0].top_logprobs is None


def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch() -> None:
    logits = torch.randn(3, 50, generator=torch.manual_seed(3))
    how = [
        SamplingParams(max_tokens=1, temperature=0.9),
        SamplingParams(max_tokens=1, temperature=0.0),
        SamplingParams(max_tokens=1, top_p=0.7),
    ]
    together = sample(logits, how, [random_source(seed) for seed in (1, 2, -3)])
    for row, seed in enumerate((1, 2, -3)):
        alone = sample(logits[row : row + 1], how[row : row + 1], [random_source(seed)])
        assert alone[0] is not None
        assert together[row] is not None
        assert alone[0].token_id == together[row].token_id  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_give_nothing(value: float) -> None:
    logits = torch.stack([LOGITS, LOGITS.index_fill(0, torch.tensor(2), value)])
    for temperature in (0.0, 1.0):
        params = [SamplingParams(max_tokens=1, temperature=temperature)] * 2
        good, bad = sample(logits, params, [random_source(1), random_source(2)])
        assert good is not None
        assert bad is None
