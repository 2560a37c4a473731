"""What every API that answers completions has to say, each in its own shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from starlette.responses import Response

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import error_response
from hermes_tui_training.inference_gateway.completion_run import CompletionRun, Outcome, Piece

TokenText = Callable[[int], str]
"""Returns one token's text."""

_BROKEN = "\ufffd"


class Shapes(ABC):
    """The answers to one completion; events are whole server-sent events."""

    def __init__(self, run: CompletionRun, *, model: str, token_text: TokenText) -> None:
        """
        Args:
            run: has begun.
            model: our model's name, for requests that name none.
            token_text: decodes one token.
        """
        self.run = run
        self.plan = run.plan
        self.model = run.plan.model or model
        self.token_text = token_text

    @abstractmethod
    def answer(self, pieces: Sequence[Piece], outcome: Outcome) -> dict[str, Any]:
        """Return the whole completion as one JSON object."""

    @abstractmethod
    def first(self) -> Iterable[bytes]:
        """Yield the events before the first token."""

    @abstractmethod
    def piece(self, piece: Piece) -> Iterable[bytes]:
        """Yield the events of a piece; none when it has nothing that was asked for."""

    @abstractmethod
    def last(self, outcome: Outcome) -> Iterable[bytes]:
        """Yield the events after the last token."""

    @abstractmethod
    def failed(self, error: ApiError) -> Iterable[bytes]:
        """Yield the events that end a stream which broke off."""

    def refused(self, error: ApiError) -> Response:
        """Return the answer to a request that got no token."""
        return error_response(error)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.run.prompt.token_ids)

    def with_token_ids(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with the prompt's and the sampled ids, if they were asked for."""
        if self.plan.return_token_ids:
            body["prompt_token_ids"] = list(self.run.prompt.token_ids)
            body["token_ids"] = list(self.run.token_ids)
        return body

    def logprob_entries(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yield each token of a piece with its logprob and alternatives, as OpenAI writes them."""
        tops = piece.top_logprobs or ((),) * len(piece.token_ids)
        for token_id, logprob, top in zip(piece.token_ids, piece.logprobs, tops, strict=True):
            entry = self._token(token_id, logprob)
            entry["top_logprobs"] = [self._token(other, value) for other, value in top]
            yield entry

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.token_text(token_id)
        whole = None if _BROKEN in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": whole}


class ShapesFactory(Protocol):
    """Makes the shapes of a completion that has begun."""

    def __call__(self, run: CompletionRun, *, model: str, token_text: TokenText) -> Shapes: ...
