"""Any causal language model, through transformers' own forward pass and cache.

The path for models that ``llama.py`` does not know: one sequence at a time, so it is correct and
slow. A cache can be extended, but not cut, since not every architecture's can.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.engine.decoder import Segment, State


class TransformersCache:
    """transformers' cache of one sequence."""

    __slots__ = ("length", "values")

    def __init__(self, values: Any, length: int) -> None:
        self.values = values
        self.length = length

    def fork(self, length: int) -> TransformersCache | None:
        """Return a copy when all of it is wanted, else None."""
        if length != self.length:
            return None
        return TransformersCache(copy.deepcopy(self.values), length)


class TransformersDecoder:
    """A model loaded by transformers; see ``Decoder``."""

    def __init__(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        try:
            model = AutoModelForCausalLM.from_pretrained(
                model_dir, dtype=dtype, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise TrainingError(f"the model in {model_dir} cannot be loaded: {error}") from error
        self._model = model.to(device).eval()
        self._device = device
        self._config = model.config.get_text_config()
        # Newer versions of transformers renamed it, and warn about the old name.
        parameters = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self._config.vocab_size)

    @property
    def context_length(self) -> int:
        """Longest sequence the model was made for, in tokens."""
        return int(getattr(self._config, "max_position_embeddings", None) or 2048)

    def new_cache(self) -> TransformersCache:
        """Return an empty cache; the model makes its own kind at its first tokens."""
        return TransformersCache(None, 0)

    def prepare(self, state: State) -> Callable[[], None]:
        """Check new weights against the model; the returned call copies them into it."""
        own, new = self._model.state_dict(), dict(state)
        for name, weight in new.items():
            if name in own and own[name].shape != weight.shape:
                raise TrainingError(f"{name} has another shape in these weights")
        if unknown := sorted(new.keys() - own.keys()):
            raise TrainingError(f"the model has no weight {unknown[0]}")

        def install() -> None:
            self._model.load_state_dict(new, strict=False)

        return install

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> Tensor:
        """Return the logits after each segment's last token, [S, V] float32."""
        return torch.cat([self._forward_one(segment) for segment in segments]).float()

    def _forward_one(self, segment: Segment) -> Tensor:
        cache = segment.cache
        assert isinstance(cache, TransformersCache)
        output = self._model(
            input_ids=torch.tensor([segment.token_ids], device=self._device),
            use_cache=True,
            **self._last_only,
            **{self._cache_name: cache.values},
        )
        cache.values = output[self._cache_name]
        cache.length += len(segment.token_ids)
        logits: Tensor = output.logits[:, -1]
        return logits
