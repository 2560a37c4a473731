"""What the client's messages have to do with the completions that were recorded before.

A client does not replay what it was sent: Hermes strips content, drops reasoning, writes tool
arguments anew and merges neighbouring user messages. Conversations are therefore compared in a
canonical form; the tokens of the next prompt then come from the record and not from the replay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_tui_training.api.types import Completion, CompletionKind

Canonical = tuple[tuple[str, ...], ...]
"""Messages as (role, text, and a name and arguments per tool call)."""

_SCRUBBED = re.compile(r"<think>.*?(</think>|\Z)|<tool_call>.*?(</tool_call>|\Z)", re.DOTALL)

_AUX_OPENINGS = (
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
)
"""How the user messages begin that Hermes 0.19 writes on its own: to ask for a continuation, a
summary, a compaction or a review. The worker switches off those that have a switch."""

_AUX = re.compile(rf"(\A|\n\n)({'|'.join(re.escape(text) for text in _AUX_OPENINGS)})")
"""Also behind a message of the person's: Hermes merges neighbouring user messages."""


def text_of(message: Mapping[str, Any]) -> str:
    """Return a message's text; parts are joined, None is empty."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)


def canonical(messages: Sequence[Mapping[str, Any]], *, base: Canonical = ()) -> Canonical:
    """Return messages in the form that survives a client's replay.

    Args:
        messages: OpenAI's.
        base: what comes before them, in this form already.
    """
    result = list(base)
    for message in messages:
        role, text = message["role"], text_of(message)
        if role == "assistant":
            text = _SCRUBBED.sub("", text)
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
    """Return JSON with sorted keys and no spacing; a string is read as JSON if it is any."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A finished completion, as far as the next prompt may build on it."""

    completion_id: str
    """The completion."""
    token_ids: tuple[int, ...]
    """Its prompt and what was sampled."""
    num_prompt_tokens: int
    """How many of them are the prompt."""
    request: Canonical
    """The messages it answered; none for a raw prompt."""
    answer: Canonical
    """The message it gave."""
    context: str
    """Tools and template settings: a prompt can only continue one that was built with the same."""
    messages: Sequence[Mapping[str, Any]] = ()
    """The messages it answered, as they were sent; a client mostly sends them again as they are."""

    @property
    def conversation(self) -> Canonical:
        """What was said once it had answered."""
        return self.request + self.answer

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in its answer."""
        return self.answer == (("assistant", ""),)


def context_key(tools: Sequence[Mapping[str, Any]], template: Mapping[str, Any]) -> str:
    """Return what ``Recorded.context`` compares."""
    return canonical_json([list(tools), dict(template)])


def recorded(completion: Completion) -> Recorded | None:
    """Return a stored completion as a possible parent; None when it has no answer."""
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
    """Return the context of a stored completion; that of a raw prompt is no conversation's."""
    if not completion.request_messages:
        return ""
    return context_key(completion.tools, completion.sampling.get("chat_template_kwargs") or {})


def spoken(
    messages: Sequence[Mapping[str, Any]], parents: Sequence[Recorded]
) -> tuple[Canonical, Recorded | None]:
    """Return ``canonical(messages)``, and the newest parent that was sent their beginning.

    What that parent was sent is not worked on again.
    """
    for parent in reversed(parents):
        length = len(parent.messages)
        if length and messages[:length] == parent.messages:
            return canonical(messages[length:], base=parent.request), parent
    return canonical(messages), None


def why_broken(history: Canonical, context: str, parent: Recorded) -> str:
    """Return in words why a history does not continue a recorded completion.

    Args:
        history: up to its last assistant message.
        context: of the request.
        parent: the completion that it shares most with.
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
    """Return how many first elements two sequences share."""
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
    """Tell the agent's own turns from the calls that its harness makes beside them.

    A raw prompt, which has no messages, is a turn.
    """
    last = messages[-1] if messages else {"role": ""}
    if last["role"] == "user" and _AUX.search(text_of(last).lstrip()):
        return "aux"
    return "turn"


def retried(messages: Sequence[Mapping[str, Any]], parents: Sequence[Recorded]) -> str | None:
    """Return the id of the newest completion when it was empty and this request repeats it."""
    if not messages or not parents:
        return None
    if parents[-1].is_empty and parents[-1].request == canonical(messages):
        return parents[-1].completion_id
    return None
