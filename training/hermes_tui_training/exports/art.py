"""ART (OpenPipe): one ``art.Trajectory`` per scored episode.

Each trainable completion is a history that ends in a ``Choice`` with its tokens as
``token_id:N``, which is how ART is given ids; the first is the trajectory's own, the others are
its ``additional_histories``. Raw prompts have no messages and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from hermes_tui_training.api.types import Completion, Episode
from hermes_tui_training.exports.rows import ExportOptions, rows_of


def convert(episodes: Iterable[Episode], options: ExportOptions) -> Iterator[dict[str, Any]]:
    """Yield a trajectory per scored episode with a trainable completion."""
    for episode in episodes:
        rows = rows_of(episode, replace(options, style="individual"))
        completions = [row.completions[0] for row in rows if row.is_trainable]
        histories = [_history(c) for c in completions if c.request_messages]
        if not histories:
            continue
        yield {
            **histories[0],
            "additional_histories": histories[1:],
            "reward": episode.reward,
            "initial_policy_version": episode.policy_version_min,
            "final_policy_version": episode.policy_version_max,
            "metrics": {"num_sampled_tokens": sum(len(c.token_ids) for c in completions)},
            "metadata": {
                "episode_id": episode.episode_id,
                "session_id": episode.session_id,
                "group_id": episode.group_id,
                "task_id": episode.task_id,
                **({"feedback": episode.feedback} if episode.feedback else {}),
            },
        }


def _history(completion: Completion) -> dict[str, Any]:
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{token_id}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token_id, logprob in pairs
    ]
    choice = {
        "index": 0,
        "finish_reason": completion.finish_reason,
        "message": completion.message,
        "logprobs": {"content": content, "refusal": None},
    }
    return {
        "messages_and_choices": [*completion.request_messages, choice],
        "tools": completion.tools or None,
    }
