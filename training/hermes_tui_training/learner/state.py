"""What a checkpoint holds beside the weights: what must fit, and counters."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from hermes_tui_common.errors import TrainingError

_STATE = "training_state.json"


class TrainingState(BaseModel):
    """What the next step needs beside the weights and the baselines."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    model: str
    """``model.path`` that training started from."""
    kind: str
    """``adapter`` or ``full``."""
    rank: int
    """Rank of the adapters; 0 for all weights."""
    alpha: float
    """Scale of the adapters."""
    num_updates: int
    """Updates so far."""
    linearity: float = 1.0
    """See ``Updater.linearity``."""


def write_state(directory: Path, state: TrainingState) -> None:
    """Write a state into a checkpoint directory."""
    (directory / _STATE).write_text(state.model_dump_json(), encoding="utf-8")


def read_state(directory: Path) -> TrainingState:
    """Return the state in a checkpoint directory.

    Raises: TrainingError: it is missing or damaged.
    """
    try:
        return TrainingState.model_validate_json((directory / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise TrainingError(f"{directory} cannot be read: {error}") from error
