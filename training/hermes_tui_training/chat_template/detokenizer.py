"""Token ids to text: the one decoder, for tokens that arrive and for tokens that were recorded.

A character may be split over several tokens. It shows with the token that completes it; the tokens
before have no text. ``tokenizers.decoders.DecodeStream`` does the same, but cannot be asked what it
holds back at the end of a reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import ByteLevel

BROKEN = "\ufffd"
"""What decoding makes of bytes that are no whole character (yet)."""

_MAX_UNDECIDED = 64
"""Tokens without a whole character after which their bytes are given up. A character has at most
four bytes, so what is longer is noise; the limit bounds the work for each further token."""


class TokenTexts:
    """What the tokens of one tokenizer look like; safe to use from any thread."""

    def __init__(self, tokenizer: Any) -> None:
        """
        Args:
            tokenizer: of transformers or of tokenizers.
        """
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if hasattr(backend, "get_added_tokens_decoder"):
            added = backend.get_added_tokens_decoder()
            self.special_ids = frozenset(i for i, token in added.items() if token.special)
        else:
            self.special_ids = frozenset(tokenizer.all_special_ids)
        """Control tokens. Their text is a name, such as ``<|im_end|>``: no part of a message."""
        # transformers' own conversions take most of the time of a decode; one of them, cleaning up
        # spaces, changes the text, and few tokenizers ask for it.
        cleans = getattr(tokenizer, "clean_up_tokenization_spaces", False)
        self._tokenizer = tokenizer if cleans else backend
        # A byte-level decoder joins bytes: a token of whole characters reads the same anywhere.
        self._is_byte_level = not cleans and isinstance(
            getattr(backend, "decoder", None), ByteLevel
        )
        self._alone: dict[int, str] = {}

    def alone(self, token_id: int) -> str:
        """Return one token's text; U+FFFD stands for bytes that are no characters alone."""
        text = self._alone.get(token_id)
        if text is None:
            text = self._alone[token_id] = self.decode([token_id])
        return text

    def in_sequence(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token's text, as a ``Detokenizer`` gives it; joined they are the text."""
        detokenizer = Detokenizer(self)
        texts = [detokenizer.push(token_id) for token_id in token_ids]
        if texts:
            texts[-1] += detokenizer.rest
        return texts

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, names of control tokens included."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def is_whole(self, token_id: int) -> bool:
        """Return whether a token's text is the same with any neighbours."""
        return self._is_byte_level and BROKEN not in self.alone(token_id)


class Detokenizer:
    """Decodes one sequence token by token."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._context: list[int] = []  # decides spaces in front of what follows
        self._undecided: list[int] = []

    def push(self, token_id: int) -> str:
        """Return the text that a token completed; often empty for parts of a character."""
        if token_id in self._texts.special_ids:  # ends a character that is not complete
            text = self.rest + self._texts.alone(token_id)
            self._context, self._undecided = [], []
            return text
        if not self._undecided and self._texts.is_whole(token_id):
            self._context = [token_id]
            return self._texts.alone(token_id)
        self._undecided.append(token_id)
        text = self.rest
        if text.endswith(BROKEN):
            if len(self._undecided) < _MAX_UNDECIDED:
                return ""
            self._context, self._undecided = [], []
        else:
            self._context, self._undecided = self._undecided, []
        return text

    @property
    def rest(self) -> str:
        """What is held back; bytes that never became a character show as U+FFFD."""
        if not self._undecided:
            return ""
        context = self._texts.decode(self._context)
        return self._texts.decode(self._context + self._undecided)[len(context) :]
