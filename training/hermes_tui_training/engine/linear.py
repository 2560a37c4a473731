"""A linear layer with constant weights, in the fastest form that the device has.

On x86 CPUs oneDNN reorders ("packs") the weights once for its own kernels. With 1 to 16 rows, as in
a decode step, packed products took a third of ``F.linear``'s time; for prompts 0.85 of it
(docs/engine.md).

The two operators used here are private to torch (checked with 2.13). ``torch.compile`` emits them
for constant weights on CPUs: https://github.com/pytorch/pytorch/pull/89109. A public function was
proposed and not merged: https://github.com/pytorch/pytorch/pull/139387. So they are tried once, and
``F.linear`` is used when they are missing or wrong.
"""

from __future__ import annotations

import functools
import logging

import torch
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)

_TYPICAL_ROWS = 16
"""oneDNN chooses the layout for this number of rows: a decode step of a few completions."""


class Linear:
    """x ↦ x Wᵀ + b. Holds W packed where that is faster, otherwise as it is."""

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
    """Compare one packed product with ``F.linear``'s."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    weight = torch.linspace(-1, 1, 64 * 48).view(64, 48)
    x, bias = torch.linspace(-1, 1, 3 * 48).view(3, 48), torch.linspace(0, 1, 64)
    try:
        found = _packed_product(x, _packed(weight), bias)
        works = torch.allclose(found, F.linear(x, weight, bias), atol=1e-4)
    except (AttributeError, RuntimeError, TypeError) as error:
        logger.info("packed linear layers are not available reason=%s", error)
        return False
    if not works:
        logger.warning("packed linear layers give wrong results on this machine: not used")
    return works
