"""The policy being trained: a causal language model with adapters, or all of its weights.

Shape legend: B samples, T tokens, N trained tokens of a batch, V vocabulary, D hidden, K rows kept.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from hermes_tui_common.errors import ConfigError, TrainingError
from hermes_tui_common.heartbeat import advance
from hermes_tui_training.api.config import LoraConfig
from hermes_tui_training.learner.batches import Batch

logger = logging.getLogger(__name__)

LOGIT_ROWS = 256
"""Rows of logits that exist at once: 50 MB at a vocabulary of 49,152, 160 MB at 152,064."""

CHECKPOINTING_TOKENS = 512
"""Padded tokens from which activations are recomputed in the backward pass, not kept: below, they
fit beside the engine (2 GB for a 135M model) and recomputing would only take time."""

_ADAPTER_SEED = 0
"""Adapters start the same in every process, so that version 0 is one model, not many."""

disable_progress_bar()  # the log is read by people and by the supervisor

_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER = "adapter_model.safetensors"
_WEIGHTS = "model.safetensors"
_PROBE_TOKENS = 8
_PROBE_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What the model says of the trained tokens of a batch."""

    logprobs_N: Tensor
    """[N] float32, natural log, of the token that was sampled, at its temperature."""
    entropy_N: Tensor
    """[N] float32, nats, at the same temperature; detached."""
    kept_KV: Tensor
    """[K, V] float32, all log-probabilities of the rows that were asked for; detached."""


