"""On the embedded model sampler and trainer mean the same probabilities."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from fakes.episodes import make_completion, make_episode
from tokenizers import Tokenizer

from hermes_tui_training.algorithm.samples import training_samples
from hermes_tui_training.api.config import LoraConfig, ModelConfig, TrainingConfig
from hermes_tui_training.api.types import Completion
from hermes_tui_training.engine import Engine, SamplingParams, create_engine
from hermes_tui_training.learner.batches import make_batches
from hermes_tui_training.learner.model import PolicyModel
from hermes_tui_training.models.prepare import EMBEDDED_MODEL, prepare_model

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(300)]

STREAMS, TOKENS = 20, 100
"""2,000 tokens, all streams batched with each other."""


async def sampled(engine: Engine, number: int, prompt: list[int]) -> Completion:
    """Sample a completion; every other one at temperature 0.6."""
    temperature = 0.6 if number % 2 else 1.0
    sampling = SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=number)
    outputs = [output async for output in engine.generate(prompt, sampling)]
    return make_completion(
        f"c{number}",
        tuple(prompt),
        tuple(t for output in outputs for t in output.token_ids),
        logprobs=tuple(p for output in outputs for p in output.logprobs),
        temperature=temperature,
    )


async def test_sampler_and_trainer_agree_on_two_thousand_tokens(tmp_path: Path) -> None:
    directory = prepare_model(EMBEDDED_MODEL, lambda line: None)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    prompts = [
        tokenizer.encode(f"<|im_start|>user\nTell me {'more ' * n}about the number {n}.").ids
        for n in range(STREAMS)
    ]
    engine = create_engine(TrainingConfig(), ModelConfig(), directory)
    await engine.start()
    completions = await asyncio.gather(
        *(sampled(engine, number, prompt) for number, prompt in enumerate(prompts))
    )
    await engine.stop()
    samples = [
        sample
        for completion in completions
        for sample in training_samples(make_episode(completion), {completion.completion_id: 1.0})
    ]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = PolicyModel(
        directory,
        LoraConfig(),
        device=device,
        dtype=torch.float32,
        with_reference=False,
    )
    mismatch_N = torch.cat(
        [
            (policy.score(batch).logprobs_N - batch.behavior_logprobs_N).abs()
            for batch in make_batches(samples, max_tokens=1024, device=device)
        ]
    )
    assert len(mismatch_N) == STREAMS * TOKENS
    assert mismatch_N.mean() <= 1e-4
    assert mismatch_N.max() <= 1e-2
