"""The learner's process: ``python -P -m hermes_tui_training.learner --config FILE``."""

from __future__ import annotations

import os

from starlette.applications import Starlette

from hermes_tui_common.serving import run_role
from hermes_tui_training.api.config import LearnerRole


def build(config: LearnerRole) -> Starlette:
    """Return the learner's app. Imports torch: it takes seconds, under lifeline and heartbeat."""
    from hermes_tui_training.learner.app import create_app

    return create_app(config)


if __name__ == "__main__":
    # Must be set before torch is imported: spinning threads would take the engine's cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    run_role(LearnerRole, build, secrets_of=lambda config: [config.admin_key.get_secret_value()])
