"""What Hermes reads when it is imported: environment variables and its config.yaml.

Names and defaults were checked in hermes-agent 0.19.0.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping

from hermes_tui_common.serving import write_private
from hermes_tui_services.api.config import AgentConfig, WorkerRole

CONTEXT_LENGTH = 65_536
"""Context length that Hermes is given, in tokens: it refuses less than 64,000. The upstream has the
real limit, and answers 400 beyond it."""

STREAM_STALE_S = 600
"""A stream without a byte for this long is dropped. A long prompt on a busy CPU takes minutes to
its first token."""

_OWN_SECRETS = re.compile(
    r"HERMES_TUI__.*|HERMES_UPSTREAM_API_KEY|ADMIN_KEY|ADMIN_API_KEY|SESSION_API_KEY|AREAL_.*KEY"
)
"""Variables that hold keys of ours, where a worker was not started by a supervisor, which passes on
only what is on a list: the agent's shell inherits the environment."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""The model server may be on this machine: no proxy reaches it there."""

_SWITCHES_OFF = (
    "HERMES_YOLO_MODE",  # would approve every command unasked
    "HERMES_INTERACTIVE",
    "HERMES_CRON_SESSION",
    "HERMES_GATEWAY_SESSION",
    "HERMES_IGNORE_USER_CONFIG",
)


def prepare(config: WorkerRole) -> None:
    """Write ``config.yaml`` (JSON is YAML) and set the environment; Hermes is imported after it."""
    home = config.home.resolve()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Hermes takes variables, plug-ins and settings from here: what a tool left must not count.
    for left in home.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
    write_private(home / "config.yaml", json.dumps(hermes_config(config.agent), indent=2))
    for name in list(os.environ):
        if _OWN_SECRETS.fullmatch(name) or name in _SWITCHES_OFF:
            del os.environ[name]
    direct = reached_directly(os.environ)
    os.environ.update(
        NO_PROXY=direct,
        no_proxy=direct,
        HERMES_HOME=str(home),
        HERMES_EXEC_ASK="1",  # dangerous commands must be approved in library use too
        HERMES_LOCAL_STREAM_STALE_TIMEOUT=str(STREAM_STALE_S),
        HERMES_STREAM_RETRIES="0",
    )


def reached_directly(environ: Mapping[str, str]) -> str:
    """Return the hosts that need no proxy: those that the user names, and this machine."""
    named = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    hosts = [host.strip() for host in named.split(",") if host.strip()]
    return "*" if "*" in hosts else ",".join(dict.fromkeys([*hosts, *_LOOPBACK]))


def hermes_config(agent: AgentConfig) -> dict[str, object]:
    """Return Hermes' configuration: every feature that makes calls of its own is off.

    A background review, for one, spends tokens under the session's key after the turn is over
    (NousResearch/hermes-agent#87250).
    """
    off = {"enabled": False}
    return {
        "model": {"context_length": CONTEXT_LENGTH},
        "agent": {
            "api_max_retries": 1,
            "coding_context": "off",
            "environment_probe": False,
            "verify_on_stop": False,
        },
        "approvals": {
            "mode": "manual",  # the default asks the model whether a command is dangerous
            "timeout": max(1, math.ceil(agent.approval_timeout_s)),
        },
        "compression": off,
        "curator": off,
        "logging": {"level": "WARNING"},
        "lsp": off,
        "memory": {"memory_enabled": False, "user_profile_enabled": False},
        "model_catalog": off,
        "security": {"allow_lazy_installs": False, "tirith_enabled": False},
        "skills": {"creation_nudge_interval": 0},
        "terminal": {"auto_source_bashrc": False, "backend": "local"},
    }
