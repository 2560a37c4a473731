"""Engines sample tokens: the ``Engine`` protocol and its implementations."""

from __future__ import annotations

from pathlib import Path

from hermes_tui_training.api.config import ModelConfig, TrainingConfig
from hermes_tui_training.engine.base import (
    Engine,
    EngineOutput,
    EngineStats,
    FinishReason,
    SamplingParams,
)

__all__ = [
    "Engine",
    "EngineOutput",
    "EngineStats",
    "FinishReason",
    "SamplingParams",
    "create_engine",
]


def create_engine(config: TrainingConfig, model: ModelConfig, model_dir: Path) -> Engine:
    """Return the configured engine, not started yet.

    Args:
        config: ``[training]``; its ``engine`` section names the engine.
        model: ``[model]``.
        model_dir: Hugging Face directory, as ``prepare_model`` returns it.
    """
    from hermes_tui_training.engine.torch_engine import TorchEngine  # torch is slow to import

    return TorchEngine(config, model, model_dir)
