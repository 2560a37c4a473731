"""The embedded model itself: converted, tokenized and sampled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hermes_tui_training.api.config import ModelConfig, TrainingConfig
from hermes_tui_training.engine import SamplingParams, create_engine
from hermes_tui_training.models.prepare import EMBEDDED_MODEL, prepare_model

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(300)]

EDGE_STRINGS = [
    "",
    " ",
    "x  5",
    "\n\n5",
    "    12 apples",
    "3.14159",
    "١٢٣ ٤",
    "naïve café — “quoted”",
    "日本語とemoji 👩‍👩‍👧‍👦",
    "a\tb\r\nc\x00d",
    "def f(x):\n    return x  # ok",
    "<|im_start|>user\nhi<|im_end|>\n",
    "[/INST] [link=x] \x1b[31m",
]


@pytest.fixture(scope="module")
def directory() -> Path:
    return prepare_model(EMBEDDED_MODEL, lambda _line: None)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def decoded(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    return tokenizer.decode(list(token_ids), skip_special_tokens=False)


@pytest.mark.parametrize("text", EDGE_STRINGS)
def test_text_survives_tokenizing(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text).ids
    assert decoded(tokenizer, token_ids) == text
    for digit in "0123456789":
        found = sum(decoded(tokenizer, [token]) == digit for token in token_ids)
        assert found == text.count(digit), "a digit is a token of its own"


def test_special_tokens_are_single_and_none_is_added(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>").ids == [0, 1, 2]
    assert tokenizer.encode("hi").ids == tokenizer.encode("hi", add_special_tokens=False).ids


async def test_greedy_answer(directory: Path, tokenizer: Tokenizer) -> None:
    engine = create_engine(TrainingConfig(), ModelConfig(), directory)
    await engine.start()
    assert engine.max_model_len == 8192
    prompt = tokenizer.encode("The capital of France is").ids
    token_ids: list[int] = []
    async for output in engine.generate(prompt, SamplingParams(max_tokens=1, temperature=0)):
        token_ids += output.token_ids
        assert output.logprobs[0] > -1.0
    await engine.stop()
    assert decoded(tokenizer, token_ids) == " Paris"
