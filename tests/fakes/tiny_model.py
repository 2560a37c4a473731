"""A tiny random Llama in Hugging Face layout, made in code in milliseconds."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 61


def make_byte_model(directory: Path, *, context: int = 4096) -> Path:
    """Write a random Llama whose chat template and tokens are bytes; return its directory."""
    import torch
    from fakes.engine import byte_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(byte_tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    byte_tokenizer().save_pretrained(directory)
    return directory


def make_tiny_model(directory: Path, *, seed: int = 0) -> Path:
    """Write a random two-layer Llama with tied embeddings and a tokenizer; return its directory."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(directory / "tokenizer.json"))
    return directory
