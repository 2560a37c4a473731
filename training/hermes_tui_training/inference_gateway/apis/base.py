"""The format of a completion's answer: each API has its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from starlette.responses import Response

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import error_response
from hermes_tui_training.inference_gateway.completion_run import (
    CompletionDelta,
    CompletionResult,
    CompletionRun,
)

TokenText = Callable[[int], str]
"""Returns one token's text."""

_BROKEN = "\ufffd"


class ResponseFormat(ABC):
    """Writes one completion as an API answers it, whole or as server-sent events."""

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
    def answer(self, deltas: Sequence[CompletionDelta], result: CompletionResult) -> dict[str, Any]:
        """Return the whole completion as one JSON object."""

    @abstractmethod
    def start_events(self) -> Iterable[bytes]:
        """Yield the events before the first token."""

    @abstractmethod
    def delta_events(self, delta: CompletionDelta) -> Iterable[bytes]:
        """Yield the events of a delta; none when it has nothing that the client asked for."""

    @abstractmethod
    def end_events(self, result: CompletionResult) -> Iterable[bytes]:
        """Yield the events after the last token."""

    def close_events(self, num_sampled_tokens: int) -> Iterable[bytes]:
        """Yield the events after the end of all choices.

        Args:
            num_sampled_tokens: of all choices together.
        """
        return ()

    def joined(self, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the answer of several choices; ``answers`` has one per choice, in order."""
        assert len(answers) == 1, "this API has one choice"
        return answers[0]

    @abstractmethod
    def error_events(self, error: ApiError) -> Iterable[bytes]:
        """Yield the events that end a stream which broke off."""

    def refused(self, error: ApiError) -> Response:
        """Return the answer to a request that got no token."""
        return error_response(error)

    @property
    def response_id(self) -> str:
        """Id of the answer: that of the first choice's completion."""
        return self.run.completion_id.partition(":")[0]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.run.prompt.token_ids)

    def with_token_ids(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with the prompt's and the sampled ids, if the client asked for them."""
        if self.plan.return_token_ids:
            body["prompt_token_ids"] = list(self.run.prompt.token_ids)
            body["token_ids"] = list(self.run.token_ids)
        return body

    def logprob_entries(self, delta: CompletionDelta) -> Iterator[dict[str, Any]]:
        """Yield each token of a delta with its logprob and alternatives, in OpenAI's form."""
        tops = delta.top_logprobs or ((),) * len(delta.token_ids)
        for token_id, logprob, top in zip(delta.token_ids, delta.logprobs, tops, strict=True):
            entry = self._token(token_id, logprob)
            entry["top_logprobs"] = [self._token(other, value) for other, value in top]
            yield entry

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.token_text(token_id)
        whole = None if _BROKEN in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": whole}


class ResponseFormatFactory(Protocol):
    """Makes the format of a completion that has begun."""

    def __call__(
        self, run: CompletionRun, *, model: str, token_text: TokenText
    ) -> ResponseFormat: ...
