"""Commands about the whole stack: setup, attach, status, stop, logs, the screen."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from hermes_tui.cli.connect import run_async
from hermes_tui.cli.overrides import Invocation, OverridesCommand
from hermes_tui_common.errors import ConfigError, StackError

if TYPE_CHECKING:
    from hermes_tui.config.paths import RunDir
    from hermes_tui.config.settings import Config
    from hermes_tui.core.stack_status import StackStatus


def open_screen(config: Config) -> int:
    """Open the screen on the run directory's stack, started first when none runs."""
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not terminal or os.environ.get("TERM") == "dumb":
        why = "TERM is 'dumb'" if terminal else "standard input or output is not a terminal"
        raise ConfigError(
            f"the screen needs a terminal that can move its cursor, but {why}; use "
            "`hermes-tui --plain` to talk line by line, or `hermes-tui --serve` for scripts"
        )
    from hermes_tui.tui.app import run_app

    return run_app(config)


@click.command(cls=OverridesCommand)
@click.pass_obj
def setup(invocation: Invocation) -> None:
    """Fetch and prepare the model.

    Everything later works without a network.
    """
    config = invocation.load()
    if not config.training.enabled:
        click.echo("training is off: there is no model to prepare")
        return
    run_staged("hermes_tui_training.models.prepare", config.model.path)


def run_staged(module: str, *arguments: str) -> None:
    """Run a module in a process of its own and show its stages.

    Raises: StackError: it failed; says why.
    """
    import subprocess

    with subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout
        assert child.stderr
        _show_progress(child.stdout)
        errors = child.stderr.read().strip()
    if child.returncode:
        last = errors.splitlines()[-1] if errors else f"{module}: exit {child.returncode}"
        raise StackError(last.removeprefix("error: "))


def _show_progress(rows: Iterable[str]) -> None:
    """Show progress rows (JSON lines): on a terminal one line that changes, else a line a stage."""
    is_live = sys.stdout.isatty()
    shown = ""
    for line in rows:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # not a progress row: a library printed something
        done = f" {row['done_frac']:.0%}" if row.get("done_frac") is not None else ""
        if is_live:
            click.echo(f"\r\x1b[K{row['stage']}: {row['detail']}{done}", nl=False)
        elif row["stage"] != shown:
            click.echo(f"{row['stage']}: {row['detail']}")
        shown = row["stage"]
    if is_live and shown:
        click.echo()


@click.command(cls=OverridesCommand)
@click.option("--plain", is_flag=True, help="Talk line by line instead.")
@click.pass_obj
def attach(invocation: Invocation, plain: bool) -> None:
    """Open the screen on a stack that already runs; never starts one."""
    from hermes_tui.core.errors import NotRunningError
    from hermes_tui.supervisor.lock import lock_owner

    run_dir = invocation.run_dir()
    if lock_owner(run_dir) is None:
        raise NotRunningError(str(run_dir.root))
    if plain:
        from hermes_tui.plain.run import run_plain

        raise SystemExit(run_plain(invocation.load(), invocation.command("stop")))
    raise SystemExit(open_screen(invocation.load()))


@click.command(cls=OverridesCommand)
@click.option("--json", "as_json", is_flag=True, help="Print what the control API answers.")
@click.pass_obj
def status(invocation: Invocation, as_json: bool) -> None:
    """Show every process; exits with 0 when all are ready."""
    stack = run_async(fetch_status(invocation.run_dir()))
    if as_json:
        click.echo(stack.model_dump_json(indent=2))
    else:
        print_status(stack, run_async(find_problems(stack)))
        for label, text in run_async(training_words(invocation.run_dir(), stack.inference_gateway)):
            click.echo(f"{label:<18} {text}")
    raise SystemExit(0 if all(row.state == "ready" for row in stack.processes) else 1)


async def fetch_status(run_dir: RunDir) -> StackStatus:
    """Return the state of the stack of a run directory. Raises: NotRunningError: none runs."""
    from hermes_tui.stack_client.launch import find_supervisor

    async with await find_supervisor(run_dir) as client:
        return await client.status()


async def find_problems(stack: StackStatus) -> dict[str, str]:
    """Return what each process that is ready says is wrong, by its name; empty for nothing."""
    from hermes_tui.stack_client.health import read_health

    return {name: health.problem for name, health in (await read_health(stack)).items()}


async def training_words(run_dir: RunDir, url: str | None) -> list[tuple[str, str]]:
    """Return what the trainer does, what its last step did, and what the watch says, each named.

    Nothing without a trainer, or while it does not answer: its process's row says so.
    """
    from hermes_tui.config.secrets import read_keys
    from hermes_tui.core.models import StepRow
    from hermes_tui.core.sanitize import one_line
    from hermes_tui.core.step_words import sentence
    from hermes_tui_common.errors import ServiceError
    from hermes_tui_training.api.client import InferenceClient

    keys = read_keys(run_dir)
    if not url or keys is None:
        return []
    try:
        async with InferenceClient(url, keys.inference_admin_key) as client:
            trainer = await client.status()
            steps = await client.steps(after=trainer.policy_version - 1)
    except ServiceError:
        return []
    waits = trainer.pause_reason or trainer.reason or trainer.waiting
    said = [("training", f"{trainer.state}: {waits}")]
    for row in map(StepRow.of, steps[-1:]):
        said.append(("last step", sentence(row)))
        said += [("watch", text) for text in row.warnings]
    return [(label, one_line(text)) for label, text in said]


def print_status(stack: StackStatus, problems: Mapping[str, str]) -> None:
    """Print a stack's addresses and a line for each process, then what is wrong or was lost.

    Args:
        stack: its status.
        problems: as ``find_problems`` returns them.
    """
    from hermes_tui.core.sanitize import clean
    from hermes_tui.core.units import size

    click.echo(f"hermes-tui {stack.version} · {stack.state} · pid {stack.pid} · {stack.run_dir}")
    for label, value in (
        ("agent gateway", stack.agent_gateway),
        ("inference gateway", stack.inference_gateway),
        ("control", stack.control),
        ("cage", stack.cage),
    ):
        click.echo(f"{label:<18} {value or '-'}")
    click.echo(f"\n{'PROCESS':<15}{'STATE':<10}{'PID':>8}{'PORT':>7}{'UP':>9}{'MEMORY':>9}  NOTE")
    for row in stack.processes:
        uptime = _duration(row.uptime_s) if row.uptime_s is not None else "-"
        rss = size(row.rss_bytes) if row.rss_bytes else "-"
        restarts = f"restarted {row.restarts}x after {row.last_exit}" if row.restarts else ""
        reason = "" if row.state == "ready" else row.reason
        note = clean(reason or row.work or restarts).splitlines()[:1]
        click.echo(
            f"{row.name:<15}{row.state:<10}{row.pid or '-':>8}{row.port or '-':>7}"
            f"{uptime:>9}{rss:>9}  {''.join(note)}".rstrip()
        )
    said = [
        f"{row.name}: {clean(line)}"
        for row in stack.processes
        if row.state == "ready"
        for line in (*problems.get(row.name, "").splitlines(), *(row.reason or "").splitlines())
    ]
    if said:
        click.echo("\n" + "\n".join(said))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@click.command(cls=OverridesCommand)
@click.pass_obj
def stop(invocation: Invocation) -> None:
    """End the stack: every process, under one deadline."""
    from hermes_tui.stack_client.launch import stop_supervisor

    config = invocation.load()
    run_dir = invocation.run_dir()
    run_async(stop_supervisor(run_dir, config.run.stop_timeout_s))
    click.echo(f"stopped {run_dir.root}")
