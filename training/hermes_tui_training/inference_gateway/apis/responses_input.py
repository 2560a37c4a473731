"""What clients of ``/v1/responses`` send, as the chat request that it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict, Field

from hermes_tui_common.openai import content_text, refuse_unknown
from hermes_tui_training.api.protocol import Body, ChatRequest
from hermes_tui_training.inference_gateway.chat_fields import bad, text_of
from hermes_tui_training.inference_gateway.reply_rules import JSON_SCHEMA_FIELDS, FieldNames
from hermes_tui_training.inference_gateway.sampling_plan import (
    Neutral,
    SamplingPlan,
    chat_plan,
    require_neutral,
)

_NEUTRAL: Neutral = {
    "background": (False,),
    "conversation": (),
    "max_tool_calls": (),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "truncation": ("disabled",),
}

_FIELDS = FieldNames(schema="text.format.schema", parameters="tools[{index}].parameters")

LOGPROBS = "message.output_text.logprobs"
"""What ``include`` may name."""

_TOOL_FIELDS = ("type", "name", "description", "parameters", "strict")
_ITEM_FIELDS = {
    "message": ("type", "role", "content", "id", "status"),
    "function_call": (
        *("type", "call_id", "name", "arguments", "id", "status"),
        "parsed_arguments",
    ),
    "function_call_output": ("type", "call_id", "output", "id", "status"),
    "reasoning": ("type", "content", "summary", "id", "status"),
}
"""Fields of each type of item; what answers tell of one beside that, such as its id, changes
nothing."""

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_ROLES = ("user", "assistant", "system", "developer")


class ResponsesStreamOptions(Body):
    """OpenAI's ``stream_options`` of responses."""

    include_obfuscation: bool | None = None
    """Without effect: nothing is obfuscated."""


class ResponsesText(Body):
    """OpenAI's ``text`` of responses."""

    format: dict[str, Any] | None = None
    """What the text must be: ``text``, ``json_object``, or ``json_schema`` with its schema."""


class ResponsesRequest(Body):
    """Body of ``POST /v1/responses``; null means the default, as it does at OpenAI."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: ResponsesText | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    return_token_ids: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Only their neutral value can be honoured.
    background: bool | None = None
    conversation: Any = None
    max_tool_calls: int | None = None
    previous_response_id: str | None = None
    prompt: Any = None
    reasoning: dict[str, Any] | None = None
    service_tier: str | None = None
    store: bool | None = None
    truncation: str | None = None
    # Without effect on what is answered.
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    user: str | None = None


def responses_plan(body: ResponsesRequest) -> SamplingPlan:
    """Return what a request asks for.

    Raises: ApiError: 400 that names the field which cannot be honoured.
    """
    require_neutral(body, _NEUTRAL)
    for name in body.include or ():
        if name != LOGPROBS:
            raise bad("include", f"may name only {LOGPROBS}, not {name!r}")
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())]
    wants_logprobs = bool(body.include) or bool(body.top_logprobs)
    chat = ChatRequest.model_construct(
        model=body.model,
        messages=_messages(body),
        tools=tools,
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(body.text),
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        logprobs=wants_logprobs,
        top_logprobs=body.top_logprobs,
        stream=body.stream,
        return_token_ids=body.return_token_ids,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return replace(chat_plan(chat, _FIELDS), id_prefix="resp_", prompt_field="input")


def _choice(choice: Any) -> Any:
    """Return chat's ``tool_choice``, which has a function's name one level deeper."""
    match choice:
        case "auto":
            return None
        case {"type": "function", "name": name}:
            refuse_unknown(choice, "tool_choice", ("type", "name"))
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": mode, "tools": list(tools)}:
            allowed = {"mode": mode, "tools": [_choice(tool) for tool in tools]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _format(text: ResponsesText | None) -> dict[str, Any] | None:
    """Return chat's ``response_format``, which has the schema under a key of its own."""
    if text is None or text.format is None:
        return None
    refuse_unknown(text.format, "text.format", ("type", *JSON_SCHEMA_FIELDS))
    match text.format:
        case {"type": "json_schema", "schema": dict(schema)}:
            return {"type": "json_schema", "json_schema": {"schema": schema}}
        case {"type": "json_schema"}:
            raise bad("text.format.schema", "must be a JSON schema")
        case {"type": "text" | "json_object" as kind}:
            return {"type": kind}
    raise bad("text.format.type", "must be 'text', 'json_object' or 'json_schema'")


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a tool in chat's shape: its function under a key of its own."""
    if tool.get("type") != "function":
        raise bad(f"{where}.type", f"= {tool.get('type')!r} is not supported; only functions are")
    refuse_unknown(tool, where, _TOOL_FIELDS)
    return {
        "type": "function",
        "function": {
            key: value for key, value in tool.items() if key != "type" and value is not None
        },
    }


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    """Return the conversation; what the assistant wrote in a row is one message."""
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    if not items:
        raise bad("input", "must hold an item at least")
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    for index, item in enumerate(items):
        _add(messages, item, f"input[{index}]")
    return messages


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    if kind in _ITEM_FIELDS:
        refuse_unknown(item, where, _ITEM_FIELDS[kind])
    if kind == "message" and item.get("role") != "assistant":
        if item.get("role") not in _ROLES:
            raise bad(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
        text = _text(item.get("content"), f"{where}.content")
        messages.append({"role": item["role"], "content": text})
    elif kind == "function_call_output":
        text = _text(item.get("output"), f"{where}.output")
        call_id = text_of(item, "call_id", where)
        messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
    elif kind == "message":
        message = _assistant(messages)
        message["content"] = (message["content"] or "") + _text(
            item.get("content"), f"{where}.content"
        )
    elif kind == "reasoning":
        thought = _text(item.get("content") or item.get("summary") or [], f"{where}.content")
        message = _assistant(messages)
        message["reasoning_content"] = message.get("reasoning_content", "") + thought
    elif kind == "function_call":
        function = {key: text_of(item, key, where) for key in ("name", "arguments")}
        call_id = text_of(item, "call_id", where)
        call = {"id": call_id, "type": "function", "function": function}
        _assistant(messages).setdefault("tool_calls", []).append(call)
    else:
        raise bad(f"{where}.type", f"= {kind!r} is not supported")


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message at the end, a new one after somebody else's."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _text(content: object, where: str) -> str:
    return content_text(content, where, kinds=_TEXT_PARTS)
