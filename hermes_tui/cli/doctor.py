"""``doctor``: what is installed and usable, what is missing, and how to fix it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_tui import __version__
from hermes_tui.cli.overrides import Invocation, OverridesCommand
from hermes_tui.core.units import size

if TYPE_CHECKING:
    from hermes_tui.config.paths import RunDir
    from hermes_tui.config.settings import Config

_MIN_COLUMNS, _MIN_ROWS = 60, 20
"""A smaller terminal shows only a notice."""

_MIN_FREE_DISK_BYTES = 2_000_000_000
"""Room for the embedded model, its conversion and a few checkpoints."""

_PACKAGES = {
    "textual": "pip install hermes-tui",
    "hermes-agent": "pip install 'hermes-tui[agent]'",
    "torch": "pip install 'hermes-tui[train]'",
    "transformers": "pip install 'hermes-tui[train]'",
    "peft": "pip install 'hermes-tui[train]'",
    "renderers": "pip install 'hermes-tui[train]'",
}
"""Packages that the product needs, and the command that installs each."""

_TRAINER_ONLY = ("torch", "transformers", "peft", "renderers")

_OPTIONAL = {"textual-serve": "web", "pyarrow": "export"}
"""Packages that only one command needs, and the extra that installs them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    subject: str
    """What was checked."""
    state: str
    """What was found."""
    fix: str = ""
    """What to do about it; empty when nothing is wrong."""


@click.command(cls=OverridesCommand)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a ZIP file with all that helps to find a fault, without keys.",
)
@click.pass_obj
def doctor(invocation: Invocation, report: Path | None) -> None:
    """Check the installation, and say how to fix what is wrong.

    Versions, terminal, devices, paths, model, ports. Exits with 1 when something is to fix.
    """
    import platform

    config = invocation.load()
    run_dir = invocation.run_dir()
    findings = [
        Finding("hermes-tui", f"{__version__}, python {platform.python_version()}"),
        Finding("python", sys.executable),
        Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        *_packages(config),
        _terminal(),
        *_devices(),
        *_paths(invocation, run_dir),
        *_model(config),
        *_ports(config, run_dir),
        _cage(config),
    ]
    num_faults = sum(bool(finding.fix) for finding in findings)
    said = _said(findings, num_faults)
    click.echo(said)
    if report:
        from hermes_tui.cli.connect import run_async
        from hermes_tui.cli.report import write_report

        run_async(write_report(report, config, run_dir, said))
        click.echo(f"\nwrote {report}: no keys are in it, but look through it before you send it")
    raise SystemExit(1 if num_faults else 0)


def _said(findings: list[Finding], num_faults: int) -> str:
    lines = []
    for finding in findings:
        mark = "!!" if finding.fix else "ok"
        lines.append(f"{mark}  {finding.subject:<22}{finding.state}")
        if finding.fix:
            lines.append(f"    {'':<22}-> {finding.fix}")
    lines += ["", f"{num_faults} to fix" if num_faults else "nothing to fix"]
    return "\n".join(lines)


def _packages(config: Config) -> Iterator[Finding]:
    import importlib.metadata

    for name, fix in _PACKAGES.items():
        if name in _TRAINER_ONLY and not config.training.enabled:
            continue
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "not installed", fix)
    for name, extra in _OPTIONAL.items():
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            how = f"pip install 'hermes-tui[{extra}]'"
            yield Finding(name, f"not installed; `hermes-tui {extra}` would need it: {how}")


def _terminal() -> Finding:
    import shutil

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Finding("terminal", "none here; --plain and --serve need none")
    size = shutil.get_terminal_size()
    about = f"{os.environ.get('TERM', 'TERM is not set')}, {size.columns}x{size.lines}"
    encoding = sys.stdout.encoding.lower()
    if encoding.replace("-", "") != "utf8":
        return Finding("terminal", f"{about}, {encoding}", "export LANG=C.UTF-8")
    if os.environ.get("TERM") == "dumb":
        return Finding("terminal", about, "use `hermes-tui --plain` here, or set TERM")
    if size.columns < _MIN_COLUMNS or size.lines < _MIN_ROWS:
        fix = f"make it {_MIN_COLUMNS}x{_MIN_ROWS} or larger, or use `hermes-tui --plain`"
        return Finding("terminal", about, fix)
    return Finding("terminal", about)


