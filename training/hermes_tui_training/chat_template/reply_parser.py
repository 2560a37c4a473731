"""The grammar of tags in a reply, and its parser: reasoning, content, tool calls.

The grammar: an optional ``<think>…</think>`` first; then content, with
``<tool_call>{json}</tool_call>`` anywhere in it. It is applied to sampled text, never to a prompt.

* All text inside ``<think>`` is reasoning, calls included; without ``</think>`` the whole reply is.
* A call ends where its JSON object ends, so that its strings may contain tags.
* A call that is not valid is content, up to the next ``</tool_call>``.
* A call in which the reply ends is neither a call nor content.

``Reply.malformed`` says why a call is none. The parser reads from left to right and never takes
back what it returned, so a reply is the same whether its text arrives whole or in parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
TAGS = frozenset({THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE})
"""Part of the text even where a tokenizer has control tokens for them."""

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
    """Why each call that is not valid is none."""


def held_length(text: str, markers: Sequence[str]) -> int:
    """Return how many characters at the end may be the beginning of a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(marker.startswith(tail) for marker in markers):
            return length
    return 0


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


def parse_reply(
    text: str, *, tools: bool, reasoning_open: bool = False, trim: bool = False
) -> Reply:
    """Parse a whole reply; see ``ReplyParser`` for the arguments."""
    parser = ReplyParser(tools=tools, reasoning_open=reasoning_open, trim=trim)
    parser.feed(text)
    parser.finish()
    return parser.reply


class ReplyParser:
    """Parses a reply that arrives in parts."""

    def __init__(
        self, *, tools: bool, reasoning_open: bool = False, trim: bool = False, raw: bool = False
    ) -> None:
        """
        Args:
            tools: whether tools were offered; if not, call tags are plain text.
            reasoning_open: True if the prompt already opened ``<think>``.
            trim: whether to strip white space around reasoning and content.
            raw: whether the whole reply is content, as after a raw prompt.
        """
        self._tools = tools
        self._pending = ""
        self._scanner = _ObjectScanner(0)
        self._reasoning: _Growing | None = _Growing(trim) if reasoning_open else None
        self._content = _Growing(trim)
        self._calls: list[ToolCall] = []
        self._malformed: list[str] = []
        state = self._in_reasoning if reasoning_open else self._at_start
        self._state: Callable[[bool], bool] = self._in_content if raw else state

    @property
    def reply(self) -> Reply:
        """What is certain so far; its texts and calls only grow."""
        return Reply(
            content=self._content.text,
            reasoning=None if self._reasoning is None else self._reasoning.text,
            reasoning_open=self._state == self._in_reasoning,
            tool_calls=tuple(self._calls),
            malformed=tuple(self._malformed),
        )

    def feed(self, text: str) -> None:
        """Take the next part of the sampled text; the stop token is not part of it."""
        self._pending += text
        while self._pending and self._state(False):
            pass

    def finish(self) -> None:
        """Take the end of the text."""
        while self._pending and self._state(True):
            pass
        if self._reasoning is not None:
            self._reasoning.end()
        if not self._calls:
            self._content.end()

    # Each state consumes pending text. It returns whether the next one can go on with the rest.

    def _at_start(self, final: bool) -> bool:
        body = self._pending.lstrip()
        if body.startswith(THINK_OPEN):
            self._pending = body[len(THINK_OPEN) :]
            self._reasoning = _Growing(self._content.trim)
            self._state = self._in_reasoning
            return True
        if THINK_OPEN.startswith(body) and not final:
            return False
        self._state = self._in_content
        return True

    def _in_reasoning(self, final: bool) -> bool:
        assert self._reasoning is not None
        text, found = self._take_until(THINK_CLOSE, final)
        self._reasoning.add(text)
        if found:
            self._pending = self._pending[len(THINK_CLOSE) :]
            self._state = self._after_reasoning
        return found

    def _after_reasoning(self, final: bool) -> bool:
        self._pending = self._pending.lstrip("\n")
        if self._pending:
            self._state = self._in_content
        return bool(self._pending)

    def _in_content(self, final: bool) -> bool:
        if not self._tools:
            self._content.add(self._pending)
            self._pending = ""
            return False
        text, found = self._take_until(CALL_OPEN, final)
        self._content.add(text)
        if found:
            self._scanner = _ObjectScanner(len(CALL_OPEN))
            self._state = self._in_call
        return found

    def _in_call(self, final: bool) -> bool:
        """Wait for the whole call; until then it is not decided what it is."""
        end = self._scanner.advance(self._pending)
        if self._scanner.is_broken:
            return self._take_call(self._pending[len(CALL_OPEN) : self._scanner.position + 1], "")
        if end is None:
            if final:
                self._malformed.append("a tool call is not complete")
                self._pending = ""
            return False
        raw, after = self._pending[len(CALL_OPEN) : end], self._pending[end:].lstrip()
        if after.startswith(CALL_CLOSE):
            return self._take_call(raw, after[len(CALL_CLOSE) :])
        if not CALL_CLOSE.startswith(after):
            return self._take_call(raw + after[0], "")  # one character too many is no JSON
        return self._take_call(raw, "") if final else False

    def _take_call(self, raw: str, rest: str) -> bool:
        call = _read_call(raw)
        if isinstance(call, ToolCall):
            self._calls.append(call)
            self._content.drop_blank()
            self._pending = rest
            self._state = self._in_content
        else:
            self._malformed.append(call)
            self._state = self._in_broken_call
        return True

    def _in_broken_call(self, final: bool) -> bool:
        text, found = self._take_until(CALL_CLOSE, final)
        self._content.add(text)
        if found:
            self._content.add(CALL_CLOSE)
            self._pending = self._pending[len(CALL_CLOSE) :]
            self._state = self._in_content
        return found

    def _take_until(self, tag: str, final: bool) -> tuple[str, bool]:
        """Remove and return the text before a tag, and whether the tag is there.

        The beginning of a possible tag stays pending, unless the text is final.
        """
        end = self._pending.find(tag)
        found = end != -1
        if not found:
            held = 0 if final else held_length(self._pending, [tag])
            end = len(self._pending) - held
        text, self._pending = self._pending[:end], self._pending[end:]
        return text, found


