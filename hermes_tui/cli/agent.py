"""``agent run|status|ps|logs|stop``: agent services of their own, as ``areal agent`` has them.

Each has a name and a run directory, ``agents/NAME`` in the main one, and no trainer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_tui.cli.connect import run_async
from hermes_tui.cli.overrides import Invocation, OverridesGroup
from hermes_tui.cli.stack import show_log, show_status

if TYPE_CHECKING:
    from hermes_tui.config.paths import RunDir
    from hermes_tui.config.settings import Config
    from hermes_tui.core.control_api import ControlEvent

_COMPONENTS = {"gateway": "agent-gateway"}
"""AReaL's names of processes that have another one here; ``proxy-N`` is ``data-proxy-N``."""

_service = click.option(
    "--service", default="default", show_default=True, help="Name of the agent service."
)


@click.group(cls=OverridesGroup)
def agent() -> None:
    """Run agent services without a trainer, in the background."""


@agent.command()
@_service
@click.option("--agent", "agent_class", help="Dotted path of the agent class.")
@click.option("--num-pairs", type=click.IntRange(1, 64), help="Pairs of data proxy and worker.")
@click.option("--admin-api-key", help="Key that clients send; minted when not given.")
@click.option("--gateway-host", help="Address of the agent gateway.")
@click.option("--gateway-port", type=click.IntRange(0, 65535), help="Port of the agent gateway.")
@click.option("--router-port", type=click.IntRange(0, 65535), help="Port of the router.")
@click.option("--router-poll-interval", type=float, help="Seconds between two looks at a pair.")
@click.option("--proxy-session-timeout", type=float, help="Seconds until an idle session ends.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
)
@click.option("--launch-timeout", type=float, help="Seconds until every process must be ready.")
@click.option("--force", is_flag=True, help="Replace a service of this name that runs.")
@click.pass_obj
def run(invocation: Invocation, /, service: str, force: bool, **options: object) -> None:
    """Start an agent service in the background; prints its address."""
    from hermes_tui.config.paths import RunDir
    from hermes_tui.core.errors import AlreadyRunningError
    from hermes_tui.stack_client.launch import stop_supervisor
    from hermes_tui.supervisor.lock import lock_owner

    home = _home(invocation, service)
    config = _service_config(invocation, home, options)
    run_dir = RunDir.of(config)
    if pid := lock_owner(run_dir):
        if not force:
            raise AlreadyRunningError(str(run_dir.root), pid, service)
        run_async(stop_supervisor(run_dir, config.run.stop_timeout_s))
    run_async(_launch(config, service))


def _service_config(invocation: Invocation, home: Path, options: dict[str, object]) -> Config:
    level = options["log_level"]
    settings = {
        "services.agent.class": options["agent_class"],
        "services.pairs.count": options["num_pairs"],
        "services.gateway.admin_api_key": options["admin_api_key"],
        "services.gateway.host": options["gateway_host"],
        "services.gateway.port": options["gateway_port"],
        "services.router.port": options["router_port"],
        "services.router.poll_s": options["router_poll_interval"],
        "services.session_timeout_s": options["proxy_session_timeout"],
        "run.log_level": str(level).upper() if level else None,
        "run.start_timeout_s": options["launch_timeout"],
        "run.dir": str(home),
    }
    overrides = [
        f"{key}={json.dumps(value)}" for key, value in settings.items() if value is not None
    ]
    return invocation.load(*overrides, "training.enabled=false")


async def _launch(config: Config, service: str) -> None:
    from hermes_tui.stack_client.launch import ensure_supervisor

    async with await ensure_supervisor(config, _show_event) as client:
        stack = await client.status()
    click.echo(f"Started agent service {service!r}.")
    click.echo(f"  gateway: {stack.agent_gateway}")
    click.echo(f"  pairs:   {config.services.pairs.count}")
    click.echo(f"  agent:   {config.services.agent.class_}")
    click.echo(f"  keys:    {Path(stack.run_dir) / 'keys.json'}")
    click.echo(f"  stop:    hermes-tui agent stop --service {service}")


def _show_event(event: ControlEvent) -> None:
    from hermes_tui.core.control_api import ProcessChanged

    if isinstance(event, ProcessChanged) and event.state == "ready":
        click.echo(f"  {event.name} is ready", err=True)


@agent.command()
@_service
@click.option("--json", "as_json", is_flag=True, help="Print what the control API answers.")
@click.pass_obj
def status(invocation: Invocation, service: str, as_json: bool) -> None:
    """Show the processes of an agent service."""
    show_status(_run_dir(invocation, service), as_json)


@agent.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@click.pass_obj
def ps(invocation: Invocation, as_json: bool) -> None:
    """List the agent services of this run directory."""
    agents = invocation.run_dir().root / "agents"
    names = sorted(folder.name for folder in agents.iterdir()) if agents.is_dir() else []
    rows = [_ps_row(name, _run_dir(invocation, name)) for name in names]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo("No agent services. Start one with `hermes-tui agent run`.")
    else:
        click.echo(f"{'SERVICE':<20}{'STATE':<10}{'PID':>8}  GATEWAY")
        for row in rows:
            gateway = row["gateway"] or "-"
            click.echo(f"{row['service']:<20}{row['state']:<10}{row['pid'] or '-':>8}  {gateway}")


def _ps_row(service: str, run_dir: RunDir) -> dict[str, str | int | None]:
    from hermes_tui.supervisor.lock import lock_owner
    from hermes_tui_common.run_file import RoleRunFile

    pid = lock_owner(run_dir)
    gateway = None
    if pid:
        try:
            gateway = RoleRunFile.read(run_dir.run_file("agent-gateway")).url
        except (OSError, ValueError):
            gateway = None  # it is starting, or being restarted
    return {
        "service": service,
        "state": "running" if pid else "stopped",
        "pid": pid,
        "gateway": gateway,
    }


@agent.command()
@_service
@click.option("--component", default="gateway", show_default=True, help="Such as worker-0.")
@click.option("-f", "--follow", is_flag=True, help="Go on with each new line.")
@click.option("-n", "--lines", type=click.IntRange(0), default=200, show_default=True)
@click.pass_obj
def logs(invocation: Invocation, service: str, component: str, follow: bool, lines: int) -> None:
    """Print the log of one process of an agent service."""
    name = _COMPONENTS.get(component, component)
    if name.startswith("proxy-"):
        name = f"data-{name}"
    show_log(_run_dir(invocation, service), name, follow=follow, lines=lines)


@agent.command()
@_service
@click.option("--grace-period", type=float, help="Seconds until what still runs is an error.")
@click.pass_obj
def stop(invocation: Invocation, service: str, grace_period: float | None) -> None:
    """End an agent service."""
    from hermes_tui.stack_client.launch import stop_supervisor

    timeout_s = grace_period or invocation.load().run.stop_timeout_s
    run_async(stop_supervisor(_run_dir(invocation, service), timeout_s))
    click.echo(f"Stopped agent service {service!r}.")


def _home(invocation: Invocation, service: str) -> Path:
    if not service or Path(service).name != service:
        raise click.BadParameter(f"{service!r} is no name of a service", param_hint="--service")
    return invocation.run_dir().root / "agents" / service


def _run_dir(invocation: Invocation, service: str) -> RunDir:
    from hermes_tui.config.paths import RunDir

    return RunDir(_home(invocation, service))
