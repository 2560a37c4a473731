"""Whether this machine can run a worker in a cage."""

from __future__ import annotations

import pytest

from hermes_tui.supervisor.cage import Confinement
from hermes_tui_services.api.config import AgentConfig

needs_cage = pytest.mark.skipif(
    Confinement.of(AgentConfig()).bubblewrap is None,
    reason=f"no cage here: {Confinement.of(AgentConfig())}",
)
