"""Tokenizers of single bytes for the model families that ``renderers`` knows."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

from fakes.engine import byte_tokenizer
from renderers import create_renderer
from renderers.configs import config_from_name

FAMILIES = (
    "deepseek-r1",
    "deepseek-v3",
    "deepseek-v4",
    "gemma4",
    "glm-4.5",
    "glm-5",
    "hy3",
    "inkling",
    "kimi-k2",
    "kimi-k2.5",
    "laguna-s-2.1",
    "laguna-xs.2",
    "llama-3",
    "minimax-m2",
    "nemotron-3",
    "prime-qwen3",
    "qwen3",
    "qwen3-vl",
    "qwen3.5",
    "qwen3.6",
    "qwen3.8",
)
"""All but the siblings of some of these, and gpt-oss, which downloads its vocabulary."""

_MAX_TOKENS = 60


@cache
def family_tokenizer(name: str) -> tuple[Any, tuple[str, ...]]:
    """Return a tokenizer with the tokens that a family's renderer asks for, and these tokens.

    The renderer says by its errors which token it lacks.
    """
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.unk_token = None
    added: list[str] = []
    config = config_from_name(name)
    assert config is not None
    for _ in range(_MAX_TOKENS):
        try:
            create_renderer(tokenizer, config)
        except Exception as error:  # each renderer checks in its own way
            complaint = str(error)
        else:
            return tokenizer, tuple(added)
        quoted = re.search(r"'([^']+)'|\"([^\"]+)\"|(<[^ ]+>)", complaint)
        token = next(filter(None, quoted.groups())) if quoted else ""
        assert token, complaint
        assert token not in added, complaint
        added.append(token)
        tokenizer.add_tokens([token])
    raise AssertionError(f"{name} asks for more than {_MAX_TOKENS} tokens")
