"""Turn events on the wire between the roles: their documented shapes, there and back."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from hermes_tui_common.errors import ApiError
from hermes_tui_services.api.events import (
    ApprovalAnswered,
    ApprovalRequested,
    BytesRelayed,
    ReasoningArrived,
    RelayStarted,
    TextArrived,
    ToolCalled,
    ToolReturned,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    event_from_json,
    event_to_json,
    turn_interrupted,
)

ERROR = {"message": "m", "type": "server_error", "code": "c", "param": None}
SHAPES: list[tuple[TurnEvent, dict[str, Any]]] = [
    (TurnStarted(run_id="r"), {"type": "accepted", "run_id": "r"}),
    (
        TurnStarted(run_id="r", message="hi", started_at=1.5),
        {"type": "accepted", "run_id": "r", "message": "hi", "started_at": 1.5},
    ),
    (TextArrived(text="a\ud800"), {"type": "delta", "text": "a\ud800"}),
    (ReasoningArrived(text="a"), {"type": "reasoning", "text": "a"}),
    (
        ToolCalled(call_id="c", name="t", arguments="{}"),
        {"type": "tool_call", "call_id": "c", "name": "t", "args": "{}"},
    ),
    (
        ToolReturned(call_id="c", name="t", output="x"),
        {"type": "tool_result", "call_id": "c", "name": "t", "result": "x"},
    ),
    (
        ToolReturned(call_id="c", name="t", output="x", seconds=0.25),
        {"type": "tool_result", "call_id": "c", "name": "t", "result": "x", "seconds": 0.25},
    ),
    (
        ApprovalRequested(approval_id="a", description="d", choices=("once",), expires_at=2.0),
        {
            "type": "approval_requested",
            "approval_id": "a",
            "kind": "command",
            "description": "d",
            "choices": ["once"],
            "expires_at": 2.0,
        },
    ),
    (
        ApprovalAnswered(approval_id="a", choice="once"),
        {"type": "approval_answered", "approval_id": "a", "choice": "once"},
    ),
    (
        RelayStarted(status=200, headers={"a": "b"}),
        {"type": "relay", "status": 200, "headers": {"a": "b"}},
    ),
    (BytesRelayed(data=b"\xff"), {"type": "bytes", "data": "/w=="}),
    (
        TurnCompleted(text="x", metadata={"usage": {"output_tokens": 1}}),
        {
            "type": "done",
            "summary": "x",
            "metadata": {"usage": {"output_tokens": 1}},
            "messages": None,
        },
    ),
    (
        TurnFailed.of(ApiError(503, "m", code="c")),
        {"type": "failed", "status": 503, "error": ERROR, "interrupted": False},
    ),
]


def test_the_shapes_cover_every_kind_of_event() -> None:
    assert {type(event) for event, _ in SHAPES} == set(get_args(TurnEvent))


@pytest.mark.parametrize(("event", "shape"), SHAPES)
def test_an_event_has_its_shape_and_comes_back_the_same(
    event: TurnEvent, shape: dict[str, Any]
) -> None:
    assert event_to_json(event) == shape
    assert event_from_json(json.loads(json.dumps(shape))) == event


def test_an_interrupted_turn_says_so_on_the_wire() -> None:
    shape = event_to_json(turn_interrupted())
    assert (shape["status"], shape["interrupted"]) == (409, True)
    back = event_from_json(shape)
    assert isinstance(back, TurnFailed)
    assert back.interrupted


def test_an_unknown_event_of_another_role_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'dance'"):
        event_from_json({"type": "dance"})
