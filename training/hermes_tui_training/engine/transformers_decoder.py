"""Any causal language model, through transformers' own forward pass and cache.

Used for models that ``llama.py`` does not support. It is slow: one sequence at a time. A cache can
be extended but not shortened, since not every architecture's cache can be.
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
from hermes_tui_training.engine.decoder import Chunk, LowRank, State
from hermes_tui_training.engine.linear import Linear


class TransformersCache:
    """transformers' cache of one sequence."""

    __slots__ = ("length", "values")

    def __init__(self, values: Any, length: int) -> None:
        self.values = values
        self.length = length

    def fork(self, length: int) -> TransformersCache | None:
        """Return a copy of the whole cache; None for a part of it."""
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
        self._dtype = dtype
        self._adapted: list[Any] = []
        """Layers with an adapter beside their weight."""
        self._config = model.config.get_text_config()
        # Models differ in what they call it, and some warn about the other name
        # (https://github.com/huggingface/transformers/pull/43679; checked with 5.24).
        parameters = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self._config.vocab_size)

    @property
    def context_length(self) -> int:
        """Longest sequence that the model was trained for, in tokens."""
        return int(getattr(self._config, "max_position_embeddings", None) or 2048)

    def new_cache(self) -> TransformersCache:
        """Return an empty cache; the model fills in its own kind in the first forward pass."""
        return TransformersCache(None, 0)

    def prepare(self, state: State) -> Callable[[], None]:
        """Check new weights against the model; calling the result copies them into it."""
        own = self._model.state_dict()
        merges = self._dtype == torch.float32
        parts = {name: (state[name], None) if merges else state.unmerged(name) for name in state}
        new = {name: weight for name, (weight, _) in parts.items()}
        adapters = {name: low for name, (_, low) in parts.items() if low is not None}
        for name, weight in new.items():
            if name in own and own[name].shape != weight.shape:
                raise TrainingError(f"{name} has another shape in the model")
        if unknown := sorted(new.keys() - own.keys()):
            raise TrainingError(f"the model has no weight {unknown[0]}")

        def install() -> None:
            self._model.load_state_dict(new, strict=False)
            for module in self._adapted:
                del module.forward  # its class's own
            self._adapted = [self._adapt(name, low) for name, low in adapters.items()]

        return install

    def _adapt(self, name: str, adapter: LowRank) -> Any:
        """Have a linear layer add what an adapter says; return the layer."""
        module = self._model.get_submodule(name.removesuffix(".weight"))
        linear = Linear(module.weight, module.bias, adapter)

        def forward(x: Tensor) -> Tensor:
            return linear(x.flatten(0, -2)).view(*x.shape[:-1], -1)

        module.forward = forward
        return module

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Return the logits after each chunk's last token, [S, V] float32."""
        return torch.cat([self._forward_one(chunk) for chunk in chunks]).float()

    def _forward_one(self, chunk: Chunk) -> Tensor:
        cache = chunk.cache
        assert isinstance(cache, TransformersCache)
        output = self._model(
            input_ids=torch.tensor([chunk.token_ids], device=self._device),
            use_cache=True,
            **self._last_only,
            **{self._cache_name: cache.values},
        )
        cache.values = output[self._cache_name]
        cache.length += len(chunk.token_ids)
        logits: Tensor = output.logits[:, -1]
        return logits
