"""Reading checkpoints: full ones, adapters as peft writes them, and broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.tiny_decoders import make_decoder
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.engine.decoder import Chunk, LowRank
from hermes_tui_training.engine.linear import Linear
from hermes_tui_training.engine.llama import LlamaDecoder, LlamaShape
from hermes_tui_training.engine.transformers_decoder import TransformersDecoder
from hermes_tui_training.engine.weight_loader import read_checkpoint

# peft 0.21 asks transformers 5.24 for an attribute under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_decoder(tmp_path / "base")


def save_adapter(base: Path, target: Path, **changes: Any) -> Any:
    """Write a random adapter; return peft's own merged model."""
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", **changes)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(target)
    return model.merge_and_unload()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 3}},
        {"modules_to_save": ["norm"]},
    ],
)
def test_an_adapter_is_merged_as_peft_merges_it(
    base: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    merged = save_adapter(base, tmp_path / "adapter", **changes).state_dict()
    state = read_checkpoint(base, tmp_path / "adapter")
    changed = read_checkpoint(base, base)
    assert state.keys() == changed.keys()
    for name, weight in state.items():
        torch.testing.assert_close(weight, merged[name], atol=1e-6, rtol=1e-6)
    query = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(state[query], changed[query])


def logits(decoder: LlamaDecoder) -> torch.Tensor:
    return decoder.forward([Chunk(token_ids=[1, 2, 3], cache=decoder.new_cache())])


@pytest.mark.filterwarnings("ignore:.*tie:UserWarning")  # the embedding alone is adapted
@pytest.mark.parametrize("changes", [{}, {"modules_to_save": ["embed_tokens"]}])
def test_weights_kept_from_version_to_version_are_those_of_a_cold_start(
    base: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    shape = LlamaShape.from_config(json.loads((base / "config.json").read_text()))
    assert shape is not None
    make_decoder(tmp_path / "full", seed=3)
    save_adapter(base, tmp_path / "plain")
    save_adapter(base, tmp_path / "adapter", **changes)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({k: v + 0.01 for k, v in load_file(file).items()}, file)

    def cold(checkpoint: Path) -> LlamaDecoder:
        state = read_checkpoint(base, checkpoint)
        return LlamaDecoder(shape, state, device=torch.device("cpu"), dtype=torch.float32)

    decoder = cold(base)
    seen = []
    for name in ("plain", "adapter", "plain", "full", "adapter", "plain"):
        decoder.prepare(read_checkpoint(base, tmp_path / name))()
        assert torch.equal(logits(decoder), logits(cold(tmp_path / name))), name
        seen.append(logits(decoder))
    assert not torch.equal(seen[0], seen[1])


def test_shards_are_read_as_one(base: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(base)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    whole, sharded = read_checkpoint(base, base), read_checkpoint(base, tmp_path / "shards")
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def _truncate(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _remove(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def _change(directory: Path, name: str, weight: torch.Tensor | None) -> None:
    state = load_file(directory / "model.safetensors")
    if weight is None:
        del state[name]
    else:
        state[name] = weight
    save_file(state, directory / "model.safetensors")


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("breaking", "says"),
    [
        (_truncate, "cannot be loaded"),
        (_remove, "does not exist"),
        (lambda d: _change(d, NORM, None), f"{NORM} is missing"),
        (lambda d: _change(d, NORM, torch.ones(5)), r"\[5\].*\[32\]"),
        (lambda d: _change(d, "model.extra", torch.ones(5)), "missing in the base"),
        (lambda d: _change(d, NORM, torch.full((32,), torch.nan)), "not finite"),
    ],
)
def test_a_broken_checkpoint_is_refused_in_a_sentence(
    base: Path, tmp_path: Path, breaking: Any, says: str
) -> None:
    broken = make_decoder(tmp_path / "broken", seed=1)
    breaking(broken)
    with pytest.raises(TrainingError, match=says):
        read_checkpoint(base, broken)


def _without(directory: Path, part: str) -> None:
    file = directory / "adapter_model.safetensors"
    state = load_file(file)
    save_file({k: v for k, v in state.items() if part not in k}, file)


def _configured(directory: Path, **changes: Any) -> None:
    file = directory / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    "breaking",
    [
        lambda d: (d / "adapter_model.safetensors").unlink(),
        lambda d: (d / "adapter_config.json").write_text("{"),
        lambda d: _without(d, "q_proj.lora_B"),
        lambda d: _configured(d, use_dora=True),
        lambda d: _configured(d, peft_type="IA3"),
    ],
)
def test_a_broken_adapter_is_refused(base: Path, tmp_path: Path, breaking: Any) -> None:
    save_adapter(base, tmp_path / "adapter")
    breaking(tmp_path / "adapter")
    with pytest.raises(TrainingError, match="cannot be loaded"):
        read_checkpoint(base, tmp_path / "adapter")


def test_what_little_an_adapter_has_learned_survives_in_bfloat16() -> None:
    """Merged and rounded, much of it is lost; beside the weights it is all there."""
    torch.manual_seed(1)
    weight = (torch.randn(48, 64) * 0.2).bfloat16()
    adapter = LowRank(up=torch.randn(48, 4) * 1e-3, down=torch.randn(4, 64) * 0.1)
    x = torch.randn(4096, 64).bfloat16()
    learned = x.float() @ adapter.down.T @ adapter.up.T

    def share_left(linear: Linear) -> float:
        """Return how much of what was learned is there; the rest is rounding noise."""
        found = linear(x).float() - Linear(weight)(x).float()
        return float((found * learned).sum() / (learned * learned).sum())

    assert share_left(Linear(weight, adapter=adapter)) == pytest.approx(1.0, abs=0.1)
    assert share_left(Linear(adapter.merged_into(weight).bfloat16())) < 0.7
    bias = torch.randn(48).bfloat16()
    beside = Linear(weight, bias, adapter)(x).float()
    exact = x.float() @ adapter.merged_into(weight).T + bias.float()
    torch.testing.assert_close(beside, exact, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}])
def test_in_bfloat16_our_pass_adds_what_the_adapter_says(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    base = make_decoder(tmp_path / "base", **changes)
    save_adapter(base, tmp_path / "adapter", rank_pattern={"q_proj": 2})
    shape = LlamaShape.from_config(json.loads((base / "config.json").read_text()))
    assert shape is not None
    state = read_checkpoint(base, tmp_path / "adapter")
    exact, beside = (
        logits(LlamaDecoder(shape, state, device=torch.device("cpu"), dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    )
    plain = LlamaDecoder(
        shape, read_checkpoint(base, base), device=torch.device("cpu"), dtype=torch.float32
    )
    assert (beside - exact).norm() < 0.1 * (exact - logits(plain)).norm()


def test_adapters_come_and_go_beside_weights_of_transformers_own_pass(tmp_path: Path) -> None:
    base = make_decoder(tmp_path / "base", rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    save_adapter(base, tmp_path / "adapter")
    decoder = TransformersDecoder(base, device=torch.device("cpu"), dtype=torch.bfloat16)
    seen = []
    for checkpoint in (base, tmp_path / "adapter", base, tmp_path / "adapter"):
        decoder.prepare(read_checkpoint(base, checkpoint))()
        chunk = Chunk(token_ids=[1, 2, 3], cache=decoder.new_cache())
        seen.append(decoder.forward([chunk]))
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0], seen[1])
