"""OpenAI's answer shapes, with vLLM's names for token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hermes_tui_training.gateway.completions import CompletionRun, Outcome, Piece

TokenText = Callable[[int], str]
"""Returns one token's text."""

_BROKEN = "\ufffd"


class ChatShapes:
    """The answers of one chat completion."""

    def __init__(self, run: CompletionRun, *, model: str, token_text: TokenText) -> None:
        self._run = run
        self._plan = run.plan
        self._model = run.plan.model or model
        self._token_text = token_text

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._run.completion_id,
            "object": kind,
            "created": int(self._run.created_at),
            "model": self._model,
        }

    def usage(self) -> dict[str, int]:
        """Return how many tokens the completion has."""
        prompt, sampled = len(self._run.prompt.token_ids), len(self._run.token_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        }

    def answer(self, pieces: Iterable[Piece], outcome: Outcome) -> dict[str, Any]:
        """Return the whole completion as one JSON object."""
        choice: dict[str, Any] = {
            "index": 0,
            "message": outcome.message,
            "finish_reason": outcome.finish_reason,
            "logprobs": None,
        }
        body = self._envelope("chat.completion") | {"choices": [choice], "usage": self.usage()}
        if self._plan.logprobs:
            content = [entry for piece in pieces for entry in self._logprob_entries(piece)]
            choice["logprobs"] = {"content": content, "refusal": None}
        if self._plan.return_token_ids:
            choice["token_ids"] = self._run.token_ids
            body["prompt_token_ids"] = list(self._run.prompt.token_ids)
        return body

    def first_chunk(self) -> dict[str, Any]:
        """Return the chunk that names the role."""
        chunk = self._chunk({"role": "assistant", "content": ""}, None)
        if self._plan.return_token_ids:
            chunk["prompt_token_ids"] = list(self._run.prompt.token_ids)
        return chunk

    def piece_chunk(self, piece: Piece) -> dict[str, Any] | None:
        """Return the chunk of a piece; None when it has nothing that was asked for."""
        if not piece.delta and not self._plan.logprobs and not self._plan.return_token_ids:
            return None
        chunk = self._chunk(piece.delta, None)
        choice = chunk["choices"][0]
        if self._plan.logprobs:
            choice["logprobs"] = {"content": list(self._logprob_entries(piece)), "refusal": None}
        if self._plan.return_token_ids:
            choice["token_ids"] = list(piece.token_ids)
        return chunk

    def last_chunks(self, outcome: Outcome) -> list[dict[str, Any]]:
        """Return the rest of the message, the finish, and the usage if it was asked for."""
        chunks = [self._chunk(outcome.delta, None)] if outcome.delta else []
        chunks.append(self._chunk({}, outcome.finish_reason))
        if self._plan.include_usage:
            envelope = self._envelope("chat.completion.chunk")
            chunks.append(envelope | {"choices": [], "usage": self.usage()})
        return chunks

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        chunk = self._envelope("chat.completion.chunk") | {"choices": [choice]}
        if self._plan.include_usage:
            chunk["usage"] = None
        return chunk

    def _logprob_entries(self, piece: Piece) -> Iterable[dict[str, Any]]:
        tops = piece.top_logprobs or ((),) * len(piece.token_ids)
        for token_id, logprob, top in zip(piece.token_ids, piece.logprobs, tops, strict=True):
            entry = self._token(token_id, logprob)
            entry["top_logprobs"] = [self._token(other, value) for other, value in top]
            yield entry

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._token_text(token_id)
        whole = None if _BROKEN in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": whole}
