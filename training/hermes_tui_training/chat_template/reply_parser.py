"""A reply's text taken apart while it grows: reasoning, content, tool calls.

The grammar: ``<think>…</think>`` first, if at all; then content; ``<tool_call>{json}</tool_call>``
anywhere in it. It is applied to what the model sampled, never to a prompt. A tag that is not
complete, and JSON that names no function, stay content; ``malformed`` says why they are no calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool, as the model wrote it."""

    name: str
    """Function to call."""
    arguments: str
    """A JSON object, its keys in the model's order."""
    raw: str
    """What stood between the tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply, or as much of it as can be told so far."""

    content: str
    """Text for the person."""
    reasoning: str | None = None
    """Text the model thought with; None without any."""
    reasoning_open: bool = False
    """Whether the model has not finished thinking."""
    tool_calls: tuple[ToolCall, ...] = field(default=())
    """Calls, in order."""
    malformed: tuple[str, ...] = ()
    """Of each call that was meant but cannot be made, and is content: why."""


def held_length(text: str, markers: Sequence[str]) -> int:
    """Return how many last characters may be the beginning of a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(marker.startswith(tail) for marker in markers):
            return length
    return 0


def parse_reply(
    text: str, *, tools: bool, complete: bool = True, reasoning_open: bool = False
) -> Reply:
    """Take a reply apart.

    Args:
        text: what was sampled, without the stop token.
        tools: whether tools were offered; without them a tag is text like any other.
        complete: whether nothing will follow. Otherwise what may still become a tag, or belongs
            to a call that is not closed yet, is left out.
        reasoning_open: whether the prompt already opened ``<think>``.
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
    """Return reasoning, what follows it, and whether reasoning is still open."""
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


def _split_calls(text: str, complete: bool) -> tuple[str, list[ToolCall], list[str]]:
    """Return content without the calls, the calls, and why others are none.

    Blank lines around calls are no content.
    """
    pieces: list[str] = []
    calls: list[ToolCall] = []
    malformed: list[str] = []
    for piece, call in _pieces(text, complete):
        pieces.append(piece)
        if isinstance(call, ToolCall):
            calls.append(call)
        elif call is not None:
            malformed.append(call)
    if calls or not complete:
        pieces = [piece for piece in pieces if piece.strip()]
    return "".join(pieces), calls, malformed


def _pieces(text: str, complete: bool) -> Iterator[tuple[str, ToolCall | str | None]]:
    """Yield text and the call after it; why the end of the text is no call; or None."""
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
    """Return the call that a JSON object describes, or why it describes none."""
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
