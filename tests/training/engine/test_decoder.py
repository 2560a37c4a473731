"""Our forward passes against transformers', position by position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.tiny_decoders import LLAMA3_ROPE, VOCABULARY, make_decoder
from transformers import AutoModelForCausalLM

from hermes_tui_training.engine.decoder import Chunk, Decoder
from hermes_tui_training.engine.linear import Linear
from hermes_tui_training.engine.llama import LlamaDecoder, LlamaShape
from hermes_tui_training.engine.transformers_decoder import TransformersDecoder
from hermes_tui_training.engine.weight_loader import read_checkpoint

CPU = torch.device("cpu")


def load(directory: Path) -> Decoder:
    config = json.loads((directory / "config.json").read_text())
    shape = LlamaShape.from_config(config)
    if shape is None:
        return TransformersDecoder(directory, device=CPU, dtype=torch.float32)
    state = read_checkpoint(directory, directory)
    return LlamaDecoder(shape, state, device=CPU, dtype=torch.float32)


def reference(directory: Path, token_ids: list[int]) -> torch.Tensor:
    """Return transformers' logits after every token, [T, V]."""
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(VOCABULARY, (count,), generator=torch.manual_seed(seed)).tolist()


@pytest.mark.parametrize(
    ("kind", "changes", "own"),
    [
        ("llama", {}, True),
        ("llama", {"rope_parameters": LLAMA3_ROPE}, True),
        ("llama", {"attention_bias": True, "tie_word_embeddings": False}, True),
        ("qwen2", {}, True),
        ("qwen3", {}, True),
        ("gpt2", {}, False),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, False),
    ],
)
def test_chunks_and_single_tokens_of_several_sequences_are_as_transformers(
    tmp_path: Path, kind: str, changes: dict[str, Any], own: bool
) -> None:
    directory = make_decoder(tmp_path, kind, **changes)
    decoder = load(directory)
    assert isinstance(decoder, LlamaDecoder) == own
    first, second = tokens(300, 1), tokens(40, 2)
    expected_first = reference(directory, first)
    expected_second = reference(directory, second)
    one, two = decoder.new_cache(), decoder.new_cache()

    logits = decoder.forward(
        [Chunk(token_ids=first[:270], cache=one), Chunk(token_ids=second[:7], cache=two)]
    )
    torch.testing.assert_close(logits[0], expected_first[269], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[1], expected_second[6], atol=1e-4, rtol=1e-4)
    logits = decoder.forward(  # a chunk behind a cache, beside one token of another sequence
        [Chunk(token_ids=second[7:8], cache=two), Chunk(token_ids=first[270:299], cache=one)]
    )
    torch.testing.assert_close(logits[0], expected_second[7], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[1], expected_first[298], atol=1e-4, rtol=1e-4)
    logits = decoder.forward([Chunk(token_ids=first[299:], cache=one)])
    torch.testing.assert_close(logits[0], expected_first[299], atol=1e-4, rtol=1e-4)
    assert (one.length, two.length) == (300, 8)


def test_a_forked_cache_goes_on_alone(tmp_path: Path) -> None:
    directory = make_decoder(tmp_path)
    decoder = load(directory)
    common, ending = tokens(50, 3), tokens(20, 4)
    cache = decoder.new_cache()
    decoder.forward([Chunk(token_ids=common, cache=cache)])
    fork = cache.fork(30)
    assert fork is not None
    logits = decoder.forward([Chunk(token_ids=ending, cache=fork)])
    expected = reference(directory, common[:30] + ending)[-1]
    torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)
    logits = decoder.forward([Chunk(token_ids=ending, cache=cache)])
    expected = reference(directory, common + ending)[-1]
    torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_models_of_another_shape_are_not_ours() -> None:
    llama = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 7,
        "max_position_embeddings": 64,
    }
    assert LlamaShape.from_config(llama) is not None
    for change in (
        {"architectures": ["MixtralForCausalLM"]},
        {"hidden_act": "gelu"},
        {"sliding_window": 16},
        {"layer_types": ["sliding_attention"]},
        {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        {"partial_rotary_factor": 0.5},
        {"quantization_config": {"bits": 4}},
    ):
        assert LlamaShape.from_config({**llama, **change}) is None, change


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_is_the_plain_product(rows: int, has_bias: bool) -> None:
    generator = torch.manual_seed(5)
    weight = torch.randn(70, 50, generator=generator)
    bias = torch.randn(70, generator=generator) if has_bias else None
    x = torch.randn(rows, 50, generator=generator)
    expected = x @ weight.T + (0 if bias is None else bias)
    torch.testing.assert_close(Linear(weight, bias)(x), expected, atol=1e-4, rtol=1e-4)
