"""Tiny random models of several architectures, made in code, with a byte tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BYTES = 256
EOS = 256
VOCABULARY = 261
"""256 bytes and a few special tokens, as in a byte-level model."""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # large enough for distributions that are far from uniform
    "bos_token_id": EOS,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "tie_word_embeddings": True,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def make_decoder(directory: Path, kind: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Write a random model of ``kind`` (llama, qwen2, qwen3, gpt2) with a tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(_config(kind, changes))
    if kind == "qwen2":  # transformers starts biases at zero, where they would prove nothing
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(directory)
    _byte_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def _config(kind: str, changes: dict[str, Any]) -> Any:
    import transformers

    if kind == "gpt2":
        return transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=512, **changes
        )
    classes = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }
    special = {"head_dim": 16} if kind == "qwen3" else {}
    return classes[kind](
        **{**_COMMON, "tie_word_embeddings": kind != "qwen2", **special, **changes}
    )


def _byte_tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    # In the order of the bytes they stand for, so that an id below 256 is its byte.
    by_byte = sorted(letters, key=lambda letter: _byte_of(letter))
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(by_byte)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(f"<|special_{i}|>", special=True) for i in range(VOCABULARY - BYTES)]
    )
    return tokenizer


def _byte_of(letter: str) -> int:
    """Return the byte that a letter of the byte-level alphabet stands for."""
    code = ord(letter)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return others[code - 256] if code >= 256 else code
