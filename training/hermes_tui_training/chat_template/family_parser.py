"""Replies of model families that have a grammar of their own, through the family's renderer."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from renderers.base import ParsedResponse, ParsedToolCall, Renderer, ToolCallParseStatus
from renderers.llama_3 import Llama3Renderer

from hermes_tui_training.chat_template.detokenizer import BROKEN, TokenTexts
from hermes_tui_training.chat_template.reply_parser import (
    THINK_CLOSE,
    THINK_OPEN,
    Reply,
    ToolCall,
    held_length,
)

logger = logging.getLogger(__name__)

_PARSES = 64
"""A renderer parses from the beginning each time. It runs again once a reply has grown by this part
of its length, so that parsing a reply of n tokens costs about this many times n. Up to this many
tokens it runs for each."""


class FamilyParser:
    """Parses a reply whose tokens arrive in parts.

    Renderers parse whole replies only, and the parse of a beginning may be wrong: a call that was
    found turns out to be reasoning. So calls are returned at the end. Content and reasoning that
    were returned are never taken back.
    """

    def __init__(
        self,
        renderer: Renderer,
        token_texts: TokenTexts,
        *,
        prompt_token_ids: Sequence[int],
        tools: Sequence[Mapping[str, Any]],
    ) -> None:
        self._renderer = renderer
        self._token_texts = token_texts
        self._prompt_token_ids = list(prompt_token_ids)
        self._tools = list(tools)
        # A call of Llama 3 is a reply that is a JSON object, which is known once it is whole.
        self._calls_are_bare = bool(tools) and isinstance(renderer, Llama3Renderer)
        self._token_ids: list[int] = []
        self._parse_at = 0
        self._reply = Reply(content="")

    def feed(self, token_ids: Sequence[int]) -> Reply:
        """Take sampled tokens; return the reply as far as it is known."""
        self._token_ids += token_ids
        if len(self._token_ids) >= self._parse_at:
            self._parse_at = len(self._token_ids) + 1 + len(self._token_ids) // _PARSES
            self._reply = self._beginning(self._parse())
        return self._reply

    def finish(self) -> Reply:
        """Return the whole reply."""
        parsed = self._parse()
        content, calls, malformed = parsed.content, [], []
        for call in parsed.tool_calls:
            if call.status == ToolCallParseStatus.OK and self._tools:
                arguments = _arguments(call.arguments)
                calls.append(ToolCall(name=call.name or "", arguments=arguments, raw=call.raw))
                continue
            if self._tools:
                malformed.append(f"a tool call cannot be made: {call.status}")
            if not (self._tools and call.status == ToolCallParseStatus.UNCLOSED_BLOCK):
                content += self._text_of(call)  # its place in the content is not known
        return Reply(
            content=content,
            # Renderers strip reasoning once it is closed: the beginning must not have more.
            reasoning=parsed.reasoning_content and parsed.reasoning_content.strip(),
            reasoning_open=parsed.reasoning_complete is False,
            tool_calls=tuple(calls),
            malformed=tuple(malformed),
        )

    def _parse(self) -> ParsedResponse:
        return self._renderer.parse_response(
            self._token_ids, tools=self._tools or None, prompt_ids=self._prompt_token_ids
        )

    def _beginning(self, parsed: ParsedResponse) -> Reply:
        """Return the part of a parse that is likely to stay."""
        reasoning = parsed.reasoning_content
        is_call = self._calls_are_bare and parsed.content.startswith("{")
        return Reply(
            content="" if is_call else _certain(parsed.content),
            reasoning=None if reasoning is None else _certain(reasoning).lstrip(),
        )

    def _text_of(self, call: ParsedToolCall) -> str:
        """Return a call as the model wrote it."""
        if call.token_span is None:
            return str(call.raw)
        start, end = call.token_span
        return "".join(self._token_texts.in_sequence(self._token_ids[start:end]))


def _certain(text: str) -> str:
    """Return a text without an end that may change: half a character, half a tag, white space."""
    text = text.rstrip(BROKEN)
    return text[: len(text) - held_length(text, [THINK_OPEN, THINK_CLOSE])].rstrip()


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
