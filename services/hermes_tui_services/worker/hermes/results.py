"""Makes a response or an error of what ``AIAgent.run_conversation`` returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_tui_common.auth import RedactingFilter
from hermes_tui_common.errors import ApiError
from hermes_tui_services.api.agent import AgentResponse, TurnInterrupted
from hermes_tui_services.api.protocol import ChatMessage

# hermes-agent 0.19.0 has no codes for these; a test holds the words against its source.

TRUNCATED = "truncated after"
"""In Hermes' error of a reply that filled max_tokens in each of its four calls."""

STREAM_BROKE = ("cut off by a network error", "the stream timed out")
"""In the user messages with which Hermes asks for the rest after a broken stream."""

MAX_TURNS_USED = "max_iterations_reached"
"""Beginning of ``turn_exit_reason`` when the turn used up its model calls."""

EMPTY_REPLIES = "empty_response_exhausted"
"""``turn_exit_reason`` when the model gave nothing four times over."""

COMPACTION_DISABLED = "compaction_disabled"
"""Key of the result that is true when the conversation no longer fits the context."""

_KEPT = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning")


def response_of(
    result: Mapping[str, Any],
    *,
    history: Sequence[ChatMessage],
    message: str,
    usage: dict[str, int] | None,
    upstream: str,
    refusal: str | None = None,
    cut: bool = False,
) -> AgentResponse:
    """Return the response of a finished turn.

    Args:
        result: what ``run_conversation`` returned; its keys differ from case to case.
        history: the messages that it was given.
        message: the user's message.
        usage: the turn's tokens, or None when they are not known.
        upstream: URL of the model server, for error messages.
        refusal: what it said when it refused the last call; None when it did not.
        cut: whether a model call of the turn filled its max_tokens; Hermes asks for the rest of
            such a reply, and may get it.

    Raises:
        TurnInterrupted: the turn was interrupted.
        ApiError: it failed; the cause is in the message.
    """
    if result.get("interrupted"):
        raise TurnInterrupted("interrupted")
    messages = new_messages(result.get("messages"), history, message)
    text = str(result.get("final_response") or "")
    metadata: dict[str, Any] = {"api_calls": int(result.get("api_calls") or 0)}
    if usage:
        metadata["usage"] = usage
    if cut:
        metadata["incomplete_details"] = {"reason": "max_output_tokens"}
    if (model := result.get("model")) is not None:
        metadata["model"] = model
    reason = str(result.get("turn_exit_reason") or "")
    if reason.startswith(MAX_TURNS_USED):
        metadata["incomplete_details"] = {"reason": "max_turns"}
    elif reason == EMPTY_REPLIES:
        raise ApiError(502, f"The model at {upstream} gave empty replies.", code="empty_reply")
    elif result.get("failed") or not result.get("completed"):
        if not (text and _was_cut_by_length(result, messages)):
            raise _failure(result, messages, upstream, refusal)
        metadata["incomplete_details"] = {"reason": "max_output_tokens"}
    return AgentResponse(summary=text, metadata=metadata, messages=messages)


def new_messages(
    messages: object, history: Sequence[ChatMessage], message: str
) -> list[ChatMessage] | None:
    """Return what the turn added after the user's message, or None when that cannot be told.

    User messages among them were made by Hermes, and are marked ``synthetic``.
    """
    if not isinstance(messages, list):
        return None
    # Hermes may have merged the message with one before it that had no answer.
    start = next(
        (
            index
            for index, row in enumerate(messages)
            if index >= len(history) - 1
            and row.get("role") == "user"
            and str(row.get("content") or "").endswith(message)
        ),
        None,
    )
    if start is None:
        return None
    return [_clean(row) for row in messages[start + 1 :] if row.get("role") != "system"]


def _clean(row: Mapping[str, Any]) -> ChatMessage:
    kept = {name: row[name] for name in _KEPT if row.get(name) is not None}
    if row.get("role") == "user":
        kept["synthetic"] = True
    if calls := kept.get("tool_calls"):
        kept["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": call["function"]["arguments"],
                },
            }
            for call in calls
        ]
    return kept


def _was_cut_by_length(result: Mapping[str, Any], messages: Sequence[ChatMessage] | None) -> bool:
    return TRUNCATED in str(result.get("error")) and not _stream_broke(messages)


def _stream_broke(messages: Sequence[ChatMessage] | None) -> bool:
    asked = (str(row.get("content")) for row in messages or () if row.get("synthetic"))
    return any(sign in text for text in asked for sign in STREAM_BROKE)


def _failure(
    result: Mapping[str, Any],
    messages: Sequence[ChatMessage] | None,
    upstream: str,
    refusal: str | None,
) -> ApiError:
    own = result.get("error") or result.get("final_response") or result.get("turn_exit_reason")
    cause = (refusal or str(own or "")).strip()
    cause = RedactingFilter().redact(cause)  # servers quote the key that they refuse
    if _stream_broke(messages):
        cause = f"its stream broke off. {cause}"
    if result.get(COMPACTION_DISABLED) or "context_length_exceeded" in cause:
        return ApiError(
            400,
            f"The conversation no longer fits the model's context; close the session and start a "
            f"new one. {upstream} said: {cause}",
            code="context_length_exceeded",
        )
    return ApiError(
        502, f"The model server at {upstream}: {cause or 'no cause given'}", code="agent_failed"
    )
