"""The fault matrix: a short form with every test run, the whole of it with ``make faults``.

In full, each cell's result is kept in ``benchmarks/results/faults/cells.jsonl``. Cells whose result
is there, of the same commit, are not tried again: an interrupted run goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fault_results
import pytest
from fakes.fault_stack import FaultStack
from fakes.tiny_model import make_byte_model
from fault_results import Outcome

_FAILURE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cells", action="store_true", help="try the whole fault matrix")


def is_full(config: pytest.Config) -> bool:
    """Return whether the whole matrix is tried; pytest knows the option only when asked for it."""
    return bool(config.getoption("--all-cells", default=False))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cells that are not in the short form, or that have been tried already."""
    marks = {item: mark for item in items if (mark := item.get_closest_marker("cell"))}
    if is_full(config):
        rows, commit = fault_results.read().values(), fault_results.commit()
        done = {row.id for row in rows if row.commit == commit and row.ok}
        dropped = [item for item, mark in marks.items() if mark.args[0].id in done]
    else:
        dropped = [item for item, mark in marks.items() if not mark.kwargs["short"]]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember why a cell failed, or "", for its result and for the stack that it used."""
    if call.excinfo:
        item.stash[_FAILURE] = f"{call.excinfo.typename}: {call.excinfo.value}"
    elif call.when == "call":
        item.stash[_FAILURE] = ""
    return (yield)


@pytest.fixture
def outcome(request: pytest.FixtureRequest) -> Iterator[Outcome]:
    """Return where a cell's test says what it found; in full it is kept."""
    found = Outcome()
    yield found
    failure = request.node.stash.get(_FAILURE, None)
    if failure is not None and is_full(request.config):  # None: it was interrupted
        cell = request.node.get_closest_marker("cell").args[0]
        fault_results.write(found.row(cell, failure))


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_byte_model(tmp_path_factory.mktemp("model"), context=8192)


@pytest.fixture(scope="session")
def _kept_stack(
    tmp_path_factory: pytest.TempPathFactory, byte_model: Path
) -> Iterator[list[FaultStack]]:
    """Hold the stack that the cells share; a cell that fails leaves none."""
    kept: list[FaultStack] = []
    yield kept
    for stack in kept:
        stack.close()


@pytest.fixture
def stack(
    request: pytest.FixtureRequest,
    _kept_stack: list[FaultStack],
    tmp_path_factory: pytest.TempPathFactory,
    byte_model: Path,
) -> Iterator[FaultStack]:
    """Return a stack that is ready and whole; one cell after another uses it."""
    if not _kept_stack:
        _kept_stack.append(FaultStack(tmp_path_factory.mktemp("run"), byte_model))
        _kept_stack[0].start()
    yield _kept_stack[0]
    if request.node.stash.get(_FAILURE, "interrupted"):
        _kept_stack.pop().close()
