"""What several fault tests break."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.small_disk import SmallDisk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Return a disk of a few megabytes; the test is skipped where mounting is not permitted."""
    folder = tmp_path / "small"
    folder.mkdir()
    disk = SmallDisk(folder)
    try:
        disk.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"mounting is not permitted here: {error.stderr.strip()}")
    yield disk
    disk.unmount()
