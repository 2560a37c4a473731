"""Tinker (Thinking Machines): one ``Datum`` per sequence, for its ``importance_sampling`` loss.

Inputs and targets are the sequence shifted by one. ``advantages`` are the returns, no baseline
taken off: subtract a group's mean before a forward pass where that is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hermes_tui_training.api.types import Episode
from hermes_tui_training.exports.rows import ExportOptions, trainable_rows


def convert(episodes: Iterable[Episode], options: ExportOptions) -> Iterator[dict[str, Any]]:
    """Yield a datum per sequence with a reward and a token to train."""
    for row in trainable_rows(episodes, options):
        logprobs = [
            logprob if mask else 0.0
            for logprob, mask in zip(row.logprobs, row.loss_mask, strict=True)
        ]
        chunk = {"type": "encoded_text", "tokens": row.token_ids[:-1]}
        yield {
            "model_input": {"chunks": [chunk]},
            "loss_fn_inputs": {
                "target_tokens": _tensor(row.token_ids, "int64"),
                "logprobs": _tensor(logprobs, "float32"),
                "advantages": _tensor(row.advantages, "float32"),
            },
        }


def _tensor(values: list[Any], dtype: str) -> dict[str, Any]:
    """Return what belongs to the targets: the values without the first."""
    return {"data": values[1:], "dtype": dtype, "shape": [len(values) - 1]}
