"""verifiers (Prime Intellect): one ``Trace`` per episode, a branch per token sequence.

A node holds the tokens that its message added. A prompt's new tokens cannot be told apart by
message without the template, so they stand before the reply's own in the reply's node, as the
scaffold does there; the nodes of the messages between have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hermes_tui_training.api.types import Completion, Episode
from hermes_tui_training.exports.rows import ExportOptions, Row, rows_of

_VERSION = "0.4.0"
"""The release whose schema this is."""

_TRACE_VERSION = 1
_FINISH_REASONS = ("stop", "length", "tool_calls")


def convert(episodes: Iterable[Episode], options: ExportOptions) -> Iterator[dict[str, Any]]:
    """Yield a trace per episode that sampled anything, with a reward or without."""
    for episode in episodes:
        rows = rows_of(episode, replace(options, style="concat"))
        if rows:
            yield _trace(episode, rows)


def _trace(episode: Episode, rows: Sequence[Row]) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for row in rows:
        _add_branch(nodes, calls, row)
    reward = None if episode.reward is None else {"score": episode.reward, "weight": 1.0}
    return {
        "version": _TRACE_VERSION,
        "id": episode.episode_id,
        "verifiers": {"version": _VERSION},
        "task": {"type": "Task", "data": {"id": episode.task_id}, "key": episode.task_id},
        "agent": {"config": {}, "name": "agent"},
        "tools": _tools(rows[-1].completions[-1].tools),
        "nodes": nodes,
        "calls": calls,
        "rewards": {"judgement": reward},
        "info": {
            "session_id": episode.session_id,
            "group_id": episode.group_id,
            "state": episode.state,
            "feedback": episode.feedback,
            "policy_version_min": episode.policy_version_min,
            "policy_version_max": episode.policy_version_max,
        },
        "is_completed": episode.state != "open",
        "ok": not episode.incomplete,
        "timing": {"start": episode.created_at},
    }


def _add_branch(nodes: list[dict[str, Any]], calls: list[dict[str, Any]], row: Row) -> None:
    """Add a path from a root to the row's last reply."""
    parent: int | None = None
    known = 0
    for completion in row.completions:
        for message in _new_messages(completion, first=parent is None):
            parent = _add(nodes, parent, message=_message(message))
        if not known and nodes and completion.tools and parent is not None:
            _root_of(nodes, parent)["tools"] = _tools(completion.tools)
        new = [*completion.prompt_token_ids[known:], *completion.token_ids]
        known += len(new)
        num_sampled, trainable = len(completion.token_ids), completion.trainable
        parent = _add(
            nodes,
            parent,
            message=_message(completion.message or {"role": "assistant", "content": ""}),
            sampled=True,
            timestamp=completion.created_at,
            token_ids=new,
            mask=[False] * (len(new) - num_sampled) + [trainable] * num_sampled,
            logprobs=list(completion.logprobs) if trainable else [],
        )
        calls.append(_call(completion, parent))


def _add(nodes: list[dict[str, Any]], parent: int | None, **fields: Any) -> int:
    nodes.append({"parent": parent, **fields})
    return len(nodes) - 1


def _root_of(nodes: Sequence[dict[str, Any]], index: int) -> dict[str, Any]:
    while nodes[index]["parent"] is not None:
        index = nodes[index]["parent"]
    return nodes[index]


def _new_messages(completion: Completion, *, first: bool) -> list[dict[str, Any]]:
    """Return the messages that no node before has: all, or those after the last reply."""
    messages = completion.request_messages
    if first:
        return messages
    spoken = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return messages[spoken[-1] + 1 :] if spoken else messages


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return one of chat's messages; calls are flat here, and developers are the system."""
    role = "system" if message["role"] == "developer" else message["role"]
    kept = ("content", "reasoning_content", "tool_call_id", "name")
    found = {key: message[key] for key in kept if message.get(key) is not None}
    if role != "assistant":
        found.setdefault("content", "")
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [
            {
                "id": call.get("id") or "",
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            }
            for call in calls
        ]
    return found | {"role": role}


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "function", **tool["function"]} for tool in tools]


def _call(completion: Completion, node: int) -> dict[str, Any]:
    reason = completion.finish_reason
    end = completion.created_at + completion.latency.get("total_s", 0.0)
    return {
        "node": node,
        "finish_reason": reason if reason in _FINISH_REASONS else None,
        "usage": {
            "prompt_tokens": len(completion.prompt_token_ids),
            "completion_tokens": len(completion.token_ids),
        },
        "time": {"start": completion.created_at, "end": end},
    }