class _Growing:
    """A text that only grows; white space that may not belong to it is held back."""

    def __init__(self, trim: bool) -> None:
        self.text = ""
        self.trim = trim
        self._held = ""
        self._is_blank = True  # since the beginning, or since the last call

    def add(self, text: str) -> None:
        """Append a text."""
        text = self._held + text
        if self.trim:
            text = text if self.text else text.lstrip()
            certain = text.rstrip()
        else:
            certain = "" if self._is_blank and not text.strip() else text
        self._held = text[len(certain) :]
        self._is_blank = self._is_blank and not certain
        self.text += certain

    def drop_blank(self) -> None:
        """Drop white space since the last call, if there is nothing else."""
        if not self.trim:
            self._held, self._is_blank = "", True

    def end(self) -> None:
        """Append what is held back, unless the text is trimmed."""
        if not self.trim:
            self.text += self._held
            self._held = ""


class _ObjectScanner:
    """Finds the end of a JSON object in a text that grows; looks at brackets and strings only."""

    _STRING = re.compile(r'[^"\\\x00-\x1f]*')
    _BETWEEN = re.compile(r'[^"{}\[\]<]*')

    def __init__(self, start: int) -> None:
        self.position = start
        """Index of the next character."""
        self.is_broken = False
        """True once the text cannot become an object any more, because of this character."""
        self._end: int | None = None
        self._depth = 0
        self._in_string = False

    def advance(self, text: str) -> int | None:
        """Return the index after the object, or None; ``text`` begins with what it was before."""
        while self._end is None and not self.is_broken and self.position < len(text):
            run = self._STRING if self._in_string else self._BETWEEN
            match = run.match(text, self.position)
            assert match is not None, "it matches the empty text"
            if not self._depth and match[0].strip():
                self.position += len(match[0]) - len(match[0].lstrip())
                self.is_broken = True
                break
            self.position = match.end()
            character = text[self.position : self.position + 1]
            if character == "\\" and self._in_string:
                if self.position + 1 == len(text):
                    break  # what it escapes has not arrived
                self.position += 1
            elif character:
                self._take(character)
            self.position += bool(character) and not self.is_broken
        return self._end

    def _take(self, character: str) -> None:
        if self._in_string:
            self._in_string = character != '"'
            self.is_broken = character != '"'  # a control character
        elif not self._depth and character != "{":
            self.is_broken = True
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            if not self._depth:
                self._end = self.position + 1
        else:  # no JSON has a < between its strings
            self.is_broken = True


def _read_call(raw: str) -> ToolCall | str:
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
