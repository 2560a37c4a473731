"""From events to messages: what is kept of a turn, and what is replayed of it."""

from __future__ import annotations

from typing import Any

from hermes_tui_services.api.events import TextArrived, ToolCalled, ToolReturned, TurnStarted
from hermes_tui_services.data_proxy.messages import (
    NO_RESULT,
    interrupted_messages,
    messages_of,
    replayed,
)


def delta(text: str) -> TextArrived:
    return TextArrived(text=text)


def call(call_id: str, name: str = "t") -> ToolCalled:
    return ToolCalled(call_id=call_id, name=name, arguments=f'{{"id": "{call_id}"}}')


def result(call_id: str, text: str, name: str = "t") -> ToolReturned:
    return ToolReturned(call_id=call_id, name=name, output=text)


def shape(messages: list[dict[str, Any]]) -> list[Any]:
    """Return messages in a short form: text, lists of call ids, (id, result)."""
    rows: list[Any] = []
    for message in messages:
        if message["role"] == "tool":
            rows.append((message["tool_call_id"], message["content"]))
        else:
            ids = [c["id"] for c in message.get("tool_calls", ())]
            rows.append((message["content"], ids) if ids else message["content"])
    return rows


def test_deltas_become_one_message() -> None:
    events = [TurnStarted(run_id="r"), delta(" Hel"), delta("lo ")]
    assert messages_of(events) == [{"role": "assistant", "content": "Hello"}]


def test_parallel_calls_stay_together_and_keep_their_results() -> None:
    events = [delta("both"), call("a"), call("b"), result("b", "B"), result("a", "A"), delta("end")]
    assert shape(messages_of(events)) == [("both", ["a", "b"]), ("a", "A"), ("b", "B"), "end"]


def test_calls_one_after_another_are_messages_of_their_own() -> None:
    events = [call("a"), result("a", "A"), call("b"), result("b", "B"), delta("end")]
    assert shape(messages_of(events)) == [("", ["a"]), ("a", "A"), ("", ["b"]), ("b", "B"), "end"]


def test_text_after_a_call_is_a_new_message() -> None:
    events = [call("a"), delta("meanwhile"), result("a", "A")]
    assert shape(messages_of(events)) == [("", ["a"]), ("a", "A"), "meanwhile"]


def test_the_summary_is_the_last_text() -> None:
    assert shape(messages_of([delta("par")], "partly streamed")) == ["partly streamed"]
    assert shape(messages_of([], "not streamed")) == ["not streamed"]
    events = [call("a"), result("a", "A")]
    assert shape(messages_of(events, "end")) == [("", ["a"]), ("a", "A"), "end"]


def test_a_call_without_a_result_gets_one() -> None:
    messages = interrupted_messages([delta("try"), call("a"), call("b"), result("a", "A")])
    assert shape(messages) == [("try", ["a", "b"]), ("a", "A"), ("b", NO_RESULT), ""]
    assert messages[2]["interrupted"] is True
    assert messages[-1] == {"role": "assistant", "content": "", "interrupted": True}


def test_an_interrupted_reply_is_marked() -> None:
    assert interrupted_messages([delta("so far")]) == [
        {"role": "assistant", "content": "so far", "interrupted": True}
    ]
    assert interrupted_messages([]) == [{"role": "assistant", "content": "", "interrupted": True}]


def test_replay_leaves_out_marks_and_empty_replies() -> None:
    stored = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "", "interrupted": True},
        {"role": "user", "content": "[System: go on]", "synthetic": True},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}], "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "a", "name": "t", "content": "", "interrupted": True},
    ]
    assert replayed(stored) == [
        {"role": "user", "content": "one"},
        {"role": "user", "content": "[System: go on]"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]},
        {"role": "tool", "tool_call_id": "a", "name": "t", "content": ""},
    ]
