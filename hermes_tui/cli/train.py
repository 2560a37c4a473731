"""``train``: the trainer and its inference gateway alone."""

from __future__ import annotations

import functools
from pathlib import Path

import click

from hermes_tui.cli.overrides import Invocation, OverridesCommand

_AREAL_KEYS = {
    "actor.path": "model.path",
    "rollout.admin_api_key": "training.admin_api_key",
}
"""What AReaL's train.py calls these settings."""

_AREAL_UNUSED = "actor.admin_api_key"
"""Guards AReaL's trainer process; ours has one key for both."""


@click.command(cls=OverridesCommand)
@click.option(
    "-c", "--config", "config_file", type=click.Path(path_type=Path), help="Configuration file."
)
@click.pass_obj
def train(invocation: Invocation, config_file: Path | None) -> None:
    """Run trainer and inference gateway without the agent.

    Takes overrides, section.key=value; AReaL's actor.path and rollout.admin_api_key work, too.
    """
    from hermes_tui.supervisor.serve import serve
    from hermes_tui.supervisor.specs import StackPlan

    if config_file:
        invocation.config_file = config_file
    translated = [_translate(override) for override in invocation.overrides]
    invocation.overrides = [override for override in translated if override]
    config = invocation.load("training.enabled=true")
    raise SystemExit(serve(config, functools.partial(StackPlan, with_services=False)))


def _translate(override: str) -> str:
    key, _, value = override.partition("=")
    if key == _AREAL_UNUSED:
        click.echo(f"note: {key} has no use here; rollout.admin_api_key guards both", err=True)
        return ""
    return f"{_AREAL_KEYS.get(key, key)}={value}"
