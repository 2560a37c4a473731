"""The grammar of tags in a reply, and its parser: reasoning, content, tool calls.

The grammar: an optional ``<think>…</think>`` first; then content, with
``<tool_call>{json}</tool_call>`` anywhere in it. It is applied to sampled text, never to a prompt.
A call that is not valid stays content; ``Reply.malformed`` says why it is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

_MARKUP = re.compile(
    rf"{THINK_OPEN}.*?({THINK_CLOSE}|\Z)|{CALL_OPEN}.*?({CALL_CLOSE}|\Z)", re.DOTALL
)
"""Reasoning and calls anywhere in a text, closed or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call of the model."""

    name: str
    """Name of the function."""
    arguments: str
    """A JSON object, its keys in the model's order."""
    raw: str
    """The text between the tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A parsed reply, or the part of it that is certain so far."""

    content: str
    """Text for the user."""
    reasoning: str | None = None
    """The model's reasoning; None if it has none."""
    reasoning_open: bool = False
    """True while the reasoning is not closed."""
    tool_calls: tuple[ToolCall, ...] = field(default=())
    """Valid calls, in order."""
    malformed: tuple[str, ...] = ()
    """Why each invalid call is none; its text is part of the content."""


def held_length(text: str, markers: Sequence[str]) -> int:
    """Return how many characters at the end may be the beginning of a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(marker.startswith(tail) for marker in markers):
            return length
    return 0


def parse_reply(
    text: str, *, tools: bool, complete: bool = True, reasoning_open: bool = False
) -> Reply:
    """Parse a reply.

    Args:
        text: the sampled text, without the stop token.
        tools: whether tools were offered; if not, call tags are plain text.
        complete: False while more text may follow. The beginning of a possible tag, and a call that
            is not closed, are then left out.
        reasoning_open: True if the prompt already opened ``<think>``.
    """
    reasoning, rest, is_open = _split_reasoning(text, complete, reasoning_open)
    if is_open:
        return Reply(content="", reasoning=reasoning, reasoning_open=True)
    if not tools:
        return Reply(content=rest, reasoning=reasoning)
    content, calls, malformed = _split_calls(rest, complete)
    return Reply(
        content=content, reasoning=reasoning, tool_calls=tuple(calls), malformed=tuple(malformed)
    )


def _split_reasoning(
    text: str, complete: bool, reasoning_open: bool
) -> tuple[str | None, str, bool]:
    """Return the reasoning, the text after it, and whether the reasoning is still open."""
    start = 0
    if not reasoning_open:
        body = text.lstrip()
        if not body.startswith(THINK_OPEN):
            undecided = not complete and THINK_OPEN.startswith(body)
            return None, "" if undecided else text, False
        start = len(text) - len(body) + len(THINK_OPEN)
    end = text.find(THINK_CLOSE, start)
    if end == -1:
        held = 0 if complete else held_length(text[start:], [THINK_CLOSE])
        return text[start : len(text) - held], "", True
    return text[start:end], text[end + len(THINK_CLOSE) :].lstrip("\n"), False


def without_markup(text: str) -> str:
    """Return a text without reasoning and calls, wherever they are and closed or not."""
    return _MARKUP.sub("", text)


def write_call(name: str, arguments: str) -> str:
    """Return a call as the grammar writes it.

    Args:
        arguments: a JSON object.
    """
    quoted = json.dumps(name, ensure_ascii=False)
    return f'{CALL_OPEN}\n{{"name": {quoted}, "arguments": {arguments}}}\n{CALL_CLOSE}'


def _split_calls(text: str, complete: bool) -> tuple[str, list[ToolCall], list[str]]:
    """Return the content, the calls, and why invalid calls are none.

    White space around calls is left out.
    """
    parts: list[str] = []
    calls: list[ToolCall] = []
    malformed: list[str] = []
    for part, call in _parts(text, complete):
        parts.append(part)
        if isinstance(call, ToolCall):
            calls.append(call)
        elif call is not None:
            malformed.append(call)
    if calls or not complete:
        parts = [part for part in parts if part.strip()]
    return "".join(parts), calls, malformed


def _parts(text: str, complete: bool) -> Iterator[tuple[str, ToolCall | str | None]]:
    """Yield content and the call after it; or why the content ends in no call; or None."""
    position = 0
    while True:
        start = text.find(CALL_OPEN, position)
        if start == -1:
            tail = text[position:]
            held = 0 if complete else held_length(tail, [CALL_OPEN])
            yield tail[: len(tail) - held], None
            return
        end = text.find(CALL_CLOSE, start)
        if end == -1 and not complete:
            yield text[position:start], None
            return
        stop = len(text) if end == -1 else end
        call = _call(text[start + len(CALL_OPEN) : stop])
        after = stop + (len(CALL_CLOSE) if end != -1 else 0)
        yield text[position : start if isinstance(call, ToolCall) else after], call
        position = after


def _call(raw: str) -> ToolCall | str:
    """Return the call in a JSON object, or why there is none."""
    try:
        parsed = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return f"a tool call is not JSON: {error}"
    if not isinstance(parsed, dict):
        return "a tool call is not a JSON object"
    name, arguments = parsed.get("name"), parsed.get("arguments", {})
    if not isinstance(name, str) or not name:
        return "a tool call names no function"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            return f"the arguments of {name} are not JSON: {error}"
    if not isinstance(arguments, dict):
        return f"the arguments of {name} are not a JSON object"
    text = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name=name, arguments=text, raw=raw.strip())


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
