"""What a checkpoint holds beside the weights: the optimizer, counters, and what must fit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hermes_tui_common.errors import TrainingError

_STATE = "training_state.json"
_OPTIMIZER = "optimizer.pt"
_JSON_KEYS = ("model", "kind", "rank", "alpha", "num_updates")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Everything that the next step needs beside the weights and the baselines."""

    model: str
    """``model.path`` that training started from."""
    kind: str
    """``adapter`` or ``full``."""
    rank: int
    """Rank of the adapters; 0 for all weights."""
    alpha: float
    """Scale of the adapters."""
    num_updates: int
    """Optimizer updates so far; the warm-up counts them."""
    optimizer: dict[str, Any]
    """The optimizer's own state."""
    rng: Tensor
    """State of torch's random generator, uint8."""


def write_state(directory: Path, state: TrainingState) -> None:
    """Write a state into a checkpoint directory."""
    row = {key: getattr(state, key) for key in _JSON_KEYS}
    (directory / _STATE).write_text(json.dumps(row), encoding="utf-8")
    torch.save({"optimizer": state.optimizer, "rng": state.rng}, directory / _OPTIMIZER)


def read_state(directory: Path, device: torch.device) -> TrainingState:
    """Return the state in a checkpoint directory.

    Raises: TrainingError: it is missing or damaged.
    """
    try:
        row = json.loads((directory / _STATE).read_text(encoding="utf-8"))
        tensors = torch.load(directory / _OPTIMIZER, map_location=device, weights_only=True)
        return TrainingState(
            **row, optimizer=tensors["optimizer"], rng=tensors["rng"].to("cpu", torch.uint8)
        )
    except Exception as error:  # torch raises many classes for a damaged file
        raise TrainingError(f"{directory} cannot be read: {error}") from error
