"""``/v1/completions``: OpenAI's older API, a prompt that is continued as it is.

Deviation: without ``max_tokens`` a completion may fill the context, where OpenAI stops after 16.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import read_body, sse
from hermes_tui_training.api.protocol import ChatRequest, SamplingRequest
from hermes_tui_training.inference_gateway.apis.base import ResponseFormat
from hermes_tui_training.inference_gateway.apis.chat import DONE, joined_choices, openai_usage
from hermes_tui_training.inference_gateway.chat_fields import bad
from hermes_tui_training.inference_gateway.completion_run import CompletionDelta, CompletionResult
from hermes_tui_training.inference_gateway.context import require_session
from hermes_tui_training.inference_gateway.sampling_plan import (
    Neutral,
    SamplingPlan,
    chat_plan,
    require_neutral,
)
from hermes_tui_training.inference_gateway.streaming import begin

_NEUTRAL: Neutral = {"best_of": (1,), "echo": (False,), "suffix": ("",)}


class CompletionsRequest(SamplingRequest):
    """Body of ``POST /v1/completions``."""

    prompt: Any
    """A text, its token ids, or a list with one of these."""
    max_tokens: int | None = Field(None, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)
    """Alternatives per token; 0 gives the sampled tokens' own logprobs."""
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None


async def completions(request: Request) -> Response:
    """``POST /v1/completions``."""
    session = await require_session(request)
    body = await read_body(request, CompletionsRequest)
    return await begin(request, session, _text_plan(body), TextFormat)


def _text_plan(body: CompletionsRequest) -> SamplingPlan:
    require_neutral(body, _NEUTRAL)
    own = {"prompt", "logprobs", *_NEUTRAL}
    shared = {name: value for name, value in body if name not in own}
    # Both bodies have been validated; only the list of messages may be empty here.
    chat = ChatRequest.model_construct(
        messages=[],
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs,
        **shared,
    )
    return replace(
        chat_plan(chat), raw_prompt=_prompt(body.prompt), id_prefix="cmpl-", prompt_field="prompt"
    )


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    """Return the one prompt of a request. Raises: ApiError: 400."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(type(token_id) is int for token_id in prompt):
        return tuple(prompt)
    raise bad("prompt", "must be one text, or one list of token ids")


class TextFormat(ResponseFormat):
    """The answers of one text completion."""

    _offset = 0

    def answer(self, deltas: Sequence[CompletionDelta], result: CompletionResult) -> dict[str, Any]:
        """Return the whole completion as one JSON object."""
        choice = self._choice(result.message["content"], deltas, result.finish_reason)
        if self.plan.return_token_ids:
            choice["token_ids"] = self.run.token_ids
            choice["prompt_token_ids"] = list(self.run.prompt.token_ids)
        usage = openai_usage(self.num_prompt_tokens, len(self.run.token_ids))
        return self._envelope([choice]) | {"usage": usage}

    def start_events(self) -> Iterable[bytes]:
        """Yield nothing: the first chunk has text."""
        return ()

    def delta_events(self, delta: CompletionDelta) -> Iterable[bytes]:
        """Yield the chunk of a delta; none when it has nothing that the client asked for."""
        if not delta.message_delta and not self.plan.logprobs and not self.plan.return_token_ids:
            return
        choice = self._choice(delta.message_delta.get("content", ""), [delta], None)
        if self.plan.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
            if len(self.run.token_ids) == len(delta.token_ids):
                choice["prompt_token_ids"] = list(self.run.prompt.token_ids)
        yield self._chunk(choice)

    def end_events(self, result: CompletionResult) -> Iterable[bytes]:
        """Yield the rest of the text with the finish."""
        yield self._chunk(
            self._choice(result.message_delta.get("content", ""), [], result.finish_reason)
        )

    def close_events(self, num_sampled_tokens: int) -> Iterable[bytes]:
        """Yield the usage if it was asked for, and the end."""
        if self.plan.include_usage:
            usage = openai_usage(self.num_prompt_tokens, num_sampled_tokens)
            yield sse(self._envelope([]) | {"usage": usage})
        yield DONE

    def joined(self, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the answer of several choices."""
        return joined_choices(answers)

    def error_events(self, error: ApiError) -> Iterable[bytes]:
        """Yield the error, and the end."""
        yield sse(error.body())
        yield DONE

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": "text_completion",
            "created": int(self.run.created_at),
            "model": self.model,
            "choices": choices,
        }

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        usage = {"usage": None} if self.plan.include_usage else {}
        return sse(self._envelope([choice]) | usage)

    def _choice(
        self, text: str, deltas: Sequence[CompletionDelta], finish_reason: str | None
    ) -> dict[str, Any]:
        logprobs = self._logprobs(deltas) if self.plan.logprobs and deltas else None
        return {
            "index": self.run.choice,
            "text": text,
            "finish_reason": finish_reason,
            "logprobs": logprobs,
        }

    def _logprobs(self, deltas: Sequence[CompletionDelta]) -> dict[str, Any]:
        """Return logprobs in the older shape: one list per kind."""
        entries = [entry for delta in deltas for entry in self.logprob_entries(delta)]
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry["token"])
        tops = [{top["token"]: top["logprob"] for top in e["top_logprobs"]} for e in entries]
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": tops if self.plan.top_logprobs else None,
            "text_offset": offsets,
        }