def _devices() -> Iterator[Finding]:
    from hermes_tui.supervisor.system_sampler import SystemSampler

    sample = SystemSampler().sample({})
    yield Finding("cpu", f"{sample.cpu_count} cores for this process")
    total, used = sample.memory_total_bytes, sample.memory_used_bytes
    yield Finding("memory", f"{size(total - used)} of {size(total)} free")
    for gpu in sample.gpus:
        memory = size(gpu.memory_total_bytes) if gpu.memory_total_bytes else "n/a"
        fix = "" if _torch_sees_gpus() else "pip install torch, in a build with CUDA"
        unused = ", but the installed torch is for CPUs only" if fix else ""
        yield Finding(f"gpu {gpu.index}", f"{gpu.name or 'n/a'}, {memory}{unused}", fix)
    if sample.gpu_note:
        yield Finding("gpu", sample.gpu_note)


def _torch_sees_gpus() -> bool:
    """Whether the installed torch was built for GPUs; true where none is installed."""
    import importlib.metadata

    try:
        return not importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return True


def _paths(invocation: Invocation, run_dir: RunDir) -> Iterator[Finding]:
    from hermes_tui.config.settings import find_file
    from hermes_tui.supervisor.lock import lock_owner

    file = invocation.config_file or find_file(Path.cwd(), os.environ)
    yield Finding("configuration", str(file or "none, all defaults"))
    pid = lock_owner(run_dir)
    yield Finding("run directory", f"{run_dir.root} ({f'served by pid {pid}' if pid else 'idle'})")
    there = run_dir.existing
    if not os.access(there, os.W_OK):
        yield Finding("run directory", f"{there} is not writable", "set run.dir to another place")
    enough = run_dir.free_bytes >= _MIN_FREE_DISK_BYTES
    fix = "" if enough else "free some space, or set run.dir elsewhere"
    yield Finding("disk", f"{size(run_dir.free_bytes)} free", fix)


def _model(config: Config) -> Iterator[Finding]:
    if not config.training.enabled:
        upstream = config.upstream.base_url
        fix = "" if upstream else "set upstream.base_url, or training.enabled = true"
        yield Finding("upstream", upstream or "none, and training is off", fix)
        return
    import subprocess

    # In a process of its own: the app's process must not import torch.
    command = ["-P", "-m", "hermes_tui_training.models.prepare", "--check", config.model.path]
    answer = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        yield Finding("model", f"{config.model.path} in {answer.stdout.strip()}")
    else:
        yield Finding("model", f"{config.model.path} is not prepared", "hermes-tui setup")


def _cage(config: Config) -> Finding:
    """Say what keeps the agent's tools in; without tools the lack of it is no fault."""
    from hermes_tui.supervisor.cage import Confinement
    from hermes_tui_common.errors import ConfigError

    agent = config.services.agent
    try:
        confinement = Confinement.of(agent)
    except ConfigError as error:
        return Finding("cage", str(error), "set services.agent.cage to another value")
    if confinement.bubblewrap or agent.cage == "off" or not agent.enabled_toolsets:
        return Finding("cage", str(confinement))
    return Finding("cage", str(confinement), "install bubblewrap, or read docs/security.md")


def _ports(config: Config, run_dir: RunDir) -> Iterator[Finding]:
    from hermes_tui.supervisor.lock import lock_owner

    if lock_owner(run_dir):
        yield Finding("ports", "in use by the running stack; `hermes-tui status` shows them")
        return
    for key, host, port in (
        ("services.gateway.port", config.services.gateway.host, config.services.gateway.port),
        ("services.router.port", "127.0.0.1", config.services.router.port),
        ("training.gateway.port", config.training.gateway.host, config.training.gateway.port),
    ):
        if not port:
            yield Finding(key, "0: any that is free")
        elif _is_taken(host, port):
            yield Finding(key, f"{port} is in use", f"set {key} to another port, or 0")
        else:
            yield Finding(key, f"{port} is free")


def _is_taken(host: str, port: int) -> bool:
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return True
    return False
