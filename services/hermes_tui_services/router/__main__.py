"""``python -P -m hermes_tui_services.router --config FILE``: one router process."""

from __future__ import annotations

from hermes_tui_common.serving import run_role
from hermes_tui_services.api.config import RouterRole
from hermes_tui_services.router.app import create_app

if __name__ == "__main__":
    run_role(RouterRole, create_app, secrets_of=lambda role: (role.admin_key.get_secret_value(),))
