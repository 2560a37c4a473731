"""A matrix product with constant weights in the fastest form that the device has.

On x86 CPUs oneDNN packs the weights once; at the 1 to 16 rows of a decode step its products took a
third of ``F.linear``'s time, and 0.85 of it for prompts (docs/engine.md). It is what torch's own
compiler emits there, called without compiling.
"""

from __future__ import annotations

import functools
import logging

import torch
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)

_TYPICAL_ROWS = 16
"""Rows that the packed layout is chosen for: a decode step of a few streams."""


class Linear:
    """x ↦ x Wᵀ + b. Keeps a packed copy of W where that is faster, else W itself."""

    __slots__ = ("_bias", "_is_packed", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._is_packed = (
            weight.device.type == "cpu" and weight.dtype == torch.float32 and _packing_works()
        )
        self._weight = _packed(weight) if self._is_packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b, [T, out] for x of [T, in]."""
        if self._is_packed:
            return _packed_product(x, self._weight, self._bias)
        return F.linear(x, self._weight, self._bias)


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _TYPICAL_ROWS)
    return packed


def _packed_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@functools.cache
def _packing_works() -> bool:
    """Try the packed form once: it is no public interface, so it is used only if it is right."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    weight = torch.linspace(-1, 1, 64 * 48).view(64, 48)
    x, bias = torch.linspace(-1, 1, 3 * 48).view(3, 48), torch.linspace(0, 1, 64)
    try:
        found = _packed_product(x, _packed(weight), bias)
        works = torch.allclose(found, F.linear(x, weight, bias), atol=1e-4)
    except (AttributeError, RuntimeError, TypeError) as error:
        logger.info("packed products are not available reason=%s", error)
        return False
    if not works:
        logger.warning("packed products are wrong on this machine: not used")
    return works
