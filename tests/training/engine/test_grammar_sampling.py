"""Grammars in the torch engine: what is sampled obeys, what is recorded is the policy's own."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.tiny_decoders import EOS, make_decoder

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.api.config import ModelConfig, TrainingConfig
from hermes_tui_training.engine import Engine, SamplingParams, create_engine
from hermes_tui_training.engine.grammar import TokenMasks
from hermes_tui_training.engine.sampling import random_source, sample

NUMBERS = (
    '%llguidance {}\nstart: %json {"type": "object", "properties": {"a": {"type": "array", '
    '"items": {"enum": [1, 22, 333]}, "minItems": 3, "maxItems": 9}}, "required": ["a"], '
    '"additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}'
)
PROMPT = list(b"Numbers, please: ")


@dataclass
class Collected:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    removed: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop_text: str | None = None

    @property
    def text(self) -> str:
        return bytes(token_id for token_id in self.token_ids if token_id < EOS).decode()


async def collect(engine: Engine, prompt: list[int] = PROMPT, **how: Any) -> Collected:
    params = {"max_tokens": 80, "seed": 1, "stop_token_ids": (EOS,), **how}
    collected = Collected()
    async for output in engine.generate(prompt, SamplingParams(**params)):
        collected.token_ids += output.token_ids
        collected.logprobs += output.logprobs
        collected.versions += output.policy_versions
        collected.removed += output.removed_probs
        collected.finish_reason, collected.stop_text = output.finish_reason, output.stop_text
    return collected


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(tmp_path_factory.mktemp("llama"))


@pytest.fixture
async def engine(directory: Path) -> Any:
    made = create_engine(TrainingConfig(), ModelConfig(path=str(directory)), directory)
    await made.start()
    yield made
    await made.stop()


async def test_many_forms_in_one_batch_beside_free_replies(engine: Engine) -> None:
    """Constrained replies obey, whatever is sampled; free ones are what they are alone."""
    alone = [await collect(engine, seed=seed, max_tokens=30) for seed in (5, 6)]
    mixed = await asyncio.gather(
        *(collect(engine, seed=seed, grammar=NUMBERS) for seed in range(4)),
        collect(engine, seed=5, max_tokens=30),
        collect(engine, seed=6, max_tokens=30),
        collect(engine, temperature=0.0, grammar=NUMBERS),
        collect(engine, top_k=2, top_p=0.5, grammar=NUMBERS),
    )
    for one in (*mixed[:4], *mixed[6:]):
        assert one.finish_reason == "stop"
        assert one.token_ids[-1] == EOS
        values = json.loads(one.text)["a"]
        assert 3 <= len(values) <= 9
        assert set(values) <= {1, 22, 333}
        assert len(one.removed) == len(one.token_ids)
    assert len({one.text for one in mixed[:4]}) > 1
    for found, expected in zip(mixed[4:6], alone, strict=True):
        assert found.token_ids == expected.token_ids
        assert found.removed == []


async def test_logprobs_are_those_without_the_grammar(engine: Engine, directory: Path) -> None:
    from transformers import AutoModelForCausalLM

    found = await collect(engine, temperature=0.7, grammar=NUMBERS)
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT + found.token_ids])).logits[0, len(PROMPT) - 1 : -1]
    logprobs = (logits / 0.7).log_softmax(-1)
    taken = logprobs.gather(1, torch.tensor(found.token_ids)[:, None])[:, 0]
    assert found.logprobs == pytest.approx(taken.tolist(), abs=1e-4)
    # Where one byte alone may come, all other probability is removed.
    assert found.text.startswith('{"a":[')
    forced = [1 - math.exp(logprob) for logprob in found.logprobs[:6]]
    assert found.removed[:6] == pytest.approx(forced, abs=1e-5)


async def test_a_swap_in_the_middle_keeps_the_place(
    engine: Engine, tmp_path: Path, directory: Path
) -> None:
    other = make_decoder(tmp_path / "other", seed=3)
    stream = engine.generate(
        PROMPT,
        SamplingParams(
            max_tokens=480,
            seed=1,
            stop_token_ids=(EOS,),
            grammar=NUMBERS.replace('"minItems": 3, "maxItems": 9', '"minItems": 99'),
        ),
    )
    token_ids, versions = [], []
    async for output in stream:
        token_ids += output.token_ids
        versions += output.policy_versions
        if len(token_ids) == 9:
            await engine.pause()
            await engine.swap(other, 1)
            await engine.resume()
    assert set(versions) == {0, 1}  # 99 numbers: the engine is not at their end before the pause
    assert set(json.loads(bytes(token_ids[:-1]))["a"]) <= {1, 22, 333}


async def test_stops_cuts_and_prefixes(engine: Engine) -> None:
    stopped = await collect(engine, grammar=NUMBERS, stop=(",",))
    assert (stopped.finish_reason, stopped.stop_text) == ("stop", ",")
    cut = await collect(engine, grammar=NUMBERS, max_tokens=7)
    assert cut.finish_reason == "length"
    whole = await collect(engine, grammar=NUMBERS)
    before = engine.stats().prefix_hit_tokens
    again = await collect(engine, grammar=NUMBERS)
    assert engine.stats().prefix_hit_tokens == before + len(PROMPT) - 1
    assert again.token_ids == whole.token_ids
    stream = engine.generate(
        PROMPT, SamplingParams(max_tokens=80, stop_token_ids=(EOS,), grammar=NUMBERS)
    )
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert (await collect(engine, grammar=NUMBERS)).token_ids == whole.token_ids
    assert engine.stats().num_running == 0


async def test_what_cannot_be_a_grammar_fails_alone(engine: Engine) -> None:
    with pytest.raises(TrainingError, match="grammar"):
        await collect(engine, grammar="start: nothing_of_the_kind")
    assert (await collect(engine, grammar=NUMBERS)).finish_reason == "stop"


def test_what_is_left_is_drawn_by_its_probabilities_however_small() -> None:
    """The mask leaves two tokens of three; they are drawn as 3 to 1, even far below float32."""
    logits = torch.tensor([[0.0, -200.0 + math.log(3), -200.0]])
    masks = TokenMasks(rows=[0], allowed_RV=torch.tensor([[False, True, True]]))
    source = random_source(2)
    params = [SamplingParams(max_tokens=1)]
    drawn = [sample(logits, params, [source], masks)[0] for _ in range(2000)]
    assert all(one is not None and one.removed_prob == pytest.approx(1.0) for one in drawn)
    assert {one.token_id for one in drawn if one} == {1, 2}
    share = sum(one.token_id == 1 for one in drawn if one) / 2000
    assert share == pytest.approx(0.75, abs=0.03)
