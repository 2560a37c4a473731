"""Siblings of a group in a store, and what they record."""

from __future__ import annotations

import itertools

from hermes_tui_training.api.types import CompletionOutcome
from hermes_tui_training.store.store import Store

_numbers = itertools.count()


def sibling(store: Store, group_id: str = "siblings", task_id: str = "t") -> str:
    """Start a session of a group; return its id."""
    return store.sessions.create(
        key_hash=f"sibling-{next(_numbers)}", task_id=task_id, group_id=group_id
    ).session_id


def complete(store: Store, session_id: str, *, version: int = 0, truncated: bool = False) -> str:
    """Record one completion of a session; return its episode's id."""
    completion_id = f"chatcmpl-sibling-{next(_numbers)}"
    episode_id, _ = store.completions.begin(
        completion_id=completion_id,
        session_id=session_id,
        prompt_token_ids=(1, 2, 3),
        sampling={"temperature": 1.0},
        request_messages=[],
        tools=[],
        prefix={},
    )
    store.completions.finish(
        CompletionOutcome(
            completion_id=completion_id,
            token_ids=(4, 5),
            logprobs=(-1.0, -1.0),
            policy_versions=(version, version),
            finish_reason="length" if truncated else "stop",
            message={"role": "assistant", "content": "x"},
            latency={},
            trainable=not truncated,
            untrainable_reason="truncated" if truncated else None,
        )
    )
    return episode_id


def scored(store: Store, session_id: str, reward: float = 1.0, **kwargs: int) -> str:
    """Record one completion of a session and judge it; return its episode's id."""
    episode_id = complete(store, session_id, **kwargs)  # type: ignore[arg-type]
    store.rewards.set(episode_id, reward)
    return episode_id
