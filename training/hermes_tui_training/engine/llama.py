"""Our own forward pass for Llama-shaped decoders: Llama, SmolLM2, Mistral, Qwen2 and Qwen3 (dense).

One pass computes the next token of many sequences together with chunks of prompts. The weights are
read once for all of them; on a CPU, reading the weights is most of the cost of a decode step.

Shapes: T tokens of all chunks, D hidden, H query heads, K key-value heads, G = H / K,
E head size, F feed-forward, P positions of one sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hermes_tui_training.engine.decoder import Chunk, State
from hermes_tui_training.engine.linear import Linear, unmerged

_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"

_CACHE_BLOCK = 256
"""A cache grows by this many tokens: small enough to waste little, large enough to copy rarely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """Sizes of a Llama-shaped decoder."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    norm_eps: float
    tied_head: bool
    inverse_frequencies: tuple[float, ...]
    """Rotary angle per position, one per pair of a head's elements."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LlamaShape | None:
        """Return the sizes in a ``config.json``; None if this file cannot compute the model."""
        if (
            config.get("architectures", [None])[0] not in _ARCHITECTURES
            or config.get("hidden_act", "silu") != "silu"
            or config.get("quantization_config")
            or _slides(config)
            or (frequencies := _inverse_frequencies(config)) is None
        ):
            return None
        heads = config["num_attention_heads"]
        return cls(
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_size=_head_size(config),
            vocab_size=config["vocab_size"],
            context_length=config["max_position_embeddings"],
            norm_eps=config.get("rms_norm_eps", 1e-6),
            tied_head=config.get("tie_word_embeddings", False),
            inverse_frequencies=frequencies,
        )


def _slides(config: dict[str, Any]) -> bool:
    """True if a layer uses sliding-window attention."""
    window = config.get("sliding_window") and config.get("use_sliding_window", True)
    return bool(window) or "sliding_attention" in (config.get("layer_types") or [])


