"""Turns that are read back: from recorded completions, or from the agent service's history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hermes_tui.core.events import ToolPart, Turn
from hermes_tui.core.rows import CompletionRow, EpisodeDetail, Wire
from hermes_tui_services.client import PastTurn


def recorded_turns(detail: EpisodeDetail) -> list[Turn]:
    """Return the turns of an episode as its recorded completions tell them.

    A completion whose last message is the user's begins a turn; one that follows a tool's result
    goes on with it. Calls beside the agent's own turns are left out, and what is in flight.
    """
    turns: list[Turn] = []
    for completion in detail.completions:
        if completion.kind != "turn" or completion.in_flight:
            continue
        results = _trailing_tool_results(completion.request_messages)
        if not turns or not results:
            turns.append(_recorded_turn(detail, completion))
        else:
            _fill_results(turns[-1], results)
        _add_message(turns[-1], completion.message)
        add_measures(turns[-1], completion)
        if completion.finish_reason is None:
            turns[-1].state = "interrupted"
    return turns


def kept_turns(session_id: str, past: Iterable[PastTurn]) -> list[Turn]:
    """Return a session's turns as the agent service keeps them; they have no episodes."""
    return [_kept_turn(session_id, turn) for turn in past]


def _kept_turn(session_id: str, past: PastTurn) -> Turn:
    said, *others = past.messages
    turn = Turn(
        turn_id=past.run_id,
        run_id=past.run_id,
        session_id=session_id,
        source="read",
        user_text=message_text(said),
        state="interrupted" if past.interrupted else "completed",
        num_tokens=past.num_tokens,
        seconds=past.finished_at - past.started_at,
        started_at=past.started_at,
    )
    for message in others:
        if message.get("role") == "tool":
            _fill_results(turn, _trailing_tool_results([message]))
        elif message.get("role") == "assistant":
            _add_message(turn, message)
    return turn


def _trailing_tool_results(messages: Sequence[Wire]) -> dict[str, str]:
    results: dict[str, str] = {}
    for message in reversed(messages):
        if message.get("role") != "tool":
            break
        results[str(message.get("tool_call_id"))] = message_text(message)
    return results


def _recorded_turn(detail: EpisodeDetail, completion: CompletionRow) -> Turn:
    messages = reversed(completion.request_messages)
    said: Wire = next((row for row in messages if row.get("role") == "user"), {})
    return Turn(
        turn_id=completion.completion_id,
        session_id=detail.row.session_id,
        source="read",
        user_text=message_text(said),
        state="completed",
        episode_id=detail.row.episode_id,
        started_at=completion.created_at,
    )


def _fill_results(turn: Turn, results: dict[str, str]) -> None:
    for part in turn.parts:
        if isinstance(part, ToolPart) and part.call_id in results:
            part.result = results[part.call_id]


def _add_message(turn: Turn, message: Wire) -> None:
    if thought := message.get("reasoning_content"):
        turn.add_thought(str(thought))
    if text := message_text(message):
        turn.add_text(text)
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        turn.parts.append(
            ToolPart(
                call_id=str(call.get("id")),
                name=str(function.get("name")),
                arguments=str(function.get("arguments") or ""),
            )
        )


def add_measures(turn: Turn, completion: CompletionRow) -> None:
    """Add a finished completion's tokens, seconds and version to its turn."""
    turn.num_tokens += len(completion.tokens)
    turn.seconds += completion.total_s
    versions = [t.policy_version for t in completion.tokens if t.policy_version is not None]
    turn.policy_version = max(versions, default=turn.policy_version)
    if completion.untrainable_reason:
        turn.untrainable = (*turn.untrainable, completion.untrainable_reason)


def message_text(message: Wire) -> str:
    """Return the text of an OpenAI message, whose content is a string or a list of parts."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else ()
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
