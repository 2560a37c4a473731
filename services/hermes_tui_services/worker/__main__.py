"""``python -P -m hermes_tui_services.worker --config FILE``: one worker process."""

from __future__ import annotations

import ctypes

from starlette.applications import Starlette

from hermes_tui_common.serving import run_role
from hermes_tui_services.api.config import WorkerRole
from hermes_tui_services.worker.app import create_app

_PR_SET_DUMPABLE = 4


def build(role: WorkerRole) -> Starlette:
    """Return the worker's app.

    In a cage no tool may look into this process, or take its place: Linux then refuses others of
    the same user its memory, its environment and its descriptors. Outside of one the supervisor's
    watchdog has to find it by its environment.
    """
    if role.cage != "none":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return create_app(role)


if __name__ == "__main__":
    run_role(WorkerRole, build, secrets_of=lambda role: (role.admin_key.get_secret_value(),))