def _head_size(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _inverse_frequencies(config: dict[str, Any]) -> tuple[float, ...] | None:
    """Return the rotary frequencies; None for a kind of scaling that is not supported."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10_000.0
    size = _head_size(config)
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        return None
    plain = [1.0 / theta ** (index / size) for index in range(0, size, 2)]
    if kind == "default":
        return tuple(plain)
    if kind == "linear":
        return tuple(frequency / rope["factor"] for frequency in plain)
    if kind == "llama3":
        return tuple(_llama3_frequency(frequency, rope) for frequency in plain)
    return None


def _llama3_frequency(frequency: float, rope: dict[str, Any]) -> float:
    """Scale one frequency as Llama 3.1 does.

    Low frequencies are divided by the factor and high ones stay; between them it is interpolated
    (``_compute_llama3_parameters`` in transformers' ``modeling_rope_utils``).
    """
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return float(frequency * (kept + (1 - kept) / rope["factor"]))


class LlamaCache:
    """KV cache of one sequence, [layers, 2, K, capacity, E]; grows when needed."""

    __slots__ = ("_buffer", "length")

    def __init__(self, buffer: Tensor, length: int) -> None:
        self._buffer = buffer
        self.length = length

    def fork(self, length: int) -> LlamaCache:
        """Return a copy of the first ``length`` tokens."""
        assert length <= self.length
        return LlamaCache(self._grown(length), length)

    def reserve(self, length: int) -> Tensor:
        """Grow to at least ``length`` tokens and return the buffer."""
        if length > self._buffer.shape[3]:
            self._buffer = self._grown(length)
        return self._buffer

    def _grown(self, length: int) -> Tensor:
        layers, two, heads, _, size = self._buffer.shape
        blocks = (length + _CACHE_BLOCK) // _CACHE_BLOCK
        buffer = self._buffer.new_empty(layers, two, heads, blocks * _CACHE_BLOCK, size)
        kept = min(length, self.length)
        buffer[:, :, :, :kept] = self._buffer[:, :, :, :kept]
        return buffer


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    feed_forward_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class _Weights:
    embedding: Tensor
    ends_are_base: bool
    """True if embedding and head are the base model's."""
    layers: tuple[_Layer, ...]
    norm: Tensor
    head: Linear


class LlamaDecoder:
    """A Llama-shaped decoder; see ``Decoder``."""

    def __init__(
        self, shape: LlamaShape, state: State, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._shape = shape
        self._device = device
        self._dtype = dtype
        self._frequencies = torch.tensor(
            shape.inverse_frequencies, device=device, dtype=torch.float32
        )
        # Hugging Face rotates the halves of a head: (a, b) → (a cos - b sin, b cos + a sin).
        half = torch.ones(shape.head_size // 2, device=device)
        self._signs = torch.cat([-half, half])
        self._weights = self._laid_out(state, None)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._shape.vocab_size

    @property
    def context_length(self) -> int:
        """Longest sequence that the model was trained for, in tokens."""
        return self._shape.context_length

    def new_cache(self) -> LlamaCache:
        """Return an empty cache."""
        s = self._shape
        size = (s.num_layers, 2, s.num_kv_heads, 0, s.head_size)
        return LlamaCache(torch.empty(size, device=self._device, dtype=self._dtype), 0)

    def prepare(self, state: State) -> Callable[[], None]:
        """Load new weights beside those in use; calling the result switches to them."""
        weights = self._laid_out(state, self._weights)

        def install() -> None:
            self._weights = weights

        return install

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Return the logits after each chunk's last token, [S, V] float32."""
        s, weights = self._shape, self._weights
        sizes = [len(chunk.token_ids) for chunk in chunks]
        attention = _Attention(chunks, sizes, self._device)
        token_ids = [token for chunk in chunks for token in chunk.token_ids]
        x_TD = F.embedding(torch.tensor(token_ids, device=self._device), weights.embedding)
        cos, sin = self._rotation(attention.positions)
        for index, layer in enumerate(weights.layers):
            normed = F.rms_norm(x_TD, (s.hidden_size,), layer.attention_norm, s.norm_eps)
            qkv = layer.qkv(normed).view(len(token_ids), -1, s.head_size)
            self._norm_and_rotate(qkv, layer, cos, sin)
            mixed = attention(index, qkv, s.num_heads, s.num_kv_heads)
            x_TD = x_TD + layer.output(mixed)
            normed = F.rms_norm(x_TD, (s.hidden_size,), layer.feed_forward_norm, s.norm_eps)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            x_TD = x_TD + layer.down(F.silu(gate) * up)
        last = torch.tensor(sizes, device=self._device).cumsum(0) - 1
        for chunk, size in zip(chunks, sizes, strict=True):
            assert isinstance(chunk.cache, LlamaCache)
            chunk.cache.length += size
        x_SD = F.rms_norm(x_TD[last], (s.hidden_size,), weights.norm, s.norm_eps)
        return weights.head(x_SD).float()

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines of the rotary angles, [T, 1, E]."""
        angles = torch.outer(positions.float(), self._frequencies).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin() * self._signs
        return cos[:, None].to(self._dtype), sin[:, None].to(self._dtype)

    def _norm_and_rotate(self, qkv: Tensor, layer: _Layer, cos: Tensor, sin: Tensor) -> None:
        """Normalize and rotate queries and keys in place.

        Args:
            qkv: [T, H + 2K, E]; the first H + K heads are changed.
        """
        s = self._shape
        if layer.query_norm is not None:
            query, key = qkv[:, : s.num_heads], qkv[:, s.num_heads : s.num_heads + s.num_kv_heads]
            query.copy_(F.rms_norm(query, (s.head_size,), layer.query_norm, s.norm_eps))
            key.copy_(F.rms_norm(key, (s.head_size,), layer.key_norm, s.norm_eps))
        turned = qkv[:, : s.num_heads + s.num_kv_heads]
        swapped = turned.roll(s.head_size // 2, dims=-1)
        turned.mul_(cos).addcmul_(swapped, sin)

    def _laid_out(self, state: State, current: _Weights | None) -> _Weights:
        """Return weights in the layout of ``forward``.

        Args:
            current: weights in use; an embedding and a head that stay the same are shared with it.
        """

        # Always a copy: the tensors are memory-mapped, and reading a truncated file would crash.
        def get(name: str) -> Tensor:
            return state[name].to(self._device, self._dtype, copy=True)

        def cat(names: Sequence[str]) -> Tensor:
            return torch.cat([state[name].to(self._device, self._dtype) for name in names])

        def joined(prefix: str, names: Sequence[str]) -> Linear:
            has_bias = f"{prefix}.{names[0]}.bias" in state
            bias = cat([f"{prefix}.{name}.bias" for name in names]) if has_bias else None
            weights = [f"{prefix}.{name}.weight" for name in names]
            if self._dtype == torch.float32:
                return Linear(cat(weights), bias)
            weight, adapter = unmerged(state, weights, self._device, self._dtype)
            return Linear(weight, bias, adapter)

        def layer(prefix: str) -> _Layer:
            attention, feed_forward = f"{prefix}.self_attn", f"{prefix}.mlp"
            has_norms = f"{attention}.q_norm.weight" in state
            return _Layer(
                attention_norm=get(f"{prefix}.input_layernorm.weight"),
                qkv=joined(attention, ("q_proj", "k_proj", "v_proj")),
                query_norm=get(f"{attention}.q_norm.weight") if has_norms else None,
                key_norm=get(f"{attention}.k_norm.weight") if has_norms else None,
                output=joined(attention, ("o_proj",)),
                feed_forward_norm=get(f"{prefix}.post_attention_layernorm.weight"),
                gate_up=joined(feed_forward, ("gate_proj", "up_proj")),
                down=joined(feed_forward, ("down_proj",)),
            )

        def ends() -> tuple[Tensor, Linear]:
            if ends_are_base and current is not None and current.ends_are_base:
                return current.embedding, current.head
            embedding = get(_EMBEDDING)
            untied = not self._shape.tied_head and _HEAD in state
            return embedding, Linear(get(_HEAD) if untied else embedding)

        ends_are_base = state.is_base(_EMBEDDING) and state.is_base(_HEAD)
        with torch.no_grad():
            layers = [layer(f"model.layers.{i}") for i in range(self._shape.num_layers)]
            embedding, head = ends()
        return _Weights(embedding, ends_are_base, tuple(layers), get("model.norm.weight"), head)


class _Attention:
    """Attention in one forward pass: extends the caches and mixes their values."""

    def __init__(self, chunks: Sequence[Chunk], sizes: list[int], device: torch.device) -> None:
        self._sizes = sizes
        self._new: list[tuple[Tensor, ...]] = []
        self._keys: list[tuple[Tensor, ...]] = []
        self._values: list[tuple[Tensor, ...]] = []
        self._masks: list[Tensor | None] = []
        spans = []
        for chunk, size in zip(chunks, sizes, strict=True):
            assert isinstance(chunk.cache, LlamaCache)
            start, end = chunk.cache.length, chunk.cache.length + size
            spans.append(torch.arange(start, end, device=device))
            buffer = chunk.cache.reserve(end)
            self._new.append(buffer[:, :, :, start:end].unbind(0))
            self._keys.append(buffer[:, None, 0, :, :end].unbind(0))
            self._values.append(buffer[:, None, 1, :, :end].unbind(0))
            chunked = size > 1 and start > 0
            self._masks.append(_causal_mask(start, end, device) if chunked else None)
        self.positions = torch.cat(spans)

    def __call__(self, layer: int, qkv: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
        """Return the mixed values of one layer, [T, H * E].

        Args:
            qkv: queries, keys and values of the new tokens, [T, H + 2K, E].
        """
        num_tokens, _, head_size = qkv.shape
        grouped = (num_tokens, num_kv_heads, num_heads // num_kv_heads, head_size)
        query = qkv[:, :num_heads].view(grouped).permute(1, 2, 0, 3)
        fresh = qkv[:, num_heads:].view(num_tokens, 2, num_kv_heads, head_size).permute(1, 2, 0, 3)
        mixed = []
        queries, freshs = torch.split(query, self._sizes, 2), torch.split(fresh, self._sizes, 2)
        for index, (query_KGTE, fresh_2KTE) in enumerate(zip(queries, freshs, strict=True)):
            self._new[index][layer].copy_(fresh_2KTE)
            key_1KPE, value_1KPE = self._keys[index][layer], self._values[index][layer]
            if self._sizes[index] == 1:
                # The query heads of one key head become its queries: keys are not copied, no mask.
                rows = query_KGTE.view(1, num_kv_heads, -1, head_size)
                mixed.append(F.scaled_dot_product_attention(rows, key_1KPE, value_1KPE))
                continue
            mask = self._masks[index]
            out = F.scaled_dot_product_attention(
                query_KGTE.reshape(1, num_heads, -1, head_size),
                key_1KPE.repeat_interleave(num_heads // num_kv_heads, dim=1),
                value_1KPE.repeat_interleave(num_heads // num_kv_heads, dim=1),
                attn_mask=mask,
                is_causal=mask is None,
            )
            mixed.append(out.transpose(1, 2))
        return torch.cat([part.reshape(-1, num_heads * head_size) for part in mixed])


def _causal_mask(start: int, end: int, device: torch.device) -> Tensor:
    """Return the mask of tokens start..end over positions 0..end, True where they attend."""
    positions = torch.arange(end, device=device)
    return positions[None, :] <= positions[start:, None]
