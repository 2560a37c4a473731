"""``agent run|status|ps|logs|stop``: agent services without a trainer, as ``areal agent`` has."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hermes_tui.cli.background import (
    ServiceKind,
    add_lifecycle,
    config_option,
    launch,
    service_option,
)
from hermes_tui.cli.overrides import Invocation, OverridesGroup

_KIND = ServiceKind(
    command="agent",
    title="agent service",
    folder="agents",
    gateway="agent-gateway",
    components={"gateway": "agent-gateway"},
)


@click.group(cls=OverridesGroup)
@config_option
@click.pass_obj
def agent(invocation: Invocation, config_file: Path | None) -> None:
    """Run agent services without a trainer, in the background."""
    invocation.config_file = config_file or invocation.config_file


@agent.command()
@service_option
@click.option("--agent", "agent_class", help="Dotted path of the agent class.")
@click.option("--num-pairs", type=click.IntRange(1, 64), help="Pairs of data proxy and worker.")
@click.option("--admin-api-key", help="Key that clients send; minted when not given.")
@click.option("--gateway-host", help="Address of the agent gateway.")
@click.option("--gateway-port", type=click.IntRange(0, 65535), help="Port of the agent gateway.")
@click.option("--router-port", type=click.IntRange(0, 65535), help="Port of the router.")
@click.option(
    "--health-poll-interval",
    "--router-poll-interval",
    "poll_s",
    type=float,
    help="Seconds between two looks at a pair.",
)
@click.option(
    "--session-timeout",
    "--proxy-session-timeout",
    "session_timeout_s",
    type=float,
    help="Seconds until the agent of an idle session is released.",
)
@click.option(
    "--setup-timeout",
    "--launch-timeout",
    "start_timeout_s",
    type=float,
    help="Seconds until every process must be ready.",
)
@click.option(
    "--drain-timeout",
    "drain_timeout_s",
    type=float,
    help="Seconds that a pair which is taken away may finish its turns.",
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
)
@click.option("--inf-addr", envvar="AREAL_INF_ADDR", help="Base URL of the model server.")
@click.option("--inf-api-key", envvar="AREAL_INF_API_KEY", help="Key of the model server.")
@click.option("--inf-model", envvar="AREAL_INF_MODEL", help="Model to ask for there.")
@click.option("--force", is_flag=True, help="Replace a service of this name that runs.")
@click.pass_obj
def run(invocation: Invocation, /, service: str, force: bool, **options: object) -> None:
    """Start an agent service in the background; prints its address."""
    level = options["log_level"]
    settings = {
        "services.agent.class": options["agent_class"],
        "services.pairs.count": options["num_pairs"],
        "services.pairs.drain_timeout_s": options["drain_timeout_s"],
        "services.gateway.admin_api_key": options["admin_api_key"],
        "services.gateway.host": options["gateway_host"],
        "services.gateway.port": options["gateway_port"],
        "services.router.port": options["router_port"],
        "services.router.poll_s": options["poll_s"],
        "services.session_timeout_s": options["session_timeout_s"],
        "upstream.base_url": options["inf_addr"],
        "upstream.api_key": options["inf_api_key"],
        "upstream.model": options["inf_model"],
        "run.log_level": str(level).upper() if level else None,
        "run.start_timeout_s": options["start_timeout_s"],
        "run.dir": str(_KIND.run_dir(invocation, service).root),
    }
    overrides = [
        f"{key}={json.dumps(value)}" for key, value in settings.items() if value is not None
    ]
    config = invocation.load(*overrides, "training.enabled=false")
    stack = launch(_KIND, config, service, replace=force)
    click.echo(f"  gateway: {stack.agent_gateway}")
    click.echo(f"  pairs:   {config.services.pairs.count}")
    click.echo(f"  agent:   {config.services.agent.class_}")
    click.echo(f"  keys:    {Path(stack.run_dir) / 'keys.json'}")
    click.echo(f"  stop:    hermes-tui agent stop --service {service}")


add_lifecycle(agent, _KIND)
