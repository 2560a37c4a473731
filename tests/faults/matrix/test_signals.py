"""Each signal to each process at each moment: nothing is lost, and it works again by itself."""

from __future__ import annotations

import fault_moments
import pytest
from fakes.fault_stack import FaultStack
from fault_cells import CELLS, SHORT
from fault_results import Cell, Outcome

pytestmark = pytest.mark.timeout(900)

TRIES = 4
"""Some moments last for milliseconds; one that is missed is tried again."""


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=cell.id, marks=pytest.mark.cell(cell, short=cell.id in SHORT))
        for cell in CELLS
    ],
)
def test_signal(stack: FaultStack, cell: Cell, outcome: Outcome) -> None:
    for number in range(TRIES):
        try:
            seen = fault_moments.run(stack, cell, f"{cell.id}-{number}")
        except fault_moments.MissedError:
            continue
        outcome.texts, outcome.kept, outcome.seconds = seen.texts, seen.kept, seen.seconds
        return
    pytest.fail("not run: the moment was missed each time")
