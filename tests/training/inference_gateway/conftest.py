"""Fixtures of several integration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.inference import Gateway, running_gateway


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """Return an inference gateway over a fake engine that listens on a port."""
    async with running_gateway(tmp_path, port=0) as gateway:
        yield gateway


@pytest.fixture
async def session(gateway: Gateway) -> tuple[str, str]:
    """Return a session's id and its key."""
    return await gateway.session()
