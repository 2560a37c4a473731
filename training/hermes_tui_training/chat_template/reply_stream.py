"""Parses a reply while it is sampled: a character once it is whole, a tag once it is certain."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renderers.base import ParsedResponse, Renderer, ToolCallParseStatus

from hermes_tui_training.chat_template.detokenizer import BROKEN, Detokenizer, TokenTexts
from hermes_tui_training.chat_template.reply_parser import Reply, ToolCall, held_length, parse_reply

logger = logging.getLogger(__name__)

_PARSES = 64
"""A family's parser runs again once a reply has grown by this part of its length, so that parsing
all of a reply of n tokens costs about this many times n; up to 64 tokens it runs for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedReply:
    """A whole reply."""

    delta: dict[str, Any]
    """What earlier deltas did not have yet."""
    message: dict[str, Any]
    """OpenAI's assistant message."""


class ReplyStream:
    """One reply while it is sampled.

    Joining the deltas' content, reasoning and tool calls gives those of the final message.
    """

    def __init__(
        self,
        token_texts: TokenTexts,
        *,
        prompt_token_ids: Sequence[int],
        tools: Sequence[Mapping[str, Any]],
        stop: Sequence[str],
        stop_token_ids: Sequence[int],
        renderer: Renderer | None,
        reasoning_open: bool = False,
        raw: bool = False,
    ) -> None:
        """Begin.

        Args:
            renderer: parses the tokens of a family with a grammar of its own; None means the
                plain grammar of ``reply``.
            reasoning_open: whether the prompt already opened ``<think>``; plain grammar only.
            raw: whether all text is content, as after a raw prompt.
        """
        self._token_texts = token_texts
        self._detokenizer = Detokenizer(token_texts)
        self._tools = tools
        self._stop = tuple(stop)
        self._control_ids = token_texts.special_ids | frozenset(stop_token_ids)
        self._renderer = renderer
        self._prompt_token_ids = list(prompt_token_ids) if renderer is not None else []
        self._reasoning_open = reasoning_open
        self._raw = raw
        self._token_ids: list[int] = []
        self._text = ""
        self._sent_content = ""
        self._sent_reasoning = ""
        self._call_ids: list[str] = []
        self._parsed = Reply(content="")
        self._parse_at = 0

    def push(self, token_ids: Sequence[int]) -> tuple[dict[str, Any], list[str]]:
        """Take sampled tokens; return OpenAI's delta (may be empty) and each token's text."""
        texts = []
        for token_id in token_ids:
            self._token_ids.append(token_id)
            text = self._detokenizer.push(token_id)
            texts.append(text)
            if token_id in self._control_ids:
                text = text.removesuffix(self._token_texts.alone(token_id))
            self._text += text
        return self._delta(self._reply(complete=False, stop_text=None)), texts

    def finish(self, stop_text: str | None = None) -> FinishedReply:
        """Take the end; ``stop_text`` is the stop string that ended it and is left out."""
        self._text += self._detokenizer.rest
        reply = self._reply(complete=True, stop_text=stop_text)
        delta = self._delta(reply)
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["content"] = reply.content or None
            message["tool_calls"] = [
                _openai_call(call_id, call)
                for call_id, call in zip(self._call_ids, reply.tool_calls, strict=False)
            ]
        if reply.malformed:
            message["malformed_tool_calls"] = list(reply.malformed)
        return FinishedReply(delta=delta, message=message)

    @property
    def rest(self) -> str:
        """Text of the last tokens that is held back: half a character, or empty."""
        return self._detokenizer.rest

    def _reply(self, *, complete: bool, stop_text: str | None) -> Reply:
        if self._raw:
            return Reply(content=self._visible(self._text, complete, stop_text))
        if self._renderer is None:
            return parse_reply(
                self._visible(self._text, complete, stop_text),
                tools=bool(self._tools),
                complete=complete,
                reasoning_open=self._reasoning_open,
            )
        if not complete and len(self._token_ids) < self._parse_at:
            return self._parsed
        # Parsers of families begin anew each time: at growing distances they stay linear.
        self._parse_at = len(self._token_ids) + 1 + len(self._token_ids) // _PARSES
        parsed = self._renderer.parse_response(
            self._token_ids,
            tools=list(self._tools) or None,
            prompt_ids=self._prompt_token_ids,
        )
        self._parsed = self._from_parsed(parsed, complete, stop_text)
        return self._parsed

    def _from_parsed(self, parsed: ParsedResponse, complete: bool, stop_text: str | None) -> Reply:
        content = parsed.content
        calls, malformed = [], []
        for call in parsed.tool_calls:
            if call.status == ToolCallParseStatus.OK and self._tools:
                arguments = _arguments(call.arguments)
                calls.append(ToolCall(name=call.name or "", arguments=arguments, raw=call.raw))
            elif complete:  # what is no call is text; where it stood is not known any more
                content += call.raw
                malformed.append(f"a tool call cannot be made: {call.status}")
        content = self._visible(content, complete, stop_text)
        return Reply(
            content=content if complete else content.rstrip(BROKEN),
            reasoning=parsed.reasoning_content,
            tool_calls=tuple(calls),
            malformed=tuple(malformed if self._tools else ()),
        )

    def _visible(self, text: str, complete: bool, stop_text: str | None) -> str:
        """Return the text before a stop string, or before what may become one."""
        if complete:
            end = text.find(stop_text) if stop_text else -1
            return text if end == -1 else text[:end]
        found = [end for end in (text.find(stop) for stop in self._stop) if end != -1]
        if found:
            return text[: min(found)]
        return text[: len(text) - held_length(text, self._stop)]

    def _delta(self, reply: Reply) -> dict[str, Any]:
        """Return what a reply has that was not sent yet."""
        delta: dict[str, Any] = {}
        reasoning = _growth(self._sent_reasoning, reply.reasoning or "")
        if reasoning:
            self._sent_reasoning += reasoning
            delta["reasoning_content"] = reasoning
        content = _growth(self._sent_content, reply.content)
        if content:
            self._sent_content += content
            delta["content"] = content
        fresh = reply.tool_calls[len(self._call_ids) :]
        if fresh:
            first = len(self._call_ids)
            self._call_ids += [f"call_{secrets.token_hex(12)}" for _ in fresh]
            delta["tool_calls"] = [
                {"index": index, **_openai_call(self._call_ids[index], call)}
                for index, call in enumerate(fresh, start=first)
            ]
        return delta


def _growth(sent: str, now: str) -> str:
    """Return what was appended; nothing while a parser takes text back."""
    return now[len(sent) :] if now.startswith(sent) else ""


def _openai_call(call_id: str, call: ToolCall) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
