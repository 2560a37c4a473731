"""Make the messages to store from a turn's events, and the history to replay from stored ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hermes_tui_services.api.events import TextArrived, ToolCalled, ToolReturned, TurnEvent
from hermes_tui_services.api.protocol import ChatMessage

NO_RESULT = "[interrupted before it finished]"
"""In place of a missing tool result: chat APIs refuse a history with an unanswered call."""

_REPLAYED = ("role", "content", "tool_calls", "tool_call_id", "name")


def messages_of(events: Iterable[TurnEvent], summary: str = "") -> list[ChatMessage]:
    """Return a turn's messages after the user's, put together from its events.

    Calls that come before the results of the earlier ones are parallel calls of one assistant
    message; results belong to their calls by id.

    Args:
        events: the turn's events, in order.
        summary: the reply's text as the agent gave it at the end; "" when it was interrupted.
    """
    messages: list[ChatMessage] = []
    current: ChatMessage | None = None
    for event in events:
        match event:
            case ToolReturned(call_id=call_id, name=name, output=output):
                current = None
                messages.append(_tool_message(call_id, name, output))
            case TextArrived() | ToolCalled():
                is_text = isinstance(event, TextArrived)
                if current is None or (is_text and "tool_calls" in current):
                    current = {"role": "assistant", "content": ""}
                    messages.append(current)
                _add(current, event)
    for message in messages:
        if message["role"] == "assistant":
            message["content"] = message["content"].strip()
    _end_with(messages, summary.strip())
    return _paired(messages)


def _add(message: ChatMessage, event: TextArrived | ToolCalled) -> None:
    if isinstance(event, TextArrived):
        message["content"] += event.text
        return
    function = {"name": event.name, "arguments": event.arguments}
    call = {"id": event.call_id, "type": "function", "function": function}
    message.setdefault("tool_calls", []).append(call)


def _tool_message(call_id: str, name: str, result: str) -> ChatMessage:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": result}


def _end_with(messages: list[ChatMessage], summary: str) -> None:
    """Make the summary the last assistant text: agents may stream less than they answer."""
    if not summary:
        return
    if messages and messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        messages[-1]["content"] = summary
    else:
        messages.append({"role": "assistant", "content": summary})


def _paired(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with each call's result behind it, made up where there is none."""
    results = {row["tool_call_id"]: row for row in messages if row["role"] == "tool"}
    paired: list[ChatMessage] = []
    for message in messages:
        if message["role"] == "tool":
            continue
        paired.append(message)
        for call in message.get("tool_calls", ()):
            name = call["function"]["name"]
            paired.append(
                results.get(call["id"])
                or {**_tool_message(call["id"], name, NO_RESULT), "interrupted": True}
            )
    return paired


def interrupted_messages(events: Iterable[TurnEvent]) -> list[ChatMessage]:
    """Return what an interrupted turn leaves; its last assistant message is marked."""
    messages = messages_of(events)
    last = next((row for row in reversed(messages) if row["role"] == "assistant"), None)
    if last is None or last is not messages[-1]:
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    last["interrupted"] = True
    return messages


def replayed(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return stored messages as OpenAI chat messages, without our marks and empty replies."""
    return [
        {name: message[name] for name in _REPLAYED if name in message}
        for message in messages
        if message["role"] != "assistant" or message.get("content") or message.get("tool_calls")
    ]
