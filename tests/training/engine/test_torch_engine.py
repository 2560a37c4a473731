"""The torch engine as its callers see it, on tiny models."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.tiny_decoders import VOCABULARY, make_decoder
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hermes_tui_common.errors import ConfigError, TrainingError
from hermes_tui_training.api.config import ModelConfig, TrainingConfig
from hermes_tui_training.engine import Engine, EngineOutput, SamplingParams, create_engine
from hermes_tui_training.engine.decoder import Decoder
from hermes_tui_training.engine.torch_engine import TorchEngine

DEADLINE_S = 30.0


@dataclass
class Collected:
    """All that one completion gave."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    last: EngineOutput | None = None

    def add(self, output: EngineOutput) -> None:
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.versions += output.policy_versions
        self.last = output


async def collect(engine: Engine, prompt: list[int], **how: Any) -> Collected:
    how = {"max_tokens": 12, "seed": 1, **how}
    collected = Collected()
    async for output in engine.generate(prompt, SamplingParams(**how)):
        collected.add(output)
    return collected


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


def prompt_of(count: int, seed: int = 0) -> list[int]:
    return torch.randint(VOCABULARY, (count,), generator=torch.manual_seed(seed)).tolist()


def expected_logprobs(directory: Path, prompt: list[int], sampled: list[int]) -> list[float]:
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
    logprobs = logits.log_softmax(-1)
    return logprobs.gather(1, torch.tensor(sampled)[:, None])[:, 0].tolist()


