"""What a request says its reply must be: its schema, and whether and what it must call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_tui_common.openai import refuse_unknown
from hermes_tui_training.chat_template.grammar import (
    ANY_OBJECT,
    NO_ARGUMENTS,
    CallableTool,
    ReplyRules,
    Schema,
)
from hermes_tui_training.inference_gateway.chat_fields import bad

JSON_SCHEMA_FIELDS = ("name", "description", "schema", "strict")
"""Beside the schema; it is held to, ``strict`` or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNames:
    """What an API calls the fields that chat's are made from, for errors."""

    schema: str = "response_format.json_schema.schema"
    """Schema of the content."""
    parameters: str = "tools[{index}].function.parameters"
    """Schema of a tool's arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """What may be called."""

    names: frozenset[str]
    """Functions that may be called; empty: none."""
    must_call: bool = False
    """Whether one of them must be."""


def tool_choice(choice: Any, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    """Return the meaning of chat's ``tool_choice``.

    Args:
        tools: validated.

    Raises: ApiError: 400.
    """
    names = frozenset(tool["function"]["name"] for tool in tools)
    if choice is None or choice == "none":
        return ToolChoice(names=frozenset() if choice == "none" else names)
    if choice in ("auto", "required"):
        if not names:
            raise bad("tool_choice", f"= {choice!r} needs tools")
        return ToolChoice(names=names, must_call=choice == "required")
    match choice:
        case {"type": "function", "function": {"name": str(name)} as function}:
            refuse_unknown(choice, "tool_choice", ("type", "function"))
            refuse_unknown(function, "tool_choice.function", ("name",))
            _require_known([name], names)
            return ToolChoice(names=frozenset([name]), must_call=True)
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": mode, "tools": list(allowed)} as inner,
        }:
            refuse_unknown(choice, "tool_choice", ("type", "allowed_tools"))
            refuse_unknown(inner, "tool_choice.allowed_tools", ("mode", "tools"))
            if mode not in ("auto", "required"):
                raise bad("tool_choice.allowed_tools.mode", "must be 'auto' or 'required'")
            listed = [_allowed_name(tool, index) for index, tool in enumerate(allowed)]
            _require_known(listed, names)
            return ToolChoice(names=frozenset(listed), must_call=mode == "required")
    raise bad(
        "tool_choice",
        "must be 'none', 'auto', 'required', {'type': 'function', 'function': {'name': …}} or "
        "{'type': 'allowed_tools', …}",
    )


def _allowed_name(tool: Any, index: int) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise bad(f"tool_choice.allowed_tools.tools[{index}]", "must name a function")


def _require_known(listed: Sequence[str], names: frozenset[str]) -> None:
    for name in listed:
        if name not in names:
            raise bad("tool_choice", f"names {name!r}, which is not among the tools")


def reply_rules(
    *,
    tools: Sequence[Mapping[str, Any]],
    choice: ToolChoice,
    parallel: bool | None,
    response_format: Mapping[str, Any] | None,
    fields: FieldNames,
) -> ReplyRules | None:
    """Return what the reply is held to while it is sampled; None when it is free.

    Args:
        tools: in OpenAI's format, validated.
        parallel: ``parallel_tool_calls``.
        response_format: chat's.

    Raises: ApiError: 400.
    """
    schema = _content_schema(response_format)
    offered = [(i, tool["function"]) for i, tool in enumerate(tools)]
    callable_tools = tuple(
        CallableTool(
            name=function["name"],
            parameters=_arguments(function),
            is_held=choice.must_call or bool(function.get("strict")),
            field=fields.parameters.format(index=index),
        )
        for index, function in offered
        if function["name"] in choice.names
    )
    is_free = (
        schema is None
        and not choice.must_call
        and not (callable_tools and parallel is False)
        and not any(tool.is_held for tool in callable_tools)
        and len(callable_tools) in (0, len(tools))
    )
    if is_free:
        return None
    return ReplyRules(
        schema=schema,
        schema_field=fields.schema,
        tools=callable_tools,
        must_call=choice.must_call,
        max_calls=1 if parallel is False else None,
    )


def _content_schema(response_format: Mapping[str, Any] | None) -> Schema | None:
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            refuse_unknown(response_format, "response_format", ("type",))
            return ANY_OBJECT
        case {"type": "json_schema", "json_schema": {"schema": Mapping() as schema} as inner}:
            refuse_unknown(response_format, "response_format", ("type", "json_schema"))
            refuse_unknown(inner, "response_format.json_schema", JSON_SCHEMA_FIELDS)
            return schema
        case {"type": "json_schema"}:
            raise bad("response_format.json_schema.schema", "must be a JSON schema")
    raise bad("response_format.type", "must be 'text', 'json_object' or 'json_schema'")


def _arguments(function: Mapping[str, Any]) -> Schema:
    """Return the schema of a function's arguments; one without parameters takes none."""
    parameters = function.get("parameters")
    return NO_ARGUMENTS if parameters is None else parameters
