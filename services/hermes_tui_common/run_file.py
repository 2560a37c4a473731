"""The run file: where a process of the stack writes its address once it is ready."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict


class RunFile(BaseModel):
    """A process that is ready, or was: the file outlives a process that was killed.

    The supervisor's has no more than this.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    name: str
    """Process name, such as ``router`` or ``worker-0``."""
    pid: int
    """Its process id."""
    url: str
    """Where it answers."""
    started_at: float
    """When it was ready, seconds since the epoch."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what a run file says.

        Raises: OSError: it cannot be read, or is not written yet. ValueError: it is no run file.
        """
        return cls.model_validate_json(path.read_text(encoding="utf-8"))


class RoleRunFile(RunFile):
    """A role that is ready, or was."""

    host: str
    """Address that it is bound to."""
    port: int
    """Port that it listens on."""
    instance: str
    """Token that its /health answers; empty when it was started without one."""
