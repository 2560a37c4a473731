"""The signal cells of the fault matrix: which process gets which signal at which moment."""

from __future__ import annotations

import signal
from itertools import product

from fakes.fault_stack import CHILDREN, SUPERVISOR
from fault_results import Cell

SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
MOMENTS = (
    "idle",
    "mid-stream",  # a turn's text is arriving
    "mid-reward",  # a reward is being posted
    "mid-step",  # the learner computes a step
    "mid-save",  # the learner writes the checkpoint
    "mid-publish",  # the checkpoint is complete, the engine takes it
    "starting",  # the process is starting
    "stopping",  # the stack was told to stop
)

# The process changes with each cell: three deaths of one within a minute would be a flapping.
CELLS = (
    *(
        Cell(what=process, fault=number.name, when=moment)
        for number, moment, process in product(SIGNALS, MOMENTS, (*CHILDREN, SUPERVISOR))
    ),
    # A person asks for another version just then: others are not asked.
    *(Cell(what="learner", fault=number.name, when="before a rollback") for number in SIGNALS),
)

SHORT = frozenset(
    (
        "trainer-SIGSTOP-mid-stream",
        "learner-SIGSTOP-mid-step",
        "learner-SIGSTOP-mid-save",
        "learner-SIGSTOP-before a rollback",
        "trainer-SIGKILL-mid-publish",
        "worker-0-SIGTERM-mid-stream",
    )
)
"""What runs with every test run: what other tests do not do, on one stack that is started once."""
