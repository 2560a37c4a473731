"""Turns that are read back from recorded completions."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_tui.core.changes import ChatTurn, ToolPart
from hermes_tui.core.models import CompletionRow, EpisodeDetail, EpisodeRow
from hermes_tui.core.recorded_turns import recorded_turns
from hermes_tui.tui.widgets.token_layout import Break, trajectory
from hermes_tui_training.api.wire import CompletionRecord

GO_ON = "[System: Your previous response was truncated by the output length limit. …]"
NO_MORE = "You've reached the maximum number of tool-calling iterations allowed. …"
REVIEW = "Review the conversation above and consider saving to memory if appropriate."
COMPACT = "You are a summarization agent creating a context checkpoint. …"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str, *calls: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        functions = [
            {"id": call, "function": {"name": "read", "arguments": "{}"}} for call in calls
        ]
        message["tool_calls"] = functions
    return message


def result(call: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


def completion(
    told: list[dict[str, Any]],
    message: dict[str, Any],
    finish_reason: str | None = "stop",
    *,
    kind: str = "turn",
    reason: str = "",
) -> CompletionRow:
    wire = {
        "completion_id": f"chatcmpl-{len(told)}",
        "episode_id": "ep-1",
        "turn_index": 0,
        "created_at": float(len(told)),
        "finish_reason": finish_reason,
        "kind": kind,
        "trainable": not reason,
        "untrainable_reason": reason or None,
        "request_messages": told,
        "message": message,
        "latency": {"total_s": 0.5},
        "prompt_token_ids": [1],
        "token_ids": [2, 3],
        "logprobs": [-1.0, -1.0],
        "policy_versions": [4, 4],
    }
    return CompletionRow.of(CompletionRecord.model_validate(wire))


def turns(*completions: CompletionRow) -> list[ChatTurn]:
    row = EpisodeRow(episode_id="ep-1", session_id="sess-1", state="open")
    return recorded_turns(EpisodeDetail(row=row, completions=completions))


def test_a_reply_that_was_cut_off_goes_on_with_what_the_agent_asked_for() -> None:
    cut = [user("tell"), reply("Once upon"), user(GO_ON)]
    cut_again = [*cut, reply(" a time"), user(GO_ON)]
    (turn,) = turns(
        completion([user("tell")], reply("Once upon"), "length", reason="truncated"),
        completion(cut, reply(" a time"), "length", kind="aux", reason="aux_call"),
        completion(cut_again, reply(" the end."), kind="aux", reason="aux_call"),
    )
    assert (turn.user_text, turn.text) == ("tell", "Once upon a time the end.")
    assert (turn.state, turn.num_tokens, turn.seconds) == ("completed", 6, 1.5)
    assert turn.untrainable == ("truncated", "aux_call", "aux_call")


def test_a_continuation_is_told_from_other_calls_of_the_agent() -> None:
    row = EpisodeRow(episode_id="ep-1", session_id="sess-1", state="open")
    completions = (
        completion([user("tell")], reply("Once upon"), "length", reason="truncated"),
        completion(
            [user("tell"), reply("Once upon"), user(GO_ON)],
            reply(" a time."),
            kind="aux",
            reason="aux_call",
        ),
        completion([user(COMPACT)], reply("So far: …"), kind="aux", reason="aux_call"),
    )
    items = trajectory(EpisodeDetail(row=row, completions=completions), {})
    assert [item.label for item in items if isinstance(item, Break)] == [
        "a continuation that the agent asked for: never trained",
        "a call that the agent made beside its answer: never trained",
    ]


@pytest.mark.parametrize(
    ("partial", "told"),
    [
        ("Once", [user("tell"), reply("Once"), user(GO_ON)]),
        ("", [user(f"tell\n\n{GO_ON}")]),  # neighbouring messages of the user's are merged
    ],
)
def test_a_reply_that_broke_off_is_no_interruption_once_it_went_on(
    partial: str, told: list[dict[str, Any]]
) -> None:
    broken = completion([user("tell")], reply(partial), None, reason="engine_error")
    assert turns(broken)[0].state == "interrupted"
    (turn,) = turns(broken, completion(told, reply(" again"), kind="aux", reason="aux_call"))
    assert (turn.state, turn.text, turn.user_text) == ("completed", f"{partial} again", "tell")


def test_the_last_words_of_a_turn_that_may_call_no_more_tools_are_its_reply() -> None:
    called = [user("look"), reply("", "c1"), result("c1", "found")]
    (turn,) = turns(
        completion([user("look")], reply("", "c1"), "tool_calls"),
        completion([*called, user(NO_MORE)], reply("It is there."), kind="aux", reason="aux_call"),
    )
    assert [part.result for part in turn.parts if isinstance(part, ToolPart)] == ["found"]
    assert (turn.text, turn.num_trainable) == ("It is there.", 1)


def test_what_the_agent_does_beside_its_turns_is_in_none() -> None:
    first = [user("hi"), reply("Hello.")]
    asked = [*first, user("look")]
    read = turns(
        completion([user("hi")], reply("Hello.")),
        completion([*first, user(REVIEW)], reply("Saved."), kind="aux", reason="aux_call"),
        completion(asked, reply("", "c1"), "tool_calls"),
        completion([user(COMPACT)], reply("So far: …"), kind="aux", reason="aux_call"),
        completion([*asked, reply("", "c1"), result("c1", "x")], reply("Done.")),
    )
    assert [turn.text for turn in read] == ["Hello.", "Done."]
