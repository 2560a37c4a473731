"""Reads weights: a Hugging Face directory, or a checkpoint of it (full, or a LoRA adapter).

An adapter is always of the original base weights: rounding errors do not add up over many versions.
It can be read merged, in float32, or beside the weight that it changes: a weight in bfloat16 would
lose most of what an adapter adds to it.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.engine.decoder import LowRank, State

_ADAPTER_PREFIX = "base_model.model."
_LORA_KEY = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(?:\.default)?\.weight")
_TIED_HEAD = "lm_head.weight"


def read_checkpoint(model_dir: Path, checkpoint: Path) -> State:
    """Return all weights of a checkpoint of a model, on the CPU.

    An adapter is merged weight by weight as they are read; base weights stay memory-mapped.

    Args:
        model_dir: Hugging Face directory of the base model.
        checkpoint: a directory with ``model.safetensors`` (or its shards), or with
            ``adapter_config.json`` and ``adapter_model.safetensors``; may be ``model_dir`` itself.
    Raises: TrainingError: a file is missing, broken, of another model, or holds NaN or infinity.
    """
    try:
        if (checkpoint / "adapter_config.json").exists():
            return _with_adapter(_read_directory(model_dir), checkpoint)
        tensors = _read_directory(checkpoint)
        if checkpoint != model_dir:
            _check_same_model(tensors, model_dir, checkpoint)
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise TrainingError(f"the weights in {checkpoint} cannot be loaded: {error}") from error
    for name, weight in tensors.items():
        _require_finite(weight, name, checkpoint)
    return State(tensors, {} if checkpoint == model_dir else None)


def _require_finite(weight: Tensor, name: str, checkpoint: Path) -> None:
    if not torch.isfinite(weight.sum()) and not torch.isfinite(weight).all():
        raise TrainingError(f"the weights in {checkpoint} are not finite: {name}")


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [directory / name for name in sorted(names)]
    return [directory / "model.safetensors"]


def _read_directory(directory: Path) -> dict[str, Tensor]:
    return {name: weight for file in _weight_files(directory) for name, weight in _tensors(file)}


def _tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist")
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - safe_open is not a mapping
            yield name, opened.get_tensor(name)


def _shapes(directory: Path) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for file in _weight_files(directory):
        with safe_open(file, framework="pt") as opened:
            shapes.update({key: opened.get_slice(key).get_shape() for key in opened.keys()})  # noqa: SIM118
    return shapes


def _check_same_model(state: dict[str, Tensor], model_dir: Path, checkpoint: Path) -> None:
    """Compare names and shapes with the base model; a tied head may be missing or present."""
    expected = _shapes(model_dir)
    found = {name: list(weight.shape) for name, weight in state.items()}
    expected.pop(_TIED_HEAD, None)
    found.pop(_TIED_HEAD, None)
    if found != expected:
        name = next(n for n in {**expected, **found} if found.get(n) != expected.get(n))
        raise ValueError(
            f"{name} is {found.get(name, 'missing')} in {checkpoint.name} and "
            f"{expected.get(name, 'missing')} in the base model"
        )


def _with_adapter(base: dict[str, Tensor], checkpoint: Path) -> State:
    """Return base + scale · B @ A for each adapted weight; other tensors replace the base's."""
    config = json.loads((checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
    if config.get("peft_type") != "LORA" or config.get("use_dora") or config.get("fan_in_fan_out"):
        raise ValueError("it is no plain LoRA adapter (DoRA and others are not supported)")
    tensors = dict(base)
    changes: dict[str, Callable[[], Tensor]] = {}
    adapters: dict[str, LowRank] = {}
    factors: dict[str, dict[str, Tensor]] = {}
    for key, tensor in _tensors(checkpoint / "adapter_model.safetensors"):
        _require_finite(tensor, key, checkpoint)
        if match := _LORA_KEY.fullmatch(key):
            module = match["module"].removeprefix(_ADAPTER_PREFIX)
            factors.setdefault(module, {})[match["part"]] = tensor.float()
        else:
            name = key.removeprefix(_ADAPTER_PREFIX)
            if name not in base or base[name].shape != tensor.shape:
                raise ValueError(f"the adapter's tensor {key} has no counterpart in the base model")
            tensors[name] = tensor
            changes[name] = functools.partial(tensors.__getitem__, name)
    for module, pair in factors.items():
        name, up, down = f"{module}.weight", pair["B"], pair["A"]
        if base[name].shape != (up.shape[0], down.shape[1]) or up.shape[1] != down.shape[0]:
            raise ValueError(f"the adapter of {module} does not fit the base model's weight")
        adapters[name] = LowRank(up=up, down=down * _scale(config, module))
        changes[name] = functools.partial(_merged, tensors[name], adapters[name], name, checkpoint)
    return State(tensors, changes, adapters)


def _merged(base: Tensor, adapter: LowRank, name: str, checkpoint: Path) -> Tensor:
    merged = adapter.merged_into(base)
    _require_finite(merged, name, checkpoint)
    return merged


def _scale(config: dict[str, Any], module: str) -> float:
    def of_module(pattern_key: str, default_key: str) -> float:
        patterns: dict[str, float] = config.get(pattern_key) or {}
        for pattern, value in patterns.items():
            if re.fullmatch(rf"(.*\.)?{pattern}", module):
                return float(value)
        return float(config[default_key])

    rank = of_module("rank_pattern", "r")
    alpha = of_module("alpha_pattern", "lora_alpha")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