class PolicyModel:
    """A model to train, its reference, and how both are read and written.

    Adapters (rank > 0): the model itself stays as it is, which also makes it the reference.
    Otherwise all weights are trained, in float32 even where the computation is in bfloat16: the
    updates are too small for bfloat16 weights.
    """

    def __init__(
        self,
        directory: Path,
        lora: LoraConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        with_reference: bool,
    ) -> None:
        """Load a model.

        Args:
            directory: in Hugging Face layout.
            lora: rank 0 trains all weights.
            device: where to compute.
            dtype: precision of the computation.
            with_reference: whether ``reference_logprobs`` will be asked for; costs a second copy
                of the weights when all of them are trained.
        Raises: ConfigError: the directory holds no model that can be trained here.
        """
        self._directory = directory
        self.device = device
        self._dtype = dtype
        self._peft: Any = None
        self._reference: Any = None
        self._causal = self._load(dtype if lora.rank else torch.float32)
        self._check_head(directory)
        if lora.rank:
            torch.manual_seed(_ADAPTER_SEED)
            self._peft = _with_adapters(self._causal, lora)
            self._fresh = {k: v.clone() for k, v in get_peft_model_state_dict(self._peft).items()}
        elif with_reference:
            self._reference = self._load(dtype).requires_grad_(False)
        _recompute_activations(self._causal)

    @property
    def kind(self) -> Literal["adapter", "full"]:
        """What is trained and saved."""
        return "adapter" if self._peft is not None else "full"

    def parameters(self) -> list[nn.Parameter]:
        """Return the weights that are trained."""
        return [p for p in self._causal.parameters() if p.requires_grad]

    def score_for_gradient(self, batch: Batch, kept_rows: Tensor | None = None) -> TokenScores:
        """Return the same as ``score``, with a gradient behind ``logprobs_N``."""
        self._causal.train(batch.token_ids_BT.numel() >= CHECKPOINTING_TOKENS)
        try:
            return self._score(self._causal, batch, kept_rows)
        finally:
            self._causal.eval()

    @torch.no_grad()
    def score(self, batch: Batch, kept_rows: Tensor | None = None) -> TokenScores:
        """Return what the policy says of a batch's trained tokens.

        Args:
            batch: samples, padded on the right.
            kept_rows: indices into the N trained tokens whose log-probabilities are all wanted.
        """
        return self._score(self._causal, batch, kept_rows)

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """Return [N] float32 log-probabilities under the weights that training started from."""
        with torch.no_grad(), self._as_reference() as model:
            return self._score(model, batch, None).logprobs_N

    def save(self, directory: Path) -> None:
        """Write the trained weights in Hugging Face (or peft) layout."""
        if self._peft is not None:
            self._peft.save_pretrained(directory)
            # Where the base model is, so that transformers and peft find it with nothing set.
            base = str(self._directory.resolve())
            _set_json(directory / _ADAPTER_CONFIG, "base_model_name_or_path", base)
            (directory / "README.md").unlink(missing_ok=True)
        else:
            self._causal.save_pretrained(directory, max_shard_size="1000GB")

    def load(self, directory: Path | None) -> None:
        """Take the weights of a checkpoint, or those that training starts from for None.

        Raises: TrainingError: the checkpoint does not fit this model; the old weights stay or,
            after an error half way, a later load puts things right.
        """
        if self._peft is not None:
            weights = self._fresh if directory is None else _read(directory / _ADAPTER)
            if set(weights) != set(self._fresh):
                raise TrainingError(f"{directory} holds another adapter than this model's")
            set_peft_model_state_dict(self._peft, weights)
        elif directory is None:
            self._causal.load_state_dict(self._load(torch.float32).state_dict())
        else:
            self._load_full(_read(directory / _WEIGHTS), directory)

    def _load_full(self, weights: dict[str, Tensor], directory: Path) -> None:
        state = self._causal.state_dict()
        present = {state[name].data_ptr() for name in weights if name in state}
        missing = [name for name in state if state[name].data_ptr() not in present]
        unknown = [name for name in weights if name not in state]
        if missing or unknown:
            raise TrainingError(f"{directory} holds another model: {[*missing, *unknown][:3]}")
        self._causal.load_state_dict(weights, strict=False)  # tied weights are named once

    def _load(self, dtype: torch.dtype) -> Any:
        try:
            model = AutoModelForCausalLM.from_pretrained(
                self._directory, dtype=dtype, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"model.path: {self._directory}: {error}") from error
        for module in model.modules():
            # Dropout would make the recomputed log-probabilities another policy's.
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0
        return model.to(self.device).eval()

    def _check_head(self, directory: Path) -> None:
        """Refuse models whose logits are more than the head's product with the hidden states."""
        ids = torch.arange(1, _PROBE_TOKENS + 1, device=self.device)[None]
        with torch.no_grad(), self._autocast():
            theirs = self._causal(input_ids=ids, use_cache=False).logits.float()
            ours = self._head(self._causal, self._hidden(self._causal, ids, None))
        if not torch.allclose(ours, theirs, atol=_PROBE_TOLERANCE, rtol=_PROBE_TOLERANCE):
            raise ConfigError(
                f"model.path: {directory}: {type(self._causal).__name__} changes its logits after "
                "the output layer, which training does not support"
            )

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._dtype)

    def _as_reference(self) -> Any:
        if self._peft is None:
            assert self._reference is not None, "the model was loaded without a reference"
            return nullcontext(self._reference)
        return _WithoutAdapter(self._peft, self._causal)

    @staticmethod
    def _hidden(model: Any, ids_BT: Tensor, attention_BT: Tensor | None) -> Tensor:
        backbone = model.base_model
        hidden: Tensor = backbone(
            input_ids=ids_BT, attention_mask=attention_BT, use_cache=False
        ).last_hidden_state
        return hidden

    @staticmethod
    def _head(model: Any, hidden_ND: Tensor) -> Tensor:
        logits: Tensor = model.get_output_embeddings()(hidden_ND)
        return logits.float()

    def _trained_hidden(self, model: Any, batch: Batch) -> Tensor:
        with self._autocast():
            hidden_BTD = self._hidden(model, batch.token_ids_BT, batch.attention_mask_BT)
        # The hidden state of token t - 1 is what predicts token t.
        return hidden_BTD[:, :-1][batch.loss_mask_BT[:, 1:]]

    def _score(self, model: Any, batch: Batch, kept_rows: Tensor | None) -> TokenScores:
        advance()
        hidden_ND = self._trained_hidden(model, batch)
        logprobs, entropies, kept = [], [], []
        for rows in _row_chunks(len(hidden_ND)):
            # Logits are the largest tensors of all: the backward pass makes them anew.
            logprobs_n, entropy_n, kept_kV = checkpoint(
                self._score_rows,
                model,
                hidden_ND[rows],
                batch.targets_N[rows],
                batch.temperatures_N[rows],
                _within(kept_rows, rows),
                use_reentrant=False,
            )
            logprobs.append(logprobs_n)
            entropies.append(entropy_n)
            kept.append(kept_kV)
        return TokenScores(
            logprobs_N=torch.cat(logprobs),
            entropy_N=torch.cat(entropies),
            kept_KV=torch.cat(kept),
        )

    def _score_rows(
        self,
        model: Any,
        hidden_nD: Tensor,
        targets_n: Tensor,
        temperatures_n: Tensor,
        kept_rows: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        all_nV = self._row_distributions(hidden_nD, temperatures_n, model)
        fixed_nV = all_nV.detach()
        entropy_n = -(fixed_nV.exp() * fixed_nV).sum(-1)
        return all_nV.gather(1, targets_n[:, None])[:, 0], entropy_n, fixed_nV[kept_rows]

    def _row_distributions(self, hidden_nD: Tensor, temperatures_n: Tensor, model: Any) -> Tensor:
        with self._autocast():
            logits_nV = self._head(model, hidden_nD)
        return torch.log_softmax(logits_nV / temperatures_n[:, None], dim=-1)


class _WithoutAdapter:
    """The model with its adapters switched off, while entered."""

    def __init__(self, peft: Any, causal: Any) -> None:
        self._off = peft.disable_adapter()
        self._causal = causal

    def __enter__(self) -> Any:
        self._off.__enter__()
        return self._causal

    def __exit__(self, *error: Any) -> None:
        self._off.__exit__(*error)


def _with_adapters(causal: Any, lora: LoraConfig) -> Any:
    config = PeftLoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():
        # peft asks the model by a name that newer transformers deprecate.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return get_peft_model(causal, config)


def _recompute_activations(causal: Any) -> None:
    """Have the backward pass of a model in training mode recompute its activations."""
    enable = getattr(causal, "activation_checkpointing_enable", None)
    (enable or causal.gradient_checkpointing_enable)({"use_reentrant": False})


def _row_chunks(num_rows: int) -> Iterator[slice]:
    for start in range(0, num_rows, LOGIT_ROWS):
        yield slice(start, min(start + LOGIT_ROWS, num_rows))


def _within(kept_rows: Tensor | None, rows: slice) -> Tensor:
    """Return the kept rows that lie in a chunk, counted from its start."""
    if kept_rows is None:
        return torch.empty(0, dtype=torch.long)
    inside: Tensor = kept_rows[(kept_rows >= rows.start) & (kept_rows < rows.stop)] - rows.start
    return inside


def _read(path: Path) -> dict[str, Tensor]:
    try:
        weights: dict[str, Tensor] = load_file(path)
    except Exception as error:  # safetensors has an error class of its own for damaged files
        raise TrainingError(f"{path} cannot be read: {error}") from error
    return weights


def _set_json(path: Path, key: str, value: object) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, key: value}, indent=1), encoding="utf-8")
