"""Fixtures of several unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.clock import Clock

from hermes_tui_training.store.store import Store


@pytest.fixture
def clock() -> Clock:
    """Return the time of the store."""
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    """Return an empty trainer's database."""
    made = Store(tmp_path / "trajectories.db", now=clock)
    yield made
    made.close()
