"""Atropos (Nous Research): one ``ScoredDataGroup`` per group of siblings.

``masks`` hold the token where it is trained and -100 elsewhere; ``inference_logprobs`` are 1.0
where nothing was sampled, as in Atropos' own servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hermes_tui_training.api.types import Episode
from hermes_tui_training.exports.rows import ExportOptions, Row, trainable_rows

MASKED = -100
"""Label of a token that the loss ignores."""

NOT_SAMPLED = 1.0
"""Logprob of a token that was not sampled: no real one is above 0."""


def convert(episodes: Iterable[Episode], options: ExportOptions) -> Iterator[dict[str, Any]]:
    """Yield a group of the scored sequences of each group, in order of their first episode."""
    groups: dict[str, list[Row]] = {}
    for row in trainable_rows(episodes, options):
        groups.setdefault(row.episode.group_id, []).append(row)
    for group_id, rows in groups.items():
        yield {
            "tokens": [row.token_ids for row in rows],
            "masks": [_masks(row) for row in rows],
            "scores": [row.reward for row in rows],
            "advantages": None,
            "ref_logprobs": None,
            "inference_logprobs": [_logprobs(row) for row in rows],
            "messages": [_messages(row) for row in rows],
            "generation_params": None,
            "group_overrides": {"group_id": group_id, "task_id": rows[0].episode.task_id},
            "overrides": [
                {"episode_id": row.episode.episode_id, "feedback": row.episode.feedback}
                for row in rows
            ],
            "images": None,
        }


def _masks(row: Row) -> list[int]:
    pairs = zip(row.token_ids, row.loss_mask, strict=True)
    return [token_id if mask else MASKED for token_id, mask in pairs]


def _logprobs(row: Row) -> list[float]:
    pairs = zip(row.logprobs, row.versions, strict=True)
    return [NOT_SAMPLED if version < 0 else logprob for logprob, version in pairs]


def _messages(row: Row) -> list[dict[str, Any]]:
    return [message | {"content": message.get("content") or ""} for message in row.messages]
