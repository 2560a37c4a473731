"""What clients of ``/v1/messages`` send, as the chat request that it means."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict, Field

from hermes_tui_common.openai import content_text, refuse_unknown
from hermes_tui_training.api.protocol import Body, ChatRequest
from hermes_tui_training.inference_gateway.chat_fields import bad, text_of
from hermes_tui_training.inference_gateway.reply_rules import FieldNames
from hermes_tui_training.inference_gateway.sampling_plan import (
    Neutral,
    SamplingPlan,
    chat_plan,
    require_neutral,
)

_NEUTRAL: Neutral = {
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "thinking": ({"type": "disabled"},),
}


_FIELDS = FieldNames(schema="output_config.format.schema", parameters="tools[{index}].input_schema")


_BLOCK_FIELDS = {
    "text": ("type", "text", "cache_control", "parsed_output"),
    "thinking": ("type", "thinking", "signature"),
    "tool_use": ("type", "id", "name", "input", "cache_control"),
    "tool_result": ("type", "tool_use_id", "content", "is_error", "cache_control"),
}


class OutputConfig(Body):
    """Anthropic's ``output_config``."""

    effort: None = None
    """Not supported."""
    format: dict[str, Any] | None = None
    """The JSON schema of the text: ``{"type": "json_schema", "schema": {…}}``."""


class MessagesRequest(Body):
    """Body of ``POST /v1/messages``."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    model: str | None = None
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, lt=2**31)
    stream: bool | None = None
    return_token_ids: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Only their neutral value can be honoured.
    container: Any = None
    context_management: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    service_tier: str | None = None
    thinking: dict[str, Any] | None = None
    # Without effect on what is answered.
    cache_control: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class CountTokensRequest(MessagesRequest):
    """Body of ``POST /v1/messages/count_tokens``: nothing is sampled, so it needs no bound."""

    max_tokens: int = Field(1, ge=1)


def messages_plan(body: MessagesRequest) -> SamplingPlan:
    """Return what a request asks for.

    Raises: ApiError: 400 that names the field which cannot be honoured.
    """
    require_neutral(body, _NEUTRAL)
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _text(body.system, "system")})
    for index, message in enumerate(body.messages):
        messages += _converted(message, f"messages[{index}]")
    chat = ChatRequest.model_construct(
        model=body.model,
        messages=messages,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())],
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=_parallel(body.tool_choice),
        response_format=_format(body.output_config),
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        stream=body.stream,
        return_token_ids=body.return_token_ids,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return replace(chat_plan(chat, _FIELDS), id_prefix="msg_", prompt_field="messages")


def _choice(choice: Mapping[str, Any] | None) -> Any:
    """Return chat's ``tool_choice``; auto is what it does by itself."""
    if choice is not None:
        refuse_unknown(choice, "tool_choice", ("type", "name", "disable_parallel_tool_use"))
    match choice:
        case None | {"type": "auto"}:
            return None
        case {"type": "none"}:
            return "none"
        case {"type": "any"}:
            return "required"
        case {"type": "tool", "name": name}:
            return {"type": "function", "function": {"name": name}}
    raise bad("tool_choice.type", "must be 'auto', 'none', 'any', or 'tool' with a name")


def _parallel(choice: Mapping[str, Any] | None) -> bool | None:
    """Return chat's ``parallel_tool_calls``."""
    disabled = (choice or {}).get("disable_parallel_tool_use")
    if not isinstance(disabled, bool | None):
        raise bad("tool_choice.disable_parallel_tool_use", "must be true or false")
    return False if disabled else None


def _format(config: OutputConfig | None) -> dict[str, Any] | None:
    """Return chat's ``response_format``."""
    form = config.format if config else None
    match form:
        case None:
            return None
        case {"type": "json_schema", "schema": dict(schema)}:
            refuse_unknown(form, "output_config.format", ("type", "schema"))
            return {"type": "json_schema", "json_schema": {"schema": schema}}
    raise bad("output_config.format", "must be {'type': 'json_schema', 'schema': {…}}")


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a tool in chat's shape. Anthropic's own tools, which have a type, are refused."""
    if tool.get("type") not in (None, "custom"):
        raise bad(f"{where}.type", f"= {tool['type']!r} is not supported; only custom tools are")
    known = ("type", "name", "description", "input_schema", "cache_control", "strict")
    refuse_unknown(tool, where, known)
    function = {"name": tool.get("name"), "description": tool.get("description")}
    function |= {"parameters": tool.get("input_schema"), "strict": tool.get("strict")}
    return {
        "type": "function",
        "function": {key: value for key, value in function.items() if value is not None},
    }


def _converted(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return one of Anthropic's messages as chat's, which has results in messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise bad(f"{where}.role", "must be user, assistant or system")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise bad(f"{where}.content", "must be a text or a list of blocks")
    refuse_unknown(message, where, ("role", "content"))
    for index, block in enumerate(content):
        at = f"{where}.content[{index}]"
        if not isinstance(block, Mapping):
            raise bad(at, "must be an object")
        if (kind := block.get("type")) in _BLOCK_FIELDS:
            refuse_unknown(block, at, _BLOCK_FIELDS[kind])
    if role == "assistant":
        return [_assistant(content, f"{where}.content")]
    return _others(role, content, f"{where}.content")


def _assistant(content: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    texts, thoughts = [], []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(content):
        at = f"{where}[{index}]"
        match block.get("type"):
            case "text":
                texts.append(text_of(block, "text", at))
            case "thinking":
                thoughts.append(text_of(block, "thinking", at))
            case "tool_use":
                arguments = json.dumps(block.get("input", {}), ensure_ascii=False)
                function = {"name": text_of(block, "name", at), "arguments": arguments}
                call_id = text_of(block, "id", at)
                calls.append({"id": call_id, "type": "function", "function": function})
            case kind:
                raise bad(at, f"is {kind!r}, which is not supported")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _others(role: str, content: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Return tool results, each a message, and texts that follow each other as one message."""
    messages: list[dict[str, Any]] = []
    for index, block in enumerate(content):
        at = f"{where}[{index}]"
        kind = block.get("type")
        if kind == "tool_result" and role == "user":
            messages.append(_result(block, at))
        elif kind != "text":
            raise bad(at, f"is {kind!r}, which is not supported")
        elif messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text_of(block, 'text', at)}"
        else:
            messages.append({"role": role, "content": text_of(block, "text", at)})
    return messages or [{"role": role, "content": ""}]


def _result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a tool's result. Chat cannot mark one as failed, so its text says so."""
    text = _text(block.get("content") or "", f"{where}.content")
    if block.get("is_error"):
        text = f"Error: {text}"
    call_id = text_of(block, "tool_use_id", where)
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _text(content: object, where: str) -> str:
    return content_text(content, where, separator="\n\n")
