"""``/v1/chat/completions``: OpenAI's, with vLLM's names for token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import read_json, sse, validated
from hermes_tui_training.api.protocol import ChatRequest
from hermes_tui_training.inference_gateway.apis.base import ResponseFormat
from hermes_tui_training.inference_gateway.completion_run import CompletionDelta, CompletionResult
from hermes_tui_training.inference_gateway.context import require_session, services_of
from hermes_tui_training.inference_gateway.external_completion import answer_external
from hermes_tui_training.inference_gateway.sampling_plan import chat_plan
from hermes_tui_training.inference_gateway.streaming import begin

DONE = sse("[DONE]")
"""Ends OpenAI's streams of chunks."""


async def chat_completions(request: Request) -> Response:
    """``POST /v1/chat/completions``."""
    session = await require_session(request)
    services = services_of(request)
    body = await read_json(request)
    if isinstance(body, dict) and (model := services.external.get(body.get("model"))):
        return await answer_external(request, services, session, model, body)
    return await begin(request, session, chat_plan(validated(body, ChatRequest)), ChatFormat)


class ChatFormat(ResponseFormat):
    """The answers of one chat completion."""

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": kind,
            "created": int(self.run.created_at),
            "model": self.model,
        }

    def answer(self, deltas: Sequence[CompletionDelta], result: CompletionResult) -> dict[str, Any]:
        """Return the whole completion as one JSON object."""
        choice: dict[str, Any] = {
            "index": self.run.choice,
            "message": result.message,
            "finish_reason": result.finish_reason,
            "logprobs": None,
        }
        usage = openai_usage(self.num_prompt_tokens, len(self.run.token_ids))
        body = self._envelope("chat.completion") | {"choices": [choice], "usage": usage}
        if self.plan.logprobs:
            content = [entry for delta in deltas for entry in self.logprob_entries(delta)]
            choice["logprobs"] = {"content": content, "refusal": None}
        if self.plan.return_token_ids:
            choice["token_ids"] = self.run.token_ids
            body["prompt_token_ids"] = list(self.run.prompt.token_ids)
        return body

    def start_events(self) -> Iterable[bytes]:
        """Yield the chunk that names the role."""
        # Whether there is content is not known yet: a message of calls alone has null.
        chunk = self._chunk({"role": "assistant"}, None)
        if self.plan.return_token_ids and not self.run.choice:
            chunk["prompt_token_ids"] = list(self.run.prompt.token_ids)
        yield sse(chunk)

    def delta_events(self, delta: CompletionDelta) -> Iterable[bytes]:
        """Yield the chunk of a delta; none when it has nothing that the client asked for."""
        if not delta.message_delta and not self.plan.logprobs and not self.plan.return_token_ids:
            return
        chunk = self._chunk(delta.message_delta, None)
        choice = chunk["choices"][0]
        if self.plan.logprobs:
            choice["logprobs"] = {"content": list(self.logprob_entries(delta)), "refusal": None}
        if self.plan.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        yield sse(chunk)

    def end_events(self, result: CompletionResult) -> Iterable[bytes]:
        """Yield the rest of the message, and the finish."""
        delta = dict(result.message_delta)
        if result.message["content"] == "":  # no delta had any, and it is not null
            delta["content"] = ""
        if malformed := result.message.get("malformed_tool_calls"):
            delta["malformed_tool_calls"] = malformed
        if delta:
            yield sse(self._chunk(delta, None))
        yield sse(self._chunk({}, result.finish_reason))

    def close_events(self, num_sampled_tokens: int) -> Iterable[bytes]:
        """Yield the usage if it was asked for, and the end."""
        if self.plan.include_usage:
            usage = openai_usage(self.num_prompt_tokens, num_sampled_tokens)
            yield sse(self._envelope("chat.completion.chunk") | {"choices": [], "usage": usage})
        yield DONE

    def joined(self, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the answer of several choices."""
        return joined_choices(answers)

    def error_events(self, error: ApiError) -> Iterable[bytes]:
        """Yield the error, and the end."""
        yield sse(error.body())
        yield DONE

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {
            "index": self.run.choice,
            "delta": delta,
            "finish_reason": finish_reason,
            "logprobs": None,
        }
        chunk = self._envelope("chat.completion.chunk") | {"choices": [choice]}
        if self.plan.include_usage:
            chunk["usage"] = None
        return chunk


def joined_choices(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return OpenAI's answers of one choice each as one; the prompt is counted once."""
    choices = [choice for answer in answers for choice in answer["choices"]]
    usages = [answer["usage"] for answer in answers]
    num_sampled = sum(usage["completion_tokens"] for usage in usages)
    usage = openai_usage(usages[0]["prompt_tokens"], num_sampled)
    return answers[0] | {"choices": choices, "usage": usage}


def openai_usage(num_prompt_tokens: int, num_sampled_tokens: int) -> dict[str, int]:
    """Return how many tokens a completion has."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_sampled_tokens,
        "total_tokens": num_prompt_tokens + num_sampled_tokens,
    }
