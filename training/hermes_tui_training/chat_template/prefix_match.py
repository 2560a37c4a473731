"""Finds the recorded completion that a client's messages continue.

Clients do not send replies back unchanged: Hermes strips content, drops reasoning, reformats tool
arguments and merges neighbouring user messages. So conversations are compared in a canonical form.
The tokens of the next prompt are then taken from the record, not from the client's messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_tui_common.openai import message_text
from hermes_tui_training.api.types import Completion, CompletionKind
from hermes_tui_training.chat_template.reply_parser import without_markup

Canonical = tuple[tuple[str, ...], ...]
"""Messages as (role, text, and a name and arguments per tool call)."""

AUX_OPENINGS = (
    "You've reached the maximum number of tool-calling iterations allowed.",
    "[System: Your previous response was truncated",
    "[System: The previous response was cut off",
    "[System: Your previous response contained only internal reasoning",
    "[System: Your previous tool call",
    "[System: Continue now.",
    "[System: You edited code in this turn",
    "[System: You are a Hermes kanban worker.",
    "You are a summarization agent creating a context checkpoint.",
    "Review the conversation above and ",
    "You just executed tool calls but returned an empty response.",
)
"""Beginnings of the user messages that Hermes 0.19 writes on its own: to ask for a continuation, a
summary, a compaction or a review. The worker switches off those that have a switch. A test holds
them against the installed hermes-agent's source."""

_AUX = re.compile(rf"(\A|\n\n)({'|'.join(re.escape(text) for text in AUX_OPENINGS)})")
"""Matches them also after a message of the user: Hermes merges neighbouring user messages."""


def canonical(messages: Sequence[Mapping[str, Any]], *, base: Canonical = ()) -> Canonical:
    """Return messages in the canonical form: the part that clients send back unchanged.

    Args:
        messages: in OpenAI's format.
        base: earlier messages that are in canonical form already.
    """
    result = list(base)
    for message in messages:
        role, text = message["role"], message_text(message)
        if role == "assistant":
            text = without_markup(text)
        calls = [part for call in message.get("tool_calls") or () for part in _call(call)]
        entry = (role, text.strip(), *calls)
        if role == "user" and result and result[-1][0] == "user":
            entry = ("user", f"{result.pop()[1]}\n\n{entry[1]}")
        result.append(entry)
    return tuple(result)


def _call(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call["function"]
    return function["name"], canonical_json(function["arguments"])


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces; a string that is valid JSON is parsed first."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A finished completion that the next prompt may continue."""

    completion_id: str
    """Its id."""
    token_ids: tuple[int, ...]
    """Its prompt and its sampled tokens."""
    num_prompt_tokens: int
    """Length of the prompt."""
    request: Canonical
    """The request's messages; empty for a raw prompt."""
    answer: Canonical
    """The reply."""
    context: str
    """Tools and template settings; a prompt can only continue a completion with the same ones."""
    messages: Sequence[Mapping[str, Any]] = ()
    """The request's messages as they were sent; most clients send them again unchanged."""

    @property
    def conversation(self) -> Canonical:
        """The request's messages and the reply."""
        return self.request + self.answer

    @property
    def is_empty(self) -> bool:
        """True if the reply is empty."""
        return self.answer == (("assistant", ""),)


def context_key(tools: Sequence[Mapping[str, Any]], template: Mapping[str, Any]) -> str:
    """Return tools and template settings as ``Recorded.context``."""
    return canonical_json([list(tools), dict(template)])


def recorded(completion: Completion) -> Recorded | None:
    """Return a stored completion as a possible parent; None if it has no reply."""
    if completion.message is None or not completion.token_ids:
        return None
    return Recorded(
        completion_id=completion.completion_id,
        token_ids=completion.prompt_token_ids + completion.token_ids,
        num_prompt_tokens=len(completion.prompt_token_ids),
        request=canonical(completion.request_messages),
        answer=canonical([completion.message]),
        context=_context(completion),
        messages=completion.request_messages,
    )


def _context(completion: Completion) -> str:
    """Return the context of a stored completion; empty for a raw prompt: no request has it."""
    if not completion.request_messages:
        return ""
    return context_key(completion.tools, completion.sampling.get("chat_template_kwargs") or {})


def canonical_request(
    messages: Sequence[Mapping[str, Any]], parents: Sequence[Recorded]
) -> tuple[Canonical, Recorded | None]:
    """Return ``canonical(messages)``, and the newest parent whose request they begin with.

    The canonical form of that parent's request is reused: a long history is not converted again.
    """
    for parent in reversed(parents):
        length = len(parent.messages)
        if length and messages[:length] == parent.messages:
            return canonical(messages[length:], base=parent.request), parent
    return canonical(messages), None


def why_broken(history: Canonical, context: str, parent: Recorded) -> str:
    """Return why a history does not continue a recorded completion, as a sentence.

    Args:
        history: the request's messages up to the last assistant message.
        context: the request's.
        parent: the completion with the longest common prefix.
    """
    known = parent.conversation
    if history == known:
        assert context != parent.context, "it continues the completion"
        return "other tools or template settings were sent than before"
    at = shared_length(history, known)
    if at == len(known):
        return f"message {at + 1} ({history[at][0]}) was not recorded in this session"
    if at == len(history):
        return f"the history ends before message {at + 1} of the record"
    if at == len(known) - 1 and history[at][0] == "assistant":
        return f"message {at + 1} (assistant) is not the reply that was sampled"
    return f"message {at + 1} ({history[at][0]}) is not what was recorded"


def shared_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the length of the common prefix of two sequences."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:  # mostly one continues the other
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def completion_kind(messages: Sequence[Mapping[str, Any]]) -> CompletionKind:
    """Return ``aux`` for a call that Hermes makes on its own, ``turn`` for the agent's turns.

    A raw prompt, which has no messages, is a turn.
    """
    last = messages[-1] if messages else {"role": ""}
    if last["role"] == "user" and _AUX.search(message_text(last).lstrip()):
        return "aux"
    return "turn"


def retried(messages: Sequence[Mapping[str, Any]], parents: Sequence[Recorded]) -> str | None:
    """Return the id of the newest completion if its reply was empty and this request repeats it."""
    if not messages or not parents:
        return None
    if parents[-1].is_empty and parents[-1].request == canonical(messages):
        return parents[-1].completion_id
    return None
