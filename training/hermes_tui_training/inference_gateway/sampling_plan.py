"""Checks a chat request and says how its completion is to be sampled and answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from hermes_tui_training.api.protocol import ChatRequest
from hermes_tui_training.chat_template.grammar import ReplyRules
from hermes_tui_training.inference_gateway.chat_fields import bad, check_messages, check_tools
from hermes_tui_training.inference_gateway.reply_rules import (
    FieldNames,
    reply_rules,
    tool_choice,
)

_MAX_STOPS = 16

GREEDY_BELOW = 0.01
"""Temperatures below count as 0: they draw the likeliest token nearly always, and what was drawn
teaches nothing."""

SMALLEST_TEMPERATURE = 1e-6
"""Other temperatures than 0 below this are refused: logits that are divided by them overflow."""

CHAT_FIELDS = FieldNames()

Neutral = Mapping[str, tuple[Any, ...]]
"""Fields that are not supported, and the values of each that ask for nothing."""

_NEUTRAL: Neutral = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "service_tier": ("auto", "default"),
}
"""Fields of which only these values are supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """How to sample and answer a completion; all of it is supported."""

    model: str | None
    """Model name that the answer repeats; None for our own."""
    messages: list[dict[str, Any]]
    """The conversation, as it was sent."""
    tools: list[dict[str, Any]]
    """Tools in the prompt."""
    may_call: bool
    """Whether the model's calls are answered as calls."""
    rules: ReplyRules | None
    """What the reply is held to while it is sampled; None lets it be anything."""
    template: dict[str, Any]
    """``chat_template_kwargs``."""
    max_tokens: int | None
    """Upper bound of sampled tokens; None leaves it to the context."""
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: tuple[str, ...]
    logprobs: bool
    """Whether the answer has logprobs."""
    top_logprobs: int
    """Alternatives per token in the answer."""
    num_choices: int
    """How many replies to sample; each is recorded as a completion of its own."""
    stream: bool
    include_usage: bool
    return_token_ids: bool
    raw_prompt: str | tuple[int, ...] | None = None
    """A prompt that is taken as it is, text or token ids; there are no messages then."""
    id_prefix: str = "chatcmpl-"
    """What the completion's id begins with."""
    prompt_field: str = "messages"
    """The request's field that is at fault when the prompt is."""

    @property
    def is_recomputable(self) -> bool:
        """Whether the tokens come from the distribution that the trainer recomputes."""
        return self.top_p == 1.0 and self.top_k == 0 and self.temperature > 0

    def sampling_record(self, max_tokens: int) -> dict[str, Any]:
        """Return what is recorded about the sampling."""
        record: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "max_tokens": max_tokens,
        }
        if self.rules is not None:
            record["constrained"] = True
        if self.stop:
            record["stop"] = list(self.stop)
        if self.template:
            record["chat_template_kwargs"] = self.template
        return record


def chat_plan(request: ChatRequest, fields: FieldNames = CHAT_FIELDS) -> SamplingPlan:
    """Return what a request asks for.

    Args:
        fields: how the API of the request names what chat's fields were made from.

    Raises: ApiError: 400 that names the field which cannot be honoured.
    """
    _require_honourable(request)
    tools = request.tools or []
    check_tools(tools)
    check_messages(request.messages)
    choice = tool_choice(request.tool_choice, tools)
    options = request.stream_options
    if options is not None and not request.stream:
        raise bad("stream_options", "only goes with stream = true")
    return SamplingPlan(
        model=request.model,
        messages=request.messages,
        tools=tools,
        may_call=bool(choice.names),
        rules=reply_rules(
            tools=tools,
            choice=choice,
            parallel=request.parallel_tool_calls,
            response_format=request.response_format,
            fields=fields,
        ),
        template=request.chat_template_kwargs or {},
        max_tokens=_max_tokens(request),
        temperature=_temperature(request.temperature),
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        seed=request.seed,
        stop=_stops(request.stop),
        logprobs=bool(request.logprobs),
        top_logprobs=_top_logprobs(request),
        num_choices=1 if request.n is None else request.n,
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        return_token_ids=bool(request.return_token_ids),
    )


def require_neutral(body: BaseModel, fields: Neutral) -> None:
    """Refuse values that cannot be honoured; null asks for nothing.

    Raises: ApiError: 400.
    """
    for name, neutral in fields.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise bad(name, f"= {value!r} is not supported; leave it out")


def _require_honourable(request: ChatRequest) -> None:
    require_neutral(request, _NEUTRAL)
    if request.store:
        raise bad("store", "= true is not supported; completions are kept in their session")


def _temperature(temperature: float | None) -> float:
    if temperature is None:
        return 1.0
    if 0 < temperature < SMALLEST_TEMPERATURE:
        raise bad(
            "temperature",
            f"= {temperature!r} is too small: send 0 for the likeliest token each time, or at "
            f"least {GREEDY_BELOW}",
        )
    return 0.0 if temperature < GREEDY_BELOW else temperature


def _max_tokens(request: ChatRequest) -> int | None:
    if request.max_tokens is None or request.max_completion_tokens is None:
        return request.max_completion_tokens or request.max_tokens
    if request.max_tokens != request.max_completion_tokens:
        raise bad("max_tokens", "and 'max_completion_tokens' differ; send one of them")
    return request.max_tokens


def _top_logprobs(request: ChatRequest) -> int:
    if request.top_logprobs and not request.logprobs:
        raise bad("top_logprobs", "only goes with logprobs = true")
    return request.top_logprobs or 0


def _stops(stop: Any) -> tuple[str, ...]:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise bad("stop", "must be a text or a list of texts, none of them empty")
    if len(stops) > _MAX_STOPS:
        raise bad("stop", f"may hold up to {_MAX_STOPS} texts")
    return tuple(stops)
