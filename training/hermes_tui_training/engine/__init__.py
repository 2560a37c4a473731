"""Engines sample tokens: the ``Engine`` protocol and its implementations."""

from __future__ import annotations

from pathlib import Path

from hermes_tui_training.api.config import ModelConfig, TrainingConfig, VllmAddress
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


def create_engine(
    config: TrainingConfig, model: ModelConfig, model_dir: Path, vllm: VllmAddress | None = None
) -> Engine:
    """Return the engine, not started yet.

    Args:
        config: ``[training]``.
        model: ``[model]``.
        model_dir: Hugging Face directory, as ``prepare_model`` returns it.
        vllm: the vLLM server that samples; None is the torch engine, in this process.
    """
    if vllm is not None:
        from hermes_tui_training.engine.vllm_engine import VllmEngine

        return VllmEngine(config, model_dir, vllm)
    from hermes_tui_training.engine.torch_engine import TorchEngine  # torch is slow to import

    return TorchEngine(config, model, model_dir)
