"""``doctor``: what is there, what is missing, and the command that mends it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_tui import __version__
from hermes_tui.cli_commands.words import Invocation, WordsCommand

if TYPE_CHECKING:
    from hermes_tui.core.config import Config
    from hermes_tui.core.paths import RunDir

_GIB = 1024**3
_MIN_FREE_DISK_GIB = 2
"""The embedded model, its conversion and a few checkpoints of it."""

_PACKAGES = {
    "textual": "pip install hermes-tui",
    "hermes-agent": "pip install 'hermes-tui[agent]'",
    "torch": "pip install 'hermes-tui[train]'",
    "transformers": "pip install 'hermes-tui[train]'",
    "peft": "pip install 'hermes-tui[train]'",
    "renderers": "pip install 'hermes-tui[train]'",
}
"""What each part needs, and what installs it."""

_TRAINER_ONLY = ("torch", "transformers", "peft", "renderers")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    subject: str
    """What was looked at."""
    state: str
    """What was found."""
    mend: str = ""
    """What to do about it; empty when nothing is wrong."""


@click.command(cls=WordsCommand)
@click.pass_obj
def doctor(invocation: Invocation) -> None:
    """Print versions, paths, devices, ports, the model, and what is missing."""
    import platform

    config = invocation.load()
    run_dir = invocation.run_dir()
    findings = [
        Finding("hermes-tui", f"{__version__}, python {platform.python_version()}"),
        Finding("python", sys.executable),
        Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        *_packages(config),
        *_devices(),
        *_paths(invocation, run_dir),
        *_model(config),
        *_ports(config, run_dir),
    ]
    for finding in findings:
        mark = "!!" if finding.mend else "ok"
        click.echo(f"{mark}  {finding.subject:<22}{finding.state}")
        if finding.mend:
            click.echo(f"    {'':<22}-> {finding.mend}")
    missing = sum(bool(finding.mend) for finding in findings)
    click.echo(f"\n{missing} to mend" if missing else "\nnothing to mend")
    raise SystemExit(1 if missing else 0)


def _packages(config: Config) -> Iterator[Finding]:
    import importlib.metadata

    for name, mend in _PACKAGES.items():
        if name in _TRAINER_ONLY and not config.training.enabled:
            continue
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "not installed", mend)


def _devices() -> Iterator[Finding]:
    from hermes_tui.core.system import SystemSampler

    sample = SystemSampler().sample({})
    yield Finding("cpu", f"{sample.cpu_count} cores for this process")
    total, used = sample.memory_total_bytes / _GIB, sample.memory_used_bytes / _GIB
    yield Finding("memory", f"{total - used:.1f} of {total:.1f} GiB free")
    for gpu in sample.gpus:
        memory = f"{gpu.memory_total_bytes / _GIB:.0f} GiB" if gpu.memory_total_bytes else "n/a"
        yield Finding(f"gpu {gpu.index}", f"{gpu.name or 'n/a'}, {memory}")
    if sample.gpu_note:
        yield Finding("gpu", sample.gpu_note)


def _paths(invocation: Invocation, run_dir: RunDir) -> Iterator[Finding]:
    import shutil

    from hermes_tui.core.config import find_file
    from hermes_tui.supervisor.lock import lock_owner

    file = invocation.config_file or find_file(Path.cwd(), os.environ)
    yield Finding("configuration", str(file or "none, all defaults"))
    pid = lock_owner(run_dir)
    yield Finding("run directory", f"{run_dir.root} ({f'served by pid {pid}' if pid else 'idle'})")
    there = next(folder for folder in (run_dir.root, *run_dir.root.parents) if folder.exists())
    if not os.access(there, os.W_OK):
        yield Finding("run directory", f"{there} is not writable", "set run.dir to another place")
    free_gib = shutil.disk_usage(there).free / _GIB
    mend = "" if free_gib >= _MIN_FREE_DISK_GIB else "free some space, or set run.dir elsewhere"
    yield Finding("disk", f"{free_gib:.1f} GiB free", mend)


def _model(config: Config) -> Iterator[Finding]:
    if not config.training.enabled:
        upstream = config.upstream.base_url
        mend = "" if upstream else "set upstream.base_url, or training.enabled = true"
        yield Finding("upstream", upstream or "none, and training is off", mend)
        return
    import subprocess

    # In a process of its own: what knows the models is not for the app's process.
    command = ["-P", "-m", "hermes_tui_training.model", "--check", config.model.path]
    answer = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        yield Finding("model", f"{config.model.path} in {answer.stdout.strip()}")
    else:
        yield Finding("model", f"{config.model.path} is not prepared", "hermes-tui setup")


def _ports(config: Config, run_dir: RunDir) -> Iterator[Finding]:
    from hermes_tui.supervisor.lock import lock_owner

    if lock_owner(run_dir):
        return  # they are in use by the stack itself
    for key, host, port in (
        ("services.gateway.port", config.services.gateway.host, config.services.gateway.port),
        ("services.router.port", "127.0.0.1", config.services.router.port),
        ("training.gateway.port", config.training.gateway.host, config.training.gateway.port),
    ):
        if port and _is_taken(host, port):
            yield Finding(key, f"port {port} is in use", f"set {key} to another port, or 0")


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
