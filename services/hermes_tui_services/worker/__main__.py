"""``python -P -m hermes_tui_services.worker --config FILE``: one worker process."""

from __future__ import annotations

from hermes_tui_common.serving import run_role
from hermes_tui_services.api.config import WorkerRole
from hermes_tui_services.worker.app import create_app

if __name__ == "__main__":
    run_role(
        WorkerRole,
        create_app,
        secrets_of=lambda role: (
            role.admin_key.get_secret_value(),
            role.upstream.api_key.get_secret_value(),
        ),
    )
