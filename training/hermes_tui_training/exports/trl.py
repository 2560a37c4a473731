"""TRL: conversational prompt-completion rows for ``datasets``, one per trainable completion.

``prompt`` and ``completion`` suit its SFT trainer, with ``label`` (whether the return is above 0)
its KTO trainer; ``prompt_ids``, ``completion_ids`` and ``logprobs`` are what a ``rollout_func`` of
its GRPO trainer returns. Raw prompts have no messages and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from hermes_tui_training.api.types import Episode
from hermes_tui_training.exports.rows import ExportOptions, trainable_rows


def convert(episodes: Iterable[Episode], options: ExportOptions) -> Iterator[dict[str, Any]]:
    """Yield a row per trainable completion of a scored episode."""
    for row in trainable_rows(episodes, replace(options, style="individual")):
        (completion,) = row.completions
        assert row.reward is not None, "the row is trainable"
        if not completion.request_messages:
            continue
        yield {
            "prompt": completion.request_messages,
            "completion": [completion.message],
            "tools": completion.tools or None,
            "label": row.reward > 0,
            "reward": row.reward,
            "feedback": row.episode.feedback,
            "prompt_ids": list(completion.prompt_token_ids),
            "completion_ids": list(completion.token_ids),
            "logprobs": list(completion.logprobs),
            "policy_versions": list(completion.policy_versions),
            "completion_id": completion.completion_id,
            "episode_id": row.episode.episode_id,
            "group_id": row.episode.group_id,
            "task_id": row.episode.task_id,
        }
