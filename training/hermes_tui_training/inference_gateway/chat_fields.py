"""Checks the messages and tools of a chat request, which those of all other APIs become.

Every field at every depth is honoured, or refused with its path. Those that only repeat what was
answered, and change nothing, are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_tui_common.errors import ApiError
from hermes_tui_common.openai import check_message_fields, content_text, refuse_unknown

_ROLES = ("user", "assistant", "tool", "system", "developer")

_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")


def bad(param: str, what: str) -> ApiError:
    """Return the refusal of a field: a 400 that names it."""
    return ApiError(400, f"'{param}' {what}.", param=param)


def text_of(item: Mapping[str, Any], key: str, where: str) -> str:
    """Return a field of a part of the request that must be a text; ``where`` names the part.

    Raises: ApiError: 400.
    """
    value = item.get(key)
    if not isinstance(value, str):
        raise bad(f"{where}.{key}", "must be a text")
    return value


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Check tools in chat's shape.

    Raises: ApiError: 400.
    """
    for index, tool in enumerate(tools):
        function = tool.get("function")
        where = f"tools[{index}]"
        if tool.get("type") != "function" or not isinstance(function, Mapping):
            raise bad(where, "must be {'type': 'function', 'function': {…}}")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise bad(f"{where}.function.name", "must be a text")
        if not isinstance(function.get("parameters", {}), Mapping | None):
            raise bad(f"{where}.function.parameters", "must be an object")
        if not isinstance(function.get("strict"), bool | None):
            raise bad(f"{where}.function.strict", "must be true or false")
        refuse_unknown(tool, where, ("type", "function"))
        refuse_unknown(function, f"{where}.function", _FUNCTION_FIELDS)


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Check a conversation in chat's shape.

    Raises: ApiError: 400.
    """
    for index, message in enumerate(messages):
        if not _is_plain_text(message):
            _check_message(message, f"messages[{index}]")


def _is_plain_text(message: Mapping[str, Any]) -> bool:
    """Whether a message is a role and a text, as most of a long history are."""
    if len(message) != 2 or message.get("role") not in _ROLES:
        return False
    return isinstance(message.get("content"), str)


def _check_message(message: Mapping[str, Any], where: str) -> None:
    role = message.get("role")
    if role not in _ROLES:
        raise bad(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
    calls = message.get("tool_calls")
    if message.get("content") is not None or not calls:
        content_text(message.get("content"), f"{where}.content")
    if calls is not None:
        _check_calls(calls, f"{where}.tool_calls", role)
    for key in ("name", "tool_call_id", "reasoning_content"):
        if not isinstance(message.get(key), str | None):
            raise bad(f"{where}.{key}", "must be a text")
    check_message_fields(message, where)


def _check_calls(calls: Any, where: str, role: str) -> None:
    if role != "assistant":
        raise bad(where, "belongs to assistant messages")
    if not isinstance(calls, list):
        raise bad(where, "must be a list")
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise bad(f"{where}[{index}]", "must have a function with a name")
        if not isinstance(function.get("arguments"), str | Mapping):
            raise bad(f"{where}[{index}].function.arguments", "must be a JSON text")
