"""What a request asks of a chat template, and the prompt that comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_tui_training.chat_template.prefix_match import (
    Canonical,
    Recorded,
    canonical,
    canonical_request,
    context_key,
    shared_length,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt for the engine, and the completion that it continues."""

    token_ids: tuple[int, ...]
    """Its tokens."""
    prefix: dict[str, Any]
    """``parent_completion_id`` (or None), ``shared_token_count`` (length of the common prefix with
    the parent's prompt and sampled tokens), ``first_difference`` (None, or ``index``,
    ``recorded_token_id``, ``token_id``, their texts, and ``why`` as a sentence)."""
    request: Canonical = ()
    """The request's messages in canonical form; empty for a raw prompt."""
    context: str = ""
    """Tools and template settings, see ``Recorded.context``."""
    messages: Sequence[Mapping[str, Any]] = ()
    """The messages as they were sent. Those of the parent's request are the same objects: a
    conversation is in memory once, not once per turn."""
    num_parent_tokens: int = 0
    """Prompt and sampled tokens of the parent; the prompt continues it if it shares all of them."""
    num_shared_messages: int = 0
    """How many messages at the beginning are those of the parent's request."""
    is_begun: bool = False
    """True if it ends within a reply: with the text of the assistant's last message."""

    @property
    def continues_parent(self) -> bool:
        """True if it begins with all tokens of its parent, or has none."""
        shared: int = self.prefix["shared_token_count"]
        return shared == self.num_parent_tokens


NO_PARENT: dict[str, Any] = {
    "parent_completion_id": None,
    "shared_token_count": 0,
    "first_difference": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """A request, prepared for comparison with the recorded completions."""

    messages: Sequence[Mapping[str, Any]]
    """As they were sent."""
    tools: list[Any] | None
    """In OpenAI's format; None without tools."""
    history: int
    """Number of messages up to the last assistant message; 0 without one."""
    canonical: Canonical
    """All messages in canonical form."""
    extended: Recorded | None
    """The newest completion whose request the messages begin with, unchanged."""
    context: str
    """Tools and template settings."""

    @classmethod
    def of(
        cls,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        template: Mapping[str, Any],
        parents: Sequence[Recorded],
    ) -> PromptRequest:
        """Prepare a request; see ``Chat.prompt`` for the arguments."""
        canonical_messages, extended = canonical_request(messages, parents)
        return cls(
            messages=messages,
            tools=list(tools) or None,
            history=_after_last_assistant(messages),
            canonical=canonical_messages,
            extended=extended,
            context=context_key(tools, template),
        )

    @property
    def canonical_history(self) -> Canonical:
        """The messages up to the last assistant message, in canonical form."""
        after = len(canonical(self.messages[self.history :]))
        return self.canonical[: len(self.canonical) - after]

    def parent(self, parents: Sequence[Recorded]) -> Recorded | None:
        """Return the newest completion that the history ends with, or None."""
        history = self.canonical_history
        for parent in reversed(parents):
            if not parent.request or parent.context != self.context:
                continue
            if parent.conversation == history:
                return parent
        return None

    def prompt(
        self,
        token_ids: tuple[int, ...],
        prefix: dict[str, Any],
        parent: Recorded | None,
        *,
        is_begun: bool = False,
    ) -> Prompt:
        """Return the prompt of this request."""
        shared = self._num_shared(parent)
        known = parent.messages[:shared] if parent is not None else ()
        return Prompt(
            token_ids=token_ids,
            prefix=prefix,
            request=self.canonical,
            context=self.context,
            messages=[*known, *self.messages[shared:]],
            num_parent_tokens=len(parent.token_ids) if parent is not None else 0,
            num_shared_messages=shared,
            is_begun=is_begun,
        )

    def _num_shared(self, parent: Recorded | None) -> int:
        if parent is None:
            return 0
        if parent is self.extended:
            return len(parent.messages)
        return shared_length(self.messages, parent.messages)


def _after_last_assistant(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the index after the last assistant message; 0 without one."""
    for index in range(len(messages), 0, -1):
        if messages[index - 1]["role"] == "assistant":
            return index
    return 0
