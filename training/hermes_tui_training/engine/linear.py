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
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hermes_tui_training.engine.decoder import LowRank, State

logger = logging.getLogger(__name__)

_TYPICAL_ROWS = 16
"""oneDNN chooses the layout for this number of rows: a decode step of a few completions."""


class Linear:
    """x ↦ x (W + up down)ᵀ + b. Holds W packed where that is faster, otherwise as it is.

    The adapter (up, down) is for weights of less precision than float32; merged into one of those,
    most of what it adds would be rounded away.
    """

    __slots__ = ("_bias", "_down", "_is_packed", "_up", "_weight")

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, adapter: LowRank | None = None
    ) -> None:
        """
        Args:
            weight: [out, in].
            bias: [out]; None for none.
            adapter: what is added to the weight; None for nothing.
        """
        self._bias = bias
        self._up = self._down = None
        if adapter is not None:
            assert weight.dtype != torch.float32, "in float32 an adapter is merged"
            self._up, self._down = adapter.up.to(weight), adapter.down.to(weight)
        self._is_packed = (
            weight.device.type == "cpu" and weight.dtype == torch.float32 and _packing_works()
        )
        self._weight = _packed(weight) if self._is_packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b, [T, out] for x of [T, in]."""
        if self._is_packed:
            return _packed_product(x, self._weight, self._bias)
        if self._up is not None and self._down is not None:
            # One sum, rounded once: added to a rounded product, a small part would be lost again.
            added = F.linear(F.linear(x, self._down), self._up)
            product = torch.addmm(added, x, self._weight.t())
            return product if self._bias is None else product + self._bias
        return F.linear(x, self._weight, self._bias)


def unmerged(
    state: State, names: Sequence[str], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, LowRank | None]:
    """Return weights with one input as one, a copy, and what their adapters add to it."""
    parts = [state.unmerged(name) for name in names]
    weight = torch.cat([part.to(device, dtype) for part, _ in parts])
    if all(adapter is None for _, adapter in parts):
        return weight, None
    down = torch.cat([low.down for _, low in parts if low is not None])
    up = torch.zeros(len(weight), len(down))
    row = column = 0
    for part, low in parts:
        if low is not None:
            rows, columns = low.up.shape
            up[row : row + rows, column : column + columns] = low.up
            column += columns
        row += len(part)
    return weight, LowRank(up=up, down=down)


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
