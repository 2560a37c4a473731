"""The vLLM engine as its callers see it, against a server that answers as vLLM does."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.tiny_model import make_tiny_model
from fakes.vllm import VOCABULARY, FakeVllm, serving
from safetensors.torch import save_file

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.api.config import TrainingConfig, VllmAddress
from hermes_tui_training.engine import EngineOutput, SamplingParams
from hermes_tui_training.engine.vllm_engine import VllmEngine

PROMPT = [5, 6, 7]
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def started(fake: FakeVllm, model_dir: Path) -> AsyncIterator[VllmEngine]:
    async with serving(fake) as url:
        engine = VllmEngine(TrainingConfig(), model_dir, VllmAddress(url=url))
        await engine.start()
        try:
            yield engine
        finally:
            fake.gate.set()
            await engine.stop()


async def outputs(engine: VllmEngine, prompt: list[int] = PROMPT, **how: Any) -> list[EngineOutput]:
    sampling = SamplingParams(**{"max_tokens": 6, **how})
    return [output async for output in engine.generate(prompt, sampling)]


def ids(found: list[EngineOutput]) -> list[int]:
    return [token for output in found for token in output.token_ids]


def versions(found: list[EngineOutput]) -> list[int]:
    return [version for output in found for version in output.policy_versions]


def counted(start: int, count: int, shift: int = 0) -> list[int]:
    return [(PROMPT[0] + start + index + shift) % VOCABULARY for index in range(count)]


def adapter(directory: Path, _: Path, version: int) -> Path:
    """Make a checkpoint of an adapter that changes nothing."""
    path = directory / f"policy_version_{version}"
    path.mkdir()
    rank, size = 2, 32
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    save_file(
        {
            f"{module}.lora_A.weight": torch.ones(rank, size),
            f"{module}.lora_B.weight": torch.zeros(size, rank),
        },
        path / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def full(directory: Path, model_dir: Path, version: int) -> Path:
    path = directory / f"policy_version_{version}"
    shutil.copytree(model_dir, path)
    return path


async def until(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


async def test_tokens_come_one_by_one_with_logprob_version_and_alternatives(
    model_dir: Path,
) -> None:
    fake = FakeVllm()
    async with started(fake, model_dir) as engine:
        found = await outputs(engine, top_logprobs=2, temperature=0.7, seed=3)
        assert ids(found) == counted(3, 6)
        assert versions(found) == [0] * 6
        assert [output.logprobs for output in found] == [(-0.5,)] * 6
        assert found[0].top_logprobs == (((8, -0.5), (0, -1.0)),)
        assert [output.finish_reason for output in found] == [None] * 5 + ["length"]
        assert (engine.max_model_len, engine.policy_version) == (64, 0)
    (asked,) = fake.requests
    assert asked["prompt"] == PROMPT
    assert (asked["temperature"], asked["seed"], asked["logprobs"]) == (0.7, 3, 2)


async def test_a_stop_token_is_the_last_one_and_a_stop_text_cuts_there(model_dir: Path) -> None:
    fake = FakeVllm()
    async with started(fake, model_dir) as engine:
        found = await outputs(engine, stop_token_ids=(10,))
        assert (ids(found), found[-1].finish_reason) == ([8, 9, 10], "stop")
        found = await outputs(engine, stop=("w9",))
        assert (ids(found), found[-1].stop_text) == ([8, 9], "w9")


async def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(model_dir: Path) -> None:
    async with started(FakeVllm(), model_dir) as engine:
        with pytest.raises(TrainingError, match="64 tokens does not fit"):
            await outputs(engine, [1] * 64)
        with pytest.raises(TrainingError, match="outside 0 to 60"):
            await outputs(engine, [61])


async def test_closing_a_completion_ends_it_at_the_server(model_dir: Path) -> None:
    fake = FakeVllm(hold_at=2)
    async with started(fake, model_dir) as engine:
        async with aclosing(engine.generate(PROMPT, SamplingParams(max_tokens=6))) as stream:  # type: ignore[type-var]
            assert (await anext(stream)).token_ids == (8,)
        await until(lambda: fake.num_hung_up == 1)
        assert engine.stats().num_running == 0


async def test_a_reply_ends_with_the_adapter_that_it_began_with(
    model_dir: Path, tmp_path: Path
) -> None:
    fake = FakeVllm(hold_at=2)
    async with started(fake, model_dir) as engine:
        first = asyncio.create_task(outputs(engine))
        await until(lambda: len(fake.requests) == 1)
        await engine.swap(adapter(tmp_path, model_dir, 7), 7)
        assert engine.policy_version == 7
        second = asyncio.create_task(outputs(engine))
        await until(lambda: len(fake.requests) == 2)
        await engine.swap(adapter(tmp_path, model_dir, 8), 8)
        assert set(fake.adapters) == {"policy-7", "policy-8"}  # the second one still needs its own
        fake.gate.set()
        assert (ids(await first), versions(await first)) == (counted(3, 6), [0] * 6)
        assert (ids(await second), versions(await second)) == (counted(3, 6, shift=7), [7] * 6)
        await engine.swap(adapter(tmp_path, model_dir, 9), 9)
        assert set(fake.adapters) == {"policy-9"}


async def test_full_weights_are_exchanged_between_two_tokens(
    model_dir: Path, tmp_path: Path
) -> None:
    fake = FakeVllm(hold_at=2)
    async with started(fake, model_dir) as engine:
        reply = asyncio.create_task(outputs(engine))
        await until(lambda: len(fake.requests) == 1 and engine.stats().tokens_per_s == 2 / 5)
        fake.hold_at = 10_000
        await engine.swap(full(tmp_path, model_dir, 7), 7)
        found = await reply
        assert versions(found) == [0, 0, 7, 7, 7, 7]
        assert ids(found) == counted(3, 2) + counted(5, 4, shift=7)
    again = fake.requests[1]
    assert (again["prompt"], again["max_tokens"]) == ([*PROMPT, 8, 9], 4)
    assert fake.num_cache_resets == 1


async def test_broken_weights_leave_the_old_version_serving(
    model_dir: Path, tmp_path: Path
) -> None:
    fake = FakeVllm()
    async with started(fake, model_dir) as engine:
        broken = adapter(tmp_path, model_dir, 1)
        (broken / "adapter_model.safetensors").write_bytes(b"nothing")
        with pytest.raises(TrainingError, match="cannot be loaded"):
            await engine.swap(broken, 1)
        fake.refuse_weights = True
        with pytest.raises(TrainingError, match="no such adapter"):
            await engine.swap(adapter(tmp_path, model_dir, 2), 2)
        with pytest.raises(TrainingError, match="weights do not fit"):
            await engine.swap(full(tmp_path, model_dir, 3), 3)
        assert fake.reloaded == [str(tmp_path / "policy_version_3"), str(model_dir)]
        assert engine.policy_version == 0
        assert versions(await outputs(engine)) == [0] * 6


@pytest.mark.parametrize("kind", [adapter, full])
async def test_a_server_that_was_started_again_gets_its_weights_back(
    kind: Any, model_dir: Path, tmp_path: Path
) -> None:
    fake = FakeVllm()
    async with started(fake, model_dir) as engine:
        await engine.swap(kind(tmp_path, model_dir, 7), 7)
        fake.restart("base-2")
        found = await asyncio.gather(*(outputs(engine) for _ in range(3)))
        assert [ids(one) for one in found] == [counted(3, 6, shift=7)] * 3
        assert [versions(one) for one in found] == [[7] * 6] * 3
        fake.restart("base-3")
        await engine.swap(kind(tmp_path, model_dir, 8), 8)
        assert ids(await outputs(engine)) == counted(3, 6, shift=8)


async def test_a_stream_that_breaks_off_fails_its_completion_alone(model_dir: Path) -> None:
    fake = FakeVllm(break_off_at=2)
    async with started(fake, model_dir) as engine:
        with pytest.raises(TrainingError, match="without a reason"):
            await outputs(engine)
        fake.break_off_at = 10_000
        assert ids(await outputs(engine)) == counted(3, 6)


async def test_pausing_holds_new_replies_and_the_load_is_shown(model_dir: Path) -> None:
    fake = FakeVllm()
    async with started(fake, model_dir) as engine:
        await engine.pause()
        reply = asyncio.create_task(outputs(engine))
        await until(lambda: engine.stats().cached_tokens == 400)
        assert engine.stats().paused
        assert not fake.requests
        await engine.resume()
        assert ids(await reply) == counted(3, 6)
        assert (engine.stats().prefix_hit_tokens, engine.stats().prompt_tokens) == (30, 50)


async def test_stopping_ends_what_is_in_flight_with_an_error(model_dir: Path) -> None:
    fake = FakeVllm(hold_at=2)
    async with started(fake, model_dir) as engine:
        reply = asyncio.create_task(outputs(engine))
        await until(lambda: len(fake.requests) == 1)
        await engine.stop()
        with pytest.raises(TrainingError, match="the engine was stopped"):
            await reply
