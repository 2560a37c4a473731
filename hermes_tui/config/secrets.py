"""The keys of a run directory: minted once, kept in ``keys.json``; configured keys win."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace

from hermes_tui.config.paths import RunDir
from hermes_tui.config.settings import Config
from hermes_tui_common.auth import mint_key
from hermes_tui_common.errors import ConfigError
from hermes_tui_common.serving import write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The admin keys of one stack; their repr hides them."""

    agent_admin_key: str = field(repr=False)
    """For the agent gateway and, internally, every role of the agent service."""
    inference_admin_key: str = field(repr=False)
    """For the inference gateway's admin routes and the learner."""
    control_key: str = field(repr=False)
    """For the supervisor's control API."""

    def values(self) -> tuple[str, ...]:
        """Return every key, for the filter that keeps them out of logs."""
        return tuple(asdict(self).values())


def ensure_keys(run_dir: RunDir, config: Config) -> Keys:
    """Return the keys of a run directory; mints what is missing and writes ``keys.json``.

    Raises: ConfigError: ``keys.json`` is unreadable or lacks a key.
    """
    known = read_keys(run_dir)
    keys = known or Keys(
        agent_admin_key=mint_key("sk-agent-"),
        inference_admin_key=mint_key("sk-inference-"),
        control_key=mint_key("sk-control-"),
    )
    keys = replace(
        keys,
        agent_admin_key=config.services.gateway.admin_api_key.get_secret_value()
        or keys.agent_admin_key,
        inference_admin_key=config.training.admin_api_key.get_secret_value()
        or keys.inference_admin_key,
    )
    if keys != known:
        write_private(run_dir.keys, json.dumps(asdict(keys), indent=2))
    elif run_dir.keys.stat().st_mode & 0o077:
        run_dir.keys.chmod(0o600)
    return keys


def read_keys(run_dir: RunDir) -> Keys | None:
    """Return the keys of a run directory, or None when it has none yet.

    Raises: ConfigError: ``keys.json`` is unreadable or lacks a key.
    """
    try:
        rows = json.loads(run_dir.keys.read_text(encoding="utf-8"))
        return Keys(**{f.name: str(rows[f.name]) for f in fields(Keys)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{run_dir.keys}: no valid key file ({type(error).__name__}); delete it, and new "
            "keys are minted"
        ) from error
