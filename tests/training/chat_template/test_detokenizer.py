"""Token ids to text: by value, and the same for tokens that arrive and tokens that are there."""

from __future__ import annotations

import pytest
from fakes.engine import END, byte_tokenizer, encode
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from hermes_tui_training.chat_template.detokenizer import Detokenizer, TokenTexts
from hermes_tui_training.models.prepare import EMBEDDED_MODEL, prepare_model

TEXTS = ["é😀", "日本語と你好", "👩‍👩‍👧‍👦 family", "naïve — “quoted”", "Plain words."]


def byte_token_ids(data: bytes) -> list[int]:
    """Return the token of each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's table
    hidden = [value for value in range(256) if value not in visible]
    names = {value: chr(value) for value in visible}
    names |= {value: chr(256 + n) for n, value in enumerate(hidden)}
    vocabulary = byte_tokenizer().get_vocab()
    return [vocabulary[names[value]] for value in data]


def one_by_one(texts: TokenTexts, token_ids: list[int]) -> list[str]:
    """Return each token's text as it is shown live; what is held back goes to the last."""
    detokenizer = Detokenizer(texts)
    shown = [detokenizer.push(token_id) for token_id in token_ids]
    if shown:
        shown[-1] += detokenizer.rest
    return shown


def test_a_character_shows_with_the_token_that_completes_it() -> None:
    assert TokenTexts(byte_tokenizer()).in_sequence(encode("é😀!")) == [
        *("", "é"),
        *("", "", "", "😀"),
        "!",
    ]


def test_a_character_that_is_not_completed_shows_as_broken() -> None:
    texts = TokenTexts(byte_tokenizer())
    half = encode("a😀")[:-1]
    assert texts.in_sequence(half) == ["a", "", "", "\ufffd"]
    assert texts.in_sequence([*half, END]) == ["a", "", "", "", "\ufffd<|im_end|>"]
    assert texts.in_sequence([*half, *encode("b")]) == ["a", "", "", "", "\ufffdb"]


def test_a_control_token_shows_its_name() -> None:
    texts = TokenTexts(byte_tokenizer())
    assert texts.in_sequence([1, *encode("hi"), END]) == ["<|im_start|>", "h", "i", "<|im_end|>"]
    assert texts.special_ids == {0, 1, 2}


@settings(deadline=None, max_examples=150)
@given(data=st.binary(max_size=48))
def test_bytes_decode_to_the_same_text_one_by_one(data: bytes) -> None:
    tokenizer = byte_tokenizer()
    token_ids = byte_token_ids(data)
    shown = "".join(one_by_one(TokenTexts(tokenizer), token_ids))
    assert shown == tokenizer.decode(token_ids) == data.decode("utf-8", "replace")


def test_noise_without_end_is_given_up_in_parts() -> None:
    texts = TokenTexts(byte_tokenizer())
    shown = one_by_one(texts, [*byte_token_ids(b"\xff" * 1000), *encode("ok")])
    assert "".join(shown) == "\ufffd" * 1000 + "ok"
    assert max(len(text) for text in shown) <= 64


def test_spaces_that_a_decoder_puts_between_words() -> None:
    """Not every decoder joins its tokens' texts: SentencePiece's strips the first space."""
    tokenizer = Tokenizer(models.WordLevel({"▁how": 0, "▁are": 1, "▁you": 2, "<unk>": 3}, "<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    assert TokenTexts(tokenizer).in_sequence([0, 1, 2]) == ["how", " are", " you"]
    assert one_by_one(TokenTexts(tokenizer), [0, 1, 2]) == ["how", " are", " you"]


def test_bytes_that_a_vocabulary_falls_back_to() -> None:
    vocabulary = {f"<0x{value:02X}>": value for value in range(256)} | {"a": 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    token_ids = [256, *"日😀".encode(), 256]
    assert TokenTexts(tokenizer).in_sequence(token_ids) == [
        "a",
        "",
        "",
        "日",
        "",
        "",
        "",
        "😀",
        "a",
    ]


@pytest.mark.embedded
@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", TEXTS)
def test_the_embedded_model_s_tokens(text: str) -> None:
    directory = prepare_model(EMBEDDED_MODEL, lambda _line: None)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    token_ids = [*tokenizer.encode(text).ids, END]
    texts = TokenTexts(tokenizer)
    assert "".join(texts.in_sequence(token_ids)) == f"{text}<|im_end|>"
    assert one_by_one(texts, token_ids) == texts.in_sequence(token_ids)
