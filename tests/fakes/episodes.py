"""Episodes made in code."""

from __future__ import annotations

from typing import Any

from hermes_tui_training.api.types import Completion, Episode, RewardEntry


def make_completion(
    completion_id: str = "chatcmpl-1",
    prompt: tuple[int, ...] = (1, 2, 3),
    sampled: tuple[int, ...] = (4, 5),
    *,
    version: int = 0,
    logprobs: tuple[float, ...] | None = None,
    temperature: float = 1.0,
    **changes: Any,
) -> Completion:
    """Return a finished completion; it is trainable unless told otherwise."""
    values: dict[str, Any] = {
        "completion_id": completion_id,
        "episode_id": "ep-1",
        "turn_index": 0,
        "created_at": 0.0,
        "prompt_token_ids": prompt,
        "token_ids": sampled,
        "logprobs": logprobs or tuple(-1.0 - i / 8 for i in range(len(sampled))),
        "policy_versions": (version,) * len(sampled),
        "finish_reason": "stop",
        "sampling": {"temperature": temperature},
        "request_messages": [],
        "message": {"role": "assistant", "content": "x"},
        "trainable": True,
    }
    return Completion(**{**values, **changes})


def make_episode(
    *completions: Completion,
    episode_id: str = "ep-1",
    reward: float | None = 1.0,
    task_id: str = "task",
    whole: bool = True,
) -> Episode:
    """Return a scored episode; ``whole`` tells whether its reward was given without an id."""
    log = ()
    if reward is not None and whole:
        log = (RewardEntry(reward=reward, interaction_id=None, at=1.0),)
    return Episode(
        episode_id=episode_id,
        session_id="sess-1",
        group_id="group-1",
        task_id=task_id,
        state="scored",
        reward=reward,
        reward_log=log,
        scored_at=1.0,
        created_at=0.0,
        completions=completions,
    )
