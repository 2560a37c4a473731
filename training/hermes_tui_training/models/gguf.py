"""Converts a GGUF file of the llama architecture into a Hugging Face directory in float32.

Needs gguf, numpy, tokenizers and safetensors, but no torch: set-up runs it first. The weights equal
those of transformers' own GGUF loader. The tokenizer does not: it splits numbers into digits, as
llama.cpp does for SmolLM (https://github.com/ggml-org/llama.cpp/pull/8609).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Weights = dict[str, NDArray[np.float32]]

_CONTROL_TOKEN = 3
"""GGUF's token type of control tokens, such as ``<|im_start|>``."""

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(source: Path, target: Path, progress: Callable[[float], None]) -> None:
    """Write configuration, weights and tokenizer of a GGUF file into an existing directory.

    Args:
        source: a llama-architecture GGUF file with a byte-level BPE tokenizer.
        target: directory for the Hugging Face files.
        progress: called with the share of tensors that are converted, in [0, 1].
    Raises: ValueError: the file has another architecture or tokenizer, or cannot be read.
    """
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise ValueError(f"{source.name} is of architecture {fields.get('general.architecture')}")
    if fields.get("tokenizer.ggml.model") != "gpt2":
        raise ValueError(f"{source.name} has no byte-level BPE tokenizer")
    weights = _weights(reader, fields, progress)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    _write_json(target / "config.json", _config(fields, tied="lm_head.weight" not in weights))
    special = _special_ids(fields)
    _write_json(target / "generation_config.json", special)
    _tokenizer(fields).save(str(target / "tokenizer.json"))
    _write_json(target / "tokenizer_config.json", _tokenizer_config(fields, special))


def _weights(reader: Any, fields: dict[str, Any], progress: Callable[[float], None]) -> Weights:
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights: Weights = {}
    for index, tensor in enumerate(reader.tensors):
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if tensor.name in _TOP_LEVEL:
            name = _TOP_LEVEL[tensor.name]
        else:
            _, layer, kind, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{_PER_LAYER[kind]}.weight"
            if kind in heads:
                values = _unpermute(values, heads[kind])
        weights[name] = np.ascontiguousarray(values)
        progress((index + 1) / len(reader.tensors))
    return weights


def _unpermute(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo GGUF's order of rows, which interleaves the halves of a head."""
    rows, columns = values.shape
    return (
        values.reshape(num_heads, rows // num_heads // 2, 2, columns)
        .swapaxes(1, 2)
        .reshape(rows, columns)
    )


def _config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    theta = float(fields["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "dtype": "float32",
        **_special_ids(fields),
    }


def _special_ids(fields: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    return tokenizer


def _tokenizer_config(fields: dict[str, Any], special: dict[str, int]) -> dict[str, Any]:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[special["bos_token_id"]],
        "eos_token": tokens[special["eos_token_id"]],
        "pad_token": tokens[special["pad_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
