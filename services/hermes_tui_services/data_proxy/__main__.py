"""``python -P -m hermes_tui_services.data_proxy --config FILE``: one data_proxy process."""

from __future__ import annotations

from hermes_tui_common.serving import run_role
from hermes_tui_services.api.config import DataProxyRole
from hermes_tui_services.data_proxy.app import create_app

if __name__ == "__main__":
    run_role(
        DataProxyRole,
        create_app,
        secrets_of=lambda role: (
            role.admin_key.get_secret_value(),
            role.worker_key.get_secret_value(),
            role.upstream.api_key.get_secret_value(),
        ),
    )
