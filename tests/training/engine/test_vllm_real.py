"""The vLLM engine on a real vLLM; `make test-vllm` installs it. Starting one takes minutes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from hermes_tui_common.errors import TrainingError
from hermes_tui_common.serving import ServeConfig
from hermes_tui_training.api.config import ModelConfig, TrainingConfig, VllmAddress, VllmRole
from hermes_tui_training.engine import EngineOutput, SamplingParams
from hermes_tui_training.engine.vllm_engine import VllmEngine
from hermes_tui_training.models.prepare import EMBEDDED_MODEL, prepare_model
from hermes_tui_training.vllm_server.__main__ import Server

PYTHON = os.environ.get("HERMES_TUI_TEST_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.embedded,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="needs vLLM: run `make test-vllm`"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft 0.21
]
TEMPERATURE = 0.7


def make_role(root: Path) -> VllmRole:
    return VllmRole(
        serve=ServeConfig(name="vllm"),
        model=ModelConfig(path=EMBEDDED_MODEL, dtype="float32"),
        training=TrainingConfig.model_validate({"engine": {"max_model_len": 1024}}),
        python=Path(PYTHON),
        socket=root / "vllm.sock",
    )


@asynccontextmanager
async def running(role: VllmRole) -> AsyncIterator[VllmEngine]:
    async with AsyncExitStack() as stack:
        server = Server(role)
        stack.push_async_callback(server.stop)
        await server.start()
        engine = VllmEngine(role.training, model_dir(), VllmAddress(socket=role.socket))
        stack.push_async_callback(engine.stop)
        await engine.start()
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    async with running(make_role(tmp_path_factory.mktemp("vllm"))) as engine:
        yield engine


def make_adapter(root: Path) -> Path:
    """Make a checkpoint of an adapter that changes every layer a little."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(model_dir(), dtype=torch.float32)
    adapted = get_peft_model(
        model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0)
    )
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=2e-3)
    checkpoint = root / "policy_version_1"
    adapted.save_pretrained(checkpoint)
    return checkpoint


def model_dir() -> Path:
    return prepare_model(EMBEDDED_MODEL, lambda _: None)


def prompt() -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(model_dir())
    messages = [{"role": "user", "content": "Tell me a story about the sea."}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])


async def sample(engine: VllmEngine, **how: Any) -> list[EngineOutput]:
    sampling = SamplingParams(**{"max_tokens": 24, "temperature": TEMPERATURE, "seed": 5, **how})
    return [output async for output in engine.generate(prompt(), sampling)]


def versions(found: list[EngineOutput]) -> list[int]:
    return [version for output in found for version in output.policy_versions]


def ids(found: list[EngineOutput]) -> list[int]:
    return [token for output in found for token in output.token_ids]


async def test_logprobs_are_those_that_the_learner_computes(served: VllmEngine) -> None:
    found = await sample(served, top_logprobs=3)
    sampled, asked = ids(found), prompt()
    model = AutoModelForCausalLM.from_pretrained(model_dir(), dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([asked + sampled])).logits[0, len(asked) - 1 : -1]
    expected = (logits / TEMPERATURE).log_softmax(-1).gather(1, torch.tensor(sampled)[:, None])
    told = [logprob for output in found for logprob in output.logprobs]
    assert told == pytest.approx(expected[:, 0].tolist(), abs=1e-3)
    assert all(len(top) == 3 for output in found for top in output.top_logprobs)


async def test_a_grammar_holds(served: VllmEngine) -> None:
    found = await sample(served, grammar='start: "yes" | "no"', stop_token_ids=(2,))
    text = AutoTokenizer.from_pretrained(model_dir()).decode(ids(found), skip_special_tokens=True)
    assert text in ("yes", "no")


async def test_an_adapter_serves_new_replies_and_leaves_those_in_flight(
    served: VllmEngine, tmp_path: Path
) -> None:
    checkpoint = await asyncio.to_thread(make_adapter, tmp_path)
    before = await sample(served, temperature=0.0)
    in_flight = served.generate(prompt(), SamplingParams(max_tokens=100, temperature=0.0))
    begun = await anext(in_flight)
    await served.swap(checkpoint, 1)
    after = await sample(served, temperature=0.0)
    assert versions(after) == [1] * len(ids(after))
    assert after[0].logprobs[0] != pytest.approx(before[0].logprobs[0], abs=1e-3)
    assert set(versions([begun, *[output async for output in in_flight]])) == {0}


async def test_a_server_that_was_killed_and_started_again_gets_its_adapter_back(
    tmp_path: Path,
) -> None:
    checkpoint = await asyncio.to_thread(make_adapter, tmp_path)
    role = make_role(tmp_path)
    async with running(role) as engine:
        await engine.swap(checkpoint, 1)
        before = await sample(engine, temperature=0.0)
        for process in psutil.Process().children(recursive=True):
            if str(role.python.parent.parent) in " ".join(process.cmdline()):
                process.kill()
        with pytest.raises(TrainingError, match="vLLM"):
            await sample(engine)
        again = Server(role)
        try:
            await again.start()
            after = await sample(engine, temperature=0.0)
        finally:
            await again.stop()
        assert (ids(after), versions(after)) == (ids(before), [1] * len(ids(before)))
