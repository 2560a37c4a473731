"""OpenAI's chat messages: the text of their content, which is a string or a list of parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hermes_tui_common.errors import ApiError


def message_text(message: Mapping[str, Any]) -> str:
    """Return a message's text: parts are joined, what is not text counts as empty."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))


def refuse_unknown(
    item: Mapping[str, Any],
    where: str,
    known: Collection[str],
) -> None:
    """Refuse the fields of a part of a request that are not known.

    A null and an empty list or object ask for nothing: clients send what they were answered.

    Args:
        where: the part's path, for the error.
        known: fields that are honoured, or change nothing that is answered.

    Raises: ApiError: 400 with the field's path.
    """
    for key, value in item.items():
        if key not in known and value not in (None, [], {}):
            raise _bad(f"{where}.{key}", "is not supported; leave it out")


_MESSAGE_FIELDS = ("role", "content")
_FIELDS_BY_ROLE = {
    "assistant": (
        *_MESSAGE_FIELDS,
        "tool_calls",
        "reasoning_content",
        "malformed_tool_calls",
        "parsed",
    ),
    "tool": (*_MESSAGE_FIELDS, "tool_call_id", "name"),  # the function's, which the call says too
}
_CALL_FIELDS = ("id", "type", "function", "index")
_CALLED_FIELDS = ("name", "arguments", "parsed_arguments")


def check_message_fields(message: Mapping[str, Any], where: str) -> None:
    """Refuse the fields of a chat message that are not known, at every depth but its content's.

    Raises: ApiError: 400 with the field's path.
    """
    known = _FIELDS_BY_ROLE.get(str(message.get("role")), _MESSAGE_FIELDS)
    refuse_unknown(message, where, known)
    calls = message.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        at = f"{where}.tool_calls[{index}]"
        if isinstance(call, Mapping):
            refuse_unknown(call, at, _CALL_FIELDS)
            if isinstance(function := call.get("function"), Mapping):
                refuse_unknown(function, f"{at}.function", _CALLED_FIELDS)


PART_FIELDS = ("type", "text", "cache_control", "annotations", "logprobs", "parsed")
"""Fields of a text part; all but the first two are told by answers, or change nothing."""


def content_text(
    content: object, where: str, *, kinds: Collection[str] = ("text",), separator: str = ""
) -> str:
    """Return the text of a content that a client sent: a string, or a list of text parts.

    Args:
        content: what was sent.
        where: the field's name, for the error.
        kinds: types of the parts that are taken.
        separator: what joins the parts.

    Raises: ApiError: 400 that names the field, or the part that is not text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad(where, "must be a text or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        at = f"{where}[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind not in kinds:
            raise _bad(at, f"is {kind!r}; only text parts are supported")
        text = part.get("text")
        if not isinstance(text, str):
            raise _bad(f"{at}.text", "must be a text")
        refuse_unknown(part, at, PART_FIELDS)
        texts.append(text)
    return separator.join(texts)


def _bad(param: str, what: str) -> ApiError:
    return ApiError(400, f"'{param}' {what}.", param=param)
