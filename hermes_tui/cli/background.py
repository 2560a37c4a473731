"""Stacks that run in the background under a name: what ``agent`` and ``inf`` share.

Each has a run directory of its own in the main one, such as ``agents/NAME``. Commands and flags are
those of AReaL's ``areal agent`` and ``areal inf``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_tui.cli.connect import run_async
from hermes_tui.cli.logs import print_logs
from hermes_tui.cli.overrides import Invocation
from hermes_tui.cli.stack import fetch_status, find_problems, print_status

if TYPE_CHECKING:
    from hermes_tui.config.paths import RunDir
    from hermes_tui.config.settings import Config
    from hermes_tui.core.control_api import ControlEvent
    from hermes_tui.core.stack_status import StackStatus

_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""Names of services: one folder each, below the kind's."""

WATCH_S = 2.0
"""Time between two looks of ``status --watch``, as AReaL has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKind:
    """One kind of background stack."""

    command: str
    """The group of commands, such as ``agent``."""
    title: str
    """What it is called, such as "agent service"."""
    folder: str
    """Folder of the main run directory that holds the run directories."""
    gateway: str
    """Name of the process that clients talk to."""
    components: Mapping[str, str] = field(default_factory=dict)
    """AReaL's names of processes that have another one here."""

    def run_dir(self, invocation: Invocation, service: str) -> RunDir:
        """Return the run directory of a service. Raises: click.BadParameter: it is no name."""
        from hermes_tui.config.paths import RunDir

        if not _NAME.fullmatch(service):
            text = f"{service!r} is no name of a service: there is no such service"
            raise click.BadParameter(text, param_hint="--service")
        return RunDir(self._home(invocation) / service)

    def services(self, invocation: Invocation) -> list[str]:
        """Return the names of the services that were started here, running or not."""
        home = self._home(invocation)
        return sorted(folder.name for folder in home.iterdir()) if home.is_dir() else []

    def _home(self, invocation: Invocation) -> Path:
        return invocation.run_dir().root / self.folder


service_option = click.option(
    "--service", default="default", show_default=True, help="Name of the service."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
config_option = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="Configuration file; else the nearest hermes.toml.",
)


def launch(kind: ServiceKind, config: Config, service: str, *, replace: bool) -> StackStatus:
    """Start a service in the background; return its state once every process is ready.

    Args:
        replace: whether one of this name that runs is stopped first.

    Raises: AlreadyRunningError: one runs. StackError: it cannot be started.
    """
    from hermes_tui.config.paths import RunDir
    from hermes_tui.core.errors import AlreadyRunningError
    from hermes_tui.stack_client.launch import ensure_supervisor, stop_supervisor
    from hermes_tui.supervisor.lock import lock_owner

    run_dir = RunDir.of(config)
    if pid := lock_owner(run_dir):
        if not replace:
            raise AlreadyRunningError(str(run_dir.root), pid, service)
        run_async(stop_supervisor(run_dir, config.run.stop_timeout_s))

    async def start() -> StackStatus:
        async with await ensure_supervisor(config, _show_event) as client:
            return await client.status()

    stack = run_async(start())
    click.echo(f"Started {kind.title} {service!r}.")
    return stack


def _show_event(event: ControlEvent) -> None:
    from hermes_tui.core.control_api import ProcessChanged

    if isinstance(event, ProcessChanged) and event.state == "ready":
        click.echo(f"  {event.name} is ready", err=True)


