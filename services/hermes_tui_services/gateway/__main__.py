"""``python -P -m hermes_tui_services.gateway --config FILE``: one gateway process."""

from __future__ import annotations

from hermes_tui_common.serving import run_role
from hermes_tui_services.api.config import GatewayRole
from hermes_tui_services.gateway.app import create_app

if __name__ == "__main__":
    run_role(GatewayRole, create_app, secrets_of=lambda role: (role.admin_key.get_secret_value(),))