def build(directory: Path, **engine: Any) -> TorchEngine:
    config = TrainingConfig.model_validate({"engine": engine})
    created = create_engine(config, ModelConfig(path=str(directory)), directory)
    assert isinstance(created, TorchEngine)
    return created


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def trained(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the same model with other weights."""
    return make_decoder(tmp_path_factory.mktemp("trained"), seed=9)


@pytest.fixture
async def engine(directory: Path) -> AsyncIterator[TorchEngine]:
    engine = build(directory)
    await engine.start()
    yield engine
    await engine.stop()


async def test_logprobs_are_those_of_transformers(engine: TorchEngine, directory: Path) -> None:
    prompt = prompt_of(30)
    got = await collect(engine, prompt, max_tokens=20)
    assert len(got.token_ids) == 20
    assert got.versions == [0] * 20
    expected = expected_logprobs(directory, prompt, got.token_ids)
    assert got.logprobs == pytest.approx(expected, abs=1e-4)
    assert got.last is not None
    assert got.last.finish_reason == "length"


async def test_a_request_is_the_same_alone_and_among_others(engine: TorchEngine) -> None:
    prompts = [prompt_of(length, length) for length in (3, 40, 200, 11, 90)]
    alone = [await collect(engine, p, seed=i) for i, p in enumerate(prompts)]
    jobs = [collect(engine, p, seed=i) for i, p in enumerate(prompts)]
    for single, batched in zip(alone, await asyncio.gather(*jobs), strict=True):
        assert single.token_ids == batched.token_ids
        assert single.logprobs == pytest.approx(batched.logprobs, abs=1e-4)


async def test_more_requests_than_slots_are_all_answered(directory: Path) -> None:
    engine = build(directory, max_num_seqs=2)
    await engine.start()
    got = await asyncio.gather(*[collect(engine, prompt_of(5, i), seed=i) for i in range(7)])
    assert [len(each.token_ids) for each in got] == [12] * 7
    await engine.stop()


async def test_a_known_prefix_is_not_computed_and_changes_nothing(
    engine: TorchEngine, directory: Path
) -> None:
    first = prompt_of(60)
    one = await collect(engine, first)
    second = first + one.token_ids + prompt_of(9, 5)
    cold = build(directory, prefix_cache_tokens=0)
    await cold.start()
    expected = await collect(cold, second)
    assert cold.stats().prefix_hit_tokens == 0
    await cold.stop()
    before = engine.stats()
    got = await collect(engine, second)
    after = engine.stats()
    # The last sampled token was never computed; all before it are held.
    assert after.prefix_hit_tokens - before.prefix_hit_tokens == len(first) + 11
    assert after.prompt_tokens - before.prompt_tokens == len(second)
    assert got.token_ids == expected.token_ids
    assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def test_siblings_compute_their_prompt_once(engine: TorchEngine) -> None:
    prompt = prompt_of(300, 8)
    got = await asyncio.gather(*[collect(engine, prompt, seed=i) for i in range(4)])
    assert engine.stats().prefix_hit_tokens == 3 * 299
    again = await collect(engine, prompt, seed=2)
    assert again.token_ids == got[2].token_ids
    assert again.logprobs == pytest.approx(got[2].logprobs, abs=1e-4)


async def test_the_prefix_cache_is_bounded_and_forgets_the_oldest(directory: Path) -> None:
    engine = build(directory, prefix_cache_tokens=100)
    await engine.start()
    for seed in range(4):
        await collect(engine, prompt_of(30, seed))
        assert engine.stats().cached_tokens <= 100
    held = engine.stats().prefix_hit_tokens
    await collect(engine, prompt_of(30, 3))
    assert engine.stats().prefix_hit_tokens == held + 29
    await collect(engine, prompt_of(30, 0))
    assert engine.stats().prefix_hit_tokens == held + 29
    await engine.stop()


async def test_a_long_prompt_does_not_freeze_a_running_stream(directory: Path) -> None:
    engine = build(directory, max_num_seqs=4)
    await engine.start()
    order: list[str] = []

    async def run(name: str, prompt: list[int], count: int) -> None:
        async for _ in engine.generate(prompt, SamplingParams(max_tokens=count)):
            order.append(name)

    stream = asyncio.create_task(run("stream", prompt_of(3), 400))
    await until(lambda: "stream" in order)
    begun = len(order)
    await run("long", prompt_of(500, 1), 1)
    # 500 tokens in chunks of 128 beside the stream: it gained a token with each of them.
    assert order.index("long") - begun >= 3
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)
    await engine.stop()


async def test_stop_token_is_part_of_the_completion(engine: TorchEngine) -> None:
    prompt = prompt_of(10)
    free = await collect(engine, prompt, max_tokens=40)
    stop = free.token_ids[7]
    got = await collect(engine, prompt, max_tokens=40, stop_token_ids=(stop,))
    assert got.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert got.last is not None
    assert (got.last.finish_reason, got.last.stop_text) == ("stop", None)


async def test_stop_text_may_span_tokens(directory: Path, engine: TorchEngine) -> None:
    prompt = prompt_of(10)
    free = await collect(engine, prompt, max_tokens=60, temperature=0.7, seed=3)
    letters = [index for index, token in enumerate(free.token_ids[:-1]) if 32 <= token < 127]
    start = next(i for i in letters if i >= 3 and i + 1 in letters)
    text = bytes(free.token_ids[start : start + 2]).decode("ascii")
    got = await collect(
        engine, prompt, max_tokens=60, temperature=0.7, seed=3, stop=("\x00never", text)
    )
    assert got.token_ids == free.token_ids[: start + 2]
    assert got.last is not None
    assert (got.last.finish_reason, got.last.stop_text) == ("stop", text)


async def test_top_logprobs_come_with_each_token(engine: TorchEngine) -> None:
    outputs = [
        output
        async for output in engine.generate(
            prompt_of(5), SamplingParams(max_tokens=3, temperature=0, top_logprobs=2)
        )
    ]
    for output in outputs:
        (alternatives,) = output.top_logprobs
        assert len(alternatives) == 2
        assert alternatives[0] == (output.token_ids[0], pytest.approx(output.logprobs[0]))


async def test_closing_the_iterator_frees_the_slot(directory: Path) -> None:
    engine = build(directory, max_num_seqs=1)
    await engine.start()
    stream = engine.generate(prompt_of(5), SamplingParams(max_tokens=500))
    await anext(stream)
    assert engine.stats().num_running == 1
    await stream.aclose()
    await until(lambda: engine.stats().num_running == 0)

    task = asyncio.create_task(collect(engine, prompt_of(5), max_tokens=500))
    await until(lambda: engine.stats().num_running == 1)
    waiting = asyncio.create_task(collect(engine, prompt_of(6), max_tokens=500))
    await until(lambda: engine.stats().num_waiting == 1)
    for each in (waiting, task):
        each.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)
    await until(lambda: engine.stats().num_running + engine.stats().num_waiting == 0)
    assert len((await collect(engine, prompt_of(5))).token_ids) == 12
    await engine.stop()


async def test_pause_holds_and_resume_goes_on(engine: TorchEngine) -> None:
    expected = await collect(engine, prompt_of(8), max_tokens=30)
    got = Collected()

    async def run() -> None:
        async for output in engine.generate(prompt_of(8), SamplingParams(max_tokens=30, seed=1)):
            got.add(output)

    task = asyncio.create_task(run())
    await until(lambda: len(got.token_ids) >= 3)
    await engine.pause()
    assert engine.stats().paused
    for _ in range(20):  # what was sampled before is taken up
        await asyncio.sleep(0)
    held = len(got.token_ids)
    for _ in range(20):  # each waits for a round of the engine's thread
        await engine.pause()
    assert len(got.token_ids) == held
    await engine.resume()
    await task
    assert got.token_ids == expected.token_ids


async def test_swap_tags_tokens_and_serves_the_new_weights(
    engine: TorchEngine, directory: Path, trained: Path
) -> None:
    prompt = prompt_of(20)
    before = await collect(engine, prompt)
    got = Collected()
    async for output in engine.generate(prompt, SamplingParams(max_tokens=200, seed=4)):
        got.add(output)
        if len(got.token_ids) == 3:
            await engine.pause()  # or a slow machine might end the completion before the swap
            await engine.swap(trained, 1)
            await engine.resume()
    assert engine.policy_version == 1
    assert len(got.token_ids) == 200
    assert got.versions == sorted(got.versions)
    assert set(got.versions) == {0, 1}

    # What the old weights computed is gone: as a cold start at the new version.
    hits = engine.stats().prefix_hit_tokens
    after = await collect(engine, prompt)
    assert engine.stats().prefix_hit_tokens == hits
    expected = expected_logprobs(trained, prompt, after.token_ids)
    assert after.logprobs == pytest.approx(expected, abs=1e-4)
    assert after.versions == [1] * 12

    await engine.swap(directory, 0)
    again = await collect(engine, prompt)
    assert again.token_ids == before.token_ids
    assert again.logprobs == pytest.approx(before.logprobs, abs=1e-4)


async def test_a_broken_checkpoint_leaves_the_old_weights_serving(
    engine: TorchEngine, trained: Path, tmp_path: Path
) -> None:
    expected = await collect(engine, prompt_of(20))
    data = (trained / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(TrainingError, match="cannot be loaded"):
        await engine.swap(tmp_path, 1)
    assert engine.policy_version == 0
    got = await collect(engine, prompt_of(20))
    assert (got.token_ids, got.versions) == (expected.token_ids, [0] * 12)


async def test_logits_that_are_not_finite_end_the_request_with_an_error(
    directory: Path, tmp_path: Path
) -> None:
    broken = make_decoder(tmp_path)
    state = load_file(broken / "model.safetensors")
    state["model.embed_tokens.weight"][7] = 3e38  # finite, and too large for a product
    save_file(state, broken / "model.safetensors")
    engine = build(broken)
    await engine.start()
    with pytest.raises(TrainingError, match="not finite"):
        await collect(engine, [7, 7])
    await until(lambda: engine.stats().num_running == 0)
    await engine.swap(directory, 1)
    assert all(math.isfinite(logprob) for logprob in (await collect(engine, [7, 7])).logprobs)
    await engine.stop()


async def test_length_is_bounded_by_the_model(directory: Path) -> None:
    engine = build(directory, max_model_len=64)
    await engine.start()
    assert engine.max_model_len == 64
    got = await collect(engine, prompt_of(60), max_tokens=50)
    assert len(got.token_ids) == 4
    assert got.last is not None
    assert got.last.finish_reason == "length"
    for prompt, says in (
        (prompt_of(64), "64 tokens does not fit"),
        ([], "0 tokens"),
        ([VOCABULARY], "outside"),
        ([-1], "outside"),
    ):
        with pytest.raises(TrainingError, match=says):
            await collect(engine, prompt)
    await engine.stop()
    with pytest.raises(ConfigError, match="max_model_len = 9999"):
        await build(directory, max_model_len=9999).start()


async def test_stopping_ends_requests_with_an_error(directory: Path) -> None:
    engine = build(directory)
    with pytest.raises(TrainingError, match="not running"):
        await collect(engine, [1])
    await engine.start()
    task = asyncio.create_task(collect(engine, prompt_of(5), max_tokens=500))
    await until(lambda: engine.stats().num_running == 1)
    await engine.stop()
    with pytest.raises(TrainingError, match="stopped"):
        await task
    with pytest.raises(TrainingError, match="not running"):
        await collect(engine, [1])


async def test_an_error_of_one_step_does_not_end_the_engine(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = engine._decoder
    assert decoder is not None

    def fail(_self: Decoder, _segments: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(type(decoder), "forward", fail)
        with pytest.raises(TrainingError, match="out of memory"):
            await collect(engine, prompt_of(5))
    assert len((await collect(engine, prompt_of(5))).token_ids) == 12


async def test_other_architectures_are_served_through_transformers(tmp_path: Path) -> None:
    directory = make_decoder(tmp_path / "gpt2", "gpt2")
    other = make_decoder(tmp_path / "other", "gpt2", seed=5)
    engine = build(directory)
    await engine.start()
    prompt = prompt_of(20)
    got = await asyncio.gather(*[collect(engine, prompt, seed=i) for i in range(3)])
    for each in got:
        expected = expected_logprobs(directory, prompt, each.token_ids)
        assert each.logprobs == pytest.approx(expected, abs=1e-4)
    hits = engine.stats().prefix_hit_tokens
    following = prompt + got[0].token_ids + prompt_of(4, 3)
    turn = await collect(engine, following)
    assert engine.stats().prefix_hit_tokens - hits == 20 + 11
    expected = expected_logprobs(directory, following, turn.token_ids)
    assert turn.logprobs == pytest.approx(expected, abs=1e-4)

    await engine.swap(other, 1)
    turn = await collect(engine, prompt)
    assert turn.versions == [1] * 12
    expected = expected_logprobs(other, prompt, turn.token_ids)
    assert turn.logprobs == pytest.approx(expected, abs=1e-4)
    await engine.stop()
