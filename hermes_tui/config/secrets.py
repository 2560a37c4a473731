"""The keys of a run directory: minted once, kept in ``keys.json``; configured keys win."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace

from hermes_tui.config.paths import RunDir
from hermes_tui.config.settings import Config
from hermes_tui_common.auth import admin_key_fault, mint_key, weakness
from hermes_tui_common.errors import ConfigError
from hermes_tui_common.serving import write_private

_MEND = "delete the file, and new keys are minted"


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

    Raises: ConfigError: ``keys.json`` is unreadable, lacks a key, or has something else in its
        place: null opens nothing.
    """
    try:
        rows = json.loads(run_dir.keys.read_text(encoding="utf-8"))
        keys = {f.name: rows[f.name] for f in fields(Keys)}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{run_dir.keys}: no valid key file ({type(error).__name__}); {_MEND}"
        ) from error
    for name, key in keys.items():
        fault = (
            admin_key_fault(key) if isinstance(key, str) else f"is {json.dumps(key):.20}, no text"
        )
        if fault:
            raise ConfigError(f"{run_dir.keys}: {name} {fault}; {_MEND}")
    return Keys(**keys)


def weak_keys(keys: Keys) -> list[str]:
    """Return a sentence on each key that is easily guessed, and on keys that are the same."""
    found = [
        f"{name} is {fault}; that is no matter as long as only this machine's programs reach it"
        for name, key in asdict(keys).items()
        if (fault := weakness(key))
    ]
    if len(set(keys.values())) < len(keys.values()):
        found.append("two of the keys are the same: who has one may use the other's routes")
    return found
