"""Writes a Hugging Face model as a GGUF file, for llama.cpp and the programs built on it.

Architectures that the engine computes itself, with a byte-level BPE tokenizer. Of llama and
mistral, GGUF interleaves the halves of a head's rows; ``gguf`` undoes that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray
from tokenizers import Tokenizer

GgufType = Literal["F32", "F16", "Q8_0"]
"""How matrices are stored; vectors are always F32."""

_FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
}

_ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MistralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
}

_Q8_0_BLOCK = 32
"""Elements of a row that share a scale in Q8_0."""

Read = Callable[[str], NDArray[np.float32]]
"""Returns a weight by its Hugging Face name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model to write."""

    directory: Path
    """Holds ``config.json``, ``tokenizer.json`` and ``tokenizer_config.json``."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each weight by its Hugging Face name."""
    read: Read
    """Called once for each weight, in order."""
    rope_factors: tuple[float, ...] | None
    """What the rotary frequencies are divided by, one per pair; None for plain ones."""


def write_gguf(source: Source, target: Path, kind: GgufType) -> None:
    """Write a GGUF file.

    Needs memory for one weight at a time.

    Raises: ValueError: the architecture or the tokenizer cannot be written; says which.
    """
    config = _json(source.directory / "config.json")
    name = (config.get("architectures") or ["none"])[0]
    if name not in _ARCHITECTURES:
        raise ValueError(f"{name} is not written as GGUF; {', '.join(_ARCHITECTURES)} are")
    architecture = _ARCHITECTURES[name]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    try:
        _add_sizes(writer, config, source.directory.name)
        writer.add_file_type(_FILE_TYPES[kind])
        _add_tokenizer(writer, source.directory, int(config["vocab_size"]))
        names = _names(source.shapes, config, architecture)
        for hf_name, own_name in names.items():
            shape = source.shapes[hf_name]
            stored = _stored_as(shape, kind)
            size = gguf.quant_shape_to_byte_shape(shape, stored)
            num_bytes = int(np.prod(size, dtype=np.int64))
            writer.add_tensor_info(own_name, shape, np.dtype(np.float32), num_bytes, stored)
        if source.rope_factors is not None:
            factors = np.array(source.rope_factors, np.float32)
            f32 = GGMLQuantizationType.F32
            writer.add_tensor_info(
                "rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes, f32
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for hf_name in names:
            values = _reordered(source.read(hf_name), hf_name, config, architecture)
            writer.write_tensor_data(quantize(values, _stored_as(values.shape, kind)))
        if source.rope_factors is not None:
            writer.write_tensor_data(factors)
    finally:
        writer.close()


def _add_sizes(writer: Any, config: Mapping[str, Any], name: str) -> None:
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    writer.add_name(name)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))


def _names(
    shapes: Iterable[str], config: Mapping[str, Any], architecture: gguf.MODEL_ARCH
) -> dict[str, str]:
    """Return GGUF's name of each weight; a head that is the embedding's is not written twice."""
    known = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    names: dict[str, str] = {}
    for name in shapes:
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        own = known.get_name(name, try_suffixes=(".weight", ".bias"))
        if own is None:
            raise ValueError(f"GGUF has no name for the weight {name}")
        names[name] = own
    return names


def _stored_as(shape: tuple[int, ...], kind: GgufType) -> GGMLQuantizationType:
    if len(shape) < 2 or kind == "F32":
        return GGMLQuantizationType.F32
    if kind == "Q8_0" and shape[-1] % _Q8_0_BLOCK == 0:
        return GGMLQuantizationType.Q8_0
    return GGMLQuantizationType.F16


def _reordered(
    values: NDArray[np.float32], name: str, config: Mapping[str, Any], architecture: gguf.MODEL_ARCH
) -> NDArray[np.float32]:
    """Return a weight in GGUF's order of rows."""
    heads = config["num_attention_heads"]
    per_head = {
        ".q_proj.": heads,
        ".k_proj.": config.get("num_key_value_heads") or heads,
    }
    found = next((number for part, number in per_head.items() if part in name), None)
    if found is None or architecture != gguf.MODEL_ARCH.LLAMA:
        return values
    halves = values.reshape(found, 2, values.shape[0] // found // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


# -- the tokenizer ----------------------------------------------------------------------------


def _add_tokenizer(writer: Any, directory: Path, vocab_size: int) -> None:
    tokenizer = _json(directory / "tokenizer.json")
    config, settings = _json(directory / "config.json"), _settings(directory)
    model = tokenizer["model"]
    decoder = (tokenizer.get("decoder") or {}).get("type")
    if model.get("type") != "BPE" or decoder != "ByteLevel" or not model.get("merges"):
        raise ValueError("its tokenizer is no byte-level BPE, which alone is written as GGUF")
    tokens = [f"[PAD{index}]" for index in range(vocab_size)]
    kinds = [TokenType.UNUSED] * vocab_size
    for text, index in model["vocab"].items():
        tokens[index], kinds[index] = text, TokenType.NORMAL
    for added in tokenizer.get("added_tokens") or ():
        special = added["special"]
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = TokenType.CONTROL if special else TokenType.USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer(tokenizer.get("pre_tokenizer") or {}))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    ids = {text: index for index, text in enumerate(tokens)}
    adds = {
        "bos_token": writer.add_bos_token_id,
        "eos_token": writer.add_eos_token_id,
        "unk_token": writer.add_unk_token_id,
        "pad_token": writer.add_pad_token_id,
    }
    special = {key: _special_id(key, settings, config, ids) for key in adds}
    for key, add in adds.items():
        if special[key] is not None:
            add(special[key])
    first = Tokenizer.from_file(str(directory / "tokenizer.json")).encode("a").ids[:1]
    writer.add_add_bos_token(first == [special["bos_token"]])
    writer.add_add_space_prefix(False)
    if template := chat_template(directory):
        writer.add_chat_template(template)


def _special_id(
    key: str, settings: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, int]
) -> int | None:
    """Return a special token's id, such as ``eos_token``'s; None when the model has none."""
    token = settings.get(key)
    text = token["content"] if isinstance(token, dict) else token
    named = ids.get(text) if text else None
    known = config.get(f"{key}_id")  # a list where several end a reply
    return named if named is not None else known[0] if isinstance(known, list) else known


def _pre_tokenizer(pre: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the rule that splits text before the merges.

    Raises: ValueError: it is none of those known here.
    """
    parts = pre.get("pretokenizers") or [pre]
    kinds = [part.get("type") for part in parts]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        pattern = (parts[0].get("pattern") or {}).get("Regex", "")
        if r"\p{N}{1,3}" in pattern:
            return "llama-bpe"
        if r"\p{N}" in pattern:
            return "qwen2"
    raise ValueError(f"its tokenizer splits text in a way that GGUF has no name for here: {kinds}")


def chat_template(directory: Path) -> str:
    """Return a model's chat template; empty when it has none."""
    file = directory / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    return str(_settings(directory).get("chat_template") or "")


def _settings(directory: Path) -> dict[str, Any]:
    file = directory / "tokenizer_config.json"
    return _json(file) if file.exists() else {}


def _json(file: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return value
