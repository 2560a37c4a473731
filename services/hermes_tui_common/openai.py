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
        texts.append(text)
    return separator.join(texts)


def _bad(param: str, what: str) -> ApiError:
    return ApiError(400, f"'{param}' {what}.", param=param)
