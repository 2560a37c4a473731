"""Turns that are read back: from recorded completions, or from the agent service's history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hermes_tui.core.changes import ChatTurn, ToolPart
from hermes_tui.core.models import CompletionRow, EpisodeDetail, Message
from hermes_tui_common.openai import message_text
from hermes_tui_services.api.client import PastTurn


def recorded_turns(detail: EpisodeDetail) -> list[ChatTurn]:
    """Return the turns of an episode as its recorded completions tell them."""
    return [_recorded_turn(detail, completions) for completions in by_turn(detail)]


def by_turn(detail: EpisodeDetail) -> list[list[CompletionRow]]:
    """Return an episode's completions, turn by turn.

    One whose last message is the user's begins a turn; one that follows a tool's result goes on
    with it, and so does one that the agent asked for itself because the one before was no end: it
    was cut off, or the turn may call no more tools. Other calls beside the agent's own turns are
    left out, and what is in flight.
    """
    turns: list[list[CompletionRow]] = []
    for completion in detail.completions:
        if completion.in_flight:
            continue
        if turns and goes_on(completion, turns[-1][-1]):
            turns[-1].append(completion)
        elif completion.kind == "turn":
            turns.append([completion])
    return turns


def goes_on(completion: CompletionRow, before: CompletionRow) -> bool:
    """Whether a completion belongs to the turn of the one before it."""
    if completion.kind == "turn":
        return bool(_trailing_tool_results(completion.request_messages))
    if completion.kind == "choice":
        return False
    if before.finish_reason == "stop" or not before.request_messages:
        return False
    *earlier, last = before.request_messages
    sent = completion.request_messages
    # Hermes merges what it asks into the message before where nothing was replied to that.
    return len(sent) > len(earlier) and (
        [*sent[: len(earlier)]] == earlier
        and message_text(sent[len(earlier)]).startswith(message_text(last))
    )


def kept_turns(session_id: str, past: Iterable[PastTurn]) -> list[ChatTurn]:
    """Return a session's turns as the agent service keeps them; they have no episodes."""
    return [_kept_turn(session_id, turn) for turn in past]


def _kept_turn(session_id: str, past: PastTurn) -> ChatTurn:
    said, *others = past.messages
    turn = ChatTurn(
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


def _trailing_tool_results(messages: Sequence[Message]) -> dict[str, str]:
    results: dict[str, str] = {}
    for message in reversed(messages):
        if message.get("role") != "tool":
            break
        results[str(message.get("tool_call_id"))] = message_text(message)
    return results


def _recorded_turn(detail: EpisodeDetail, completions: Sequence[CompletionRow]) -> ChatTurn:
    first = completions[0]
    messages = reversed(first.request_messages)
    said: Message = next((row for row in messages if row.get("role") == "user"), {})
    turn = ChatTurn(
        turn_id=first.completion_id,
        session_id=detail.row.session_id,
        source="read",
        user_text=message_text(said),
        state="completed" if completions[-1].finish_reason else "interrupted",
        episode_id=detail.row.episode_id,
        started_at=first.created_at,
    )
    before: CompletionRow | None = None
    for completion in completions:
        sent = completion.request_messages
        if completion.kind != "turn":
            sent = sent[:-1]  # without the message that the agent added itself
        between_s = completion.created_at - before.created_at - before.total_s if before else 0.0
        _fill_results(turn, _trailing_tool_results(sent), between_s)
        _add_message(turn, completion.message)
        before = completion
    measure(turn, completions)
    return turn


def _fill_results(turn: ChatTurn, results: dict[str, str], between_s: float = 0.0) -> None:
    """Give a turn's calls their results.

    Args:
        turn: the turn.
        results: by the call's id.
        between_s: seconds between the completion that called and the next; a tool that was called
            alone took them. 0.0 is not known.
    """
    for part in turn.parts:
        if isinstance(part, ToolPart) and part.call_id in results:
            part.result = results[part.call_id]
            part.seconds = between_s if len(results) == 1 and between_s > 0 else None


def _add_message(turn: ChatTurn, message: Message) -> None:
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


def measure(turn: ChatTurn, completions: Sequence[CompletionRow]) -> None:
    """Give a turn what its completions cost, and why any of them can't be trained."""
    tokens = [token for completion in completions for token in completion.tokens]
    turn.num_tokens = len(tokens)
    turn.seconds = sum(completion.total_s for completion in completions)
    turn.first_token_s = completions[0].first_token_s or None
    turn.sampling_s = turn.seconds - sum(completion.first_token_s for completion in completions)
    turn.context_tokens = len(completions[-1].prompt) + len(completions[-1].tokens)
    versions = [token.policy_version for token in tokens if token.policy_version is not None]
    turn.policy_version = max(versions, default=turn.policy_version)
    reasons = [completion.untrainable_reason for completion in completions]
    constrained = any(completion.num_constrained for completion in completions)
    turn.untrainable = tuple(
        reason for reason in [*reasons, *(["constrained"] if constrained else [])] if reason
    )
    turn.num_trainable = reasons.count("")
