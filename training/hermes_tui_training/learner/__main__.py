"""The learner's process: ``python -P -m hermes_tui_training.learner --config FILE``."""

from __future__ import annotations

import os

from hermes_tui_common.serving import run_role
from hermes_tui_training.api.config import LearnerRole


def main() -> None:
    """Run the role until it is told to stop."""
    # Must be set before torch is imported: spinning threads would take the engine's cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from hermes_tui_training.learner.app import create_app

    run_role(
        LearnerRole, create_app, secrets_of=lambda config: [config.admin_key.get_secret_value()]
    )


if __name__ == "__main__":
    main()