def add_lifecycle(group: click.Group, kind: ServiceKind) -> None:
    """Add ``status``, ``ps``, ``logs`` and ``stop`` to a group of commands."""

    @group.command(help=f"Show the processes of an {kind.title}.")
    @service_option
    @json_option
    @click.option("--watch", is_flag=True, help="Go on until ctrl+c.")
    @click.option(
        "--interval",
        type=click.FloatRange(0.1),
        default=WATCH_S,
        show_default=True,
        help="Seconds between two looks of --watch.",
    )
    @click.pass_obj
    def status(
        invocation: Invocation, service: str, as_json: bool, watch: bool, interval: float
    ) -> None:
        run_dir = kind.run_dir(invocation, service)
        while True:
            stack = run_async(fetch_status(run_dir))
            if as_json:
                click.echo(json.dumps(_named(stack, kind), indent=None if watch else 2))
            else:
                print_status(stack, run_async(find_problems(stack)))
            if not watch:
                raise SystemExit(0 if all(row.state == "ready" for row in stack.processes) else 1)
            time.sleep(interval)

    @group.command(help=f"List the {kind.title}s of this run directory that run.")
    @click.option("--all", "everything", is_flag=True, help="Those that do not run, too.")
    @json_option
    @click.pass_obj
    def ps(invocation: Invocation, everything: bool, as_json: bool) -> None:
        names = kind.services(invocation)
        rows = [_ps_row(kind, name, kind.run_dir(invocation, name)) for name in names]
        rows = [row for row in rows if everything or row["state"] == "running"]
        if as_json:
            click.echo(json.dumps(rows, indent=2))
        elif not rows:
            click.echo(
                f"No {kind.title} runs. Start one with `hermes-tui {kind.command} run`; "
                "`ps --all` lists those that have stopped."
            )
        else:
            click.echo(f"{'SERVICE':<20}{'STATE':<10}{'PID':>8}  GATEWAY")
            for row in rows:
                url = row["gateway"] or "-"
                click.echo(f"{row['service']:<20}{row['state']:<10}{row['pid'] or '-':>8}  {url}")

    @group.command(help=f"Print the log of one process of an {kind.title}.")
    @service_option
    @click.option("--component", default="gateway", show_default=True, help="Such as gateway.")
    @click.option("-f", "--follow", is_flag=True, help="Go on with each new line.")
    @click.option("-n", "--lines", type=click.IntRange(0), default=200, show_default=True)
    @click.pass_obj
    def logs(
        invocation: Invocation, service: str, component: str, follow: bool, lines: int
    ) -> None:
        name = kind.components.get(component, component)
        if name.startswith("proxy-"):
            name = f"data-{name}"
        print_logs(kind.run_dir(invocation, service), [name], follow=follow, lines=lines)

    @group.command(help=f"End an {kind.title}; its files stay.")
    @service_option
    @click.option("--grace-period", type=float, help="Seconds until what still runs is an error.")
    @click.option("--force", is_flag=True, help="Kill its processes at once.")
    @click.option("--keep-state", is_flag=True, help="Without effect: its files always stay.")
    @click.pass_obj
    def stop(
        invocation: Invocation,
        service: str,
        grace_period: float | None,
        force: bool,
        keep_state: bool,
    ) -> None:
        from hermes_tui.stack_client.launch import kill_stack, stop_supervisor

        run_dir = kind.run_dir(invocation, service)
        if force:
            kill_stack(run_dir)
        else:
            timeout_s = grace_period or invocation.load().run.stop_timeout_s
            run_async(stop_supervisor(run_dir, timeout_s))
        click.echo(f"Stopped {kind.title} {service!r}.")


def _named(stack: StackStatus, kind: ServiceKind) -> dict[str, Any]:
    """Return a stack's state, and beside it its processes under AReaL's names."""
    rows = {
        row.name: {
            "url": f"http://127.0.0.1:{row.port}" if row.port else None,
            "pid": row.pid,
            "state": row.state,
        }
        for row in stack.processes
    }
    url = {"agent": stack.agent_gateway, "inf": stack.inference_gateway}[kind.command]
    named: dict[str, Any] = {"gateway": {**rows.get(kind.gateway, {}), "url": url}}
    if "router" in rows:
        named["router"] = rows["router"]
        numbers = [name.removeprefix("worker-") for name in rows if name.startswith("worker-")]
        named["pairs"] = [
            {"worker": rows[f"worker-{n}"], "proxy": rows.get(f"data-proxy-{n}")} for n in numbers
        ]
    return {**stack.model_dump(mode="json"), **named}


def _ps_row(kind: ServiceKind, service: str, run_dir: RunDir) -> dict[str, str | int | None]:
    from hermes_tui.supervisor.lock import lock_owner
    from hermes_tui_common.run_file import RoleRunFile

    pid = lock_owner(run_dir)
    gateway = None
    if pid:
        try:
            gateway = RoleRunFile.read(run_dir.run_file(kind.gateway)).url
        except (OSError, ValueError):
            gateway = None  # it is starting, or being restarted
    return {
        "service": service,
        "state": "running" if pid else "stopped",
        "pid": pid,
        "gateway": gateway,
    }
