"""Parses a reply while it is sampled: a character once it is whole, a tag once it is certain."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hermes_tui_training.chat_template.detokenizer import Detokenizer, TokenTexts
from hermes_tui_training.chat_template.family_parser import FamilyParser
from hermes_tui_training.chat_template.reply_parser import (
    TAGS,
    Reply,
    ReplyParser,
    ToolCall,
    held_length,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedReply:
    """A whole reply."""

    delta: dict[str, Any]
    """What earlier deltas did not have yet."""
    message: dict[str, Any]
    """OpenAI's assistant message."""


class ReplyStream:
    """One reply while it is sampled.

    The deltas' content, reasoning and tool calls, joined, are those of the finished message.
    """

    def __init__(
        self,
        token_texts: TokenTexts,
        parser: ReplyParser | FamilyParser,
        *,
        stop: Sequence[str],
        stop_token_ids: Sequence[int],
    ) -> None:
        """
        Args:
            parser: has taken nothing yet.
            stop: texts that end the reply and are not part of it.
            stop_token_ids: tokens that end the reply and are not part of it.
        """
        self._token_texts = token_texts
        self._detokenizer = Detokenizer(token_texts)
        self._parser = parser
        self._stop = tuple(stop)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._text = ""
        self._num_fed = 0
        self._sent = Reply(content="")
        self._call_ids: list[str] = []

    def push(self, token_ids: Sequence[int]) -> tuple[dict[str, Any], list[str]]:
        """Take sampled tokens; return OpenAI's delta (may be empty) and each token's text."""
        texts = [self._detokenizer.push(token_id) for token_id in token_ids]
        if isinstance(self._parser, FamilyParser):
            return self._delta(self._within_stops(self._parser.feed(token_ids))), texts
        for token_id, text in zip(token_ids, texts, strict=True):
            self._text += self._without_control(token_id, text)
        self._feed(self._parser, self._visible(self._text))
        return self._delta(self._parser.reply), texts

    def finish(self, stop_text: str | None = None) -> FinishedReply:
        """Take the end; ``stop_text`` is the stop text that ended the reply."""
        if isinstance(self._parser, FamilyParser):
            reply = self._parser.finish()
            if stop_text:
                reply = self._cut(reply, lambda text: text.partition(stop_text)[0])
        else:
            text = self._text + self.rest
            self._feed(self._parser, text.partition(stop_text)[0] if stop_text else text)
            self._parser.finish()
            reply = self._parser.reply
        delta = self._delta(reply)
        message: dict[str, Any] = {"role": "assistant", "content": self._sent.content}
        if self._sent.reasoning:
            message["reasoning_content"] = self._sent.reasoning
        if reply.tool_calls:
            message["content"] = self._sent.content or None
            message["tool_calls"] = [
                _openai_call(call_id, call)
                for call_id, call in zip(self._call_ids, reply.tool_calls, strict=True)
            ]
        if reply.malformed:
            message["malformed_tool_calls"] = list(reply.malformed)
        return FinishedReply(delta=delta, message=message)

    @property
    def rest(self) -> str:
        """Text of the last tokens that is held back: half a character, or empty."""
        return self._detokenizer.rest

    def _without_control(self, token_id: int, text: str) -> str:
        """Return a token's part of the message: none of its own if it is a control token."""
        name = self._token_texts.alone(token_id)
        ends = token_id in self._stop_token_ids
        if ends or (token_id in self._token_texts.special_ids and name not in TAGS):
            return text.removesuffix(name)
        return text

    def _feed(self, parser: ReplyParser, text: str) -> None:
        parser.feed(text[self._num_fed :])
        self._num_fed = max(self._num_fed, len(text))

    def _visible(self, text: str) -> str:
        """Return the text before a stop text, or before what may become one."""
        if not self._stop:
            return text
        found = [end for end in (text.find(stop) for stop in self._stop) if end != -1]
        if found:
            return text[: min(found)]
        return text[: len(text) - held_length(text, self._stop)]

    def _within_stops(self, reply: Reply) -> Reply:
        return self._cut(reply, self._visible) if self._stop else reply

    @staticmethod
    def _cut(reply: Reply, cut: Callable[[str], str]) -> Reply:
        reasoning = None if reply.reasoning is None else cut(reply.reasoning)
        return replace(reply, content=cut(reply.content), reasoning=reasoning)

    def _delta(self, reply: Reply) -> dict[str, Any]:
        """Return what a reply has that was not sent yet, and note that it is sent."""
        delta: dict[str, Any] = {}
        reasoning = _growth(self._sent.reasoning or "", reply.reasoning or "")
        if reasoning:
            delta["reasoning_content"] = reasoning
        content = _growth(self._sent.content, reply.content)
        if content:
            delta["content"] = content
        self._sent = Reply(
            content=self._sent.content + content,
            reasoning=(self._sent.reasoning or "") + reasoning,
        )
        first = len(self._call_ids)
        new = reply.tool_calls[first:]
        if new:
            self._call_ids += [f"call_{secrets.token_hex(12)}" for _ in new]
            delta["tool_calls"] = [
                {"index": index, **_openai_call(self._call_ids[index], call)}
                for index, call in enumerate(new, start=first)
            ]
        return delta


def _growth(sent: str, now: str) -> str:
    """Return what was appended; a family's parser may change its mind, a client cannot."""
    if now.startswith(sent):
        return now[len(sent) :]
    logger.debug("a reply was parsed differently once it was longer")
    return ""


def _openai_call(call_id: str, call: ToolCall) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
