"""``backup`` and ``restore``: a copy of the run directory, and a run directory from a copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_tui.cli.overrides import Invocation, OverridesCommand

if TYPE_CHECKING:
    from hermes_tui.backup.manifest import Manifest


@click.command(cls=OverridesCommand)
@click.argument("target", type=click.Path(path_type=Path))
@click.pass_obj
def backup(invocation: Invocation, target: Path) -> None:
    """Copy the run directory to TARGET, whether the stack runs or not.

    TARGET is a new folder, or a new file that ends in .tar, .tar.gz or .tgz. The keys are in it.
    """
    from hermes_tui.backup.making import back_up

    run_dir = invocation.run_dir()
    manifest = back_up(run_dir, target)
    click.echo(f"backed up {run_dir.root} to {target}: {_described(manifest)}")
    for line in manifest.left_out:
        click.echo(f"left out: {line}")


@click.command(cls=OverridesCommand)
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.pass_obj
def restore(invocation: Invocation, source: Path) -> None:
    """Make the run directory from the backup SOURCE.

    The run directory must be empty, or not be there. Every file is compared with its checksum.
    """
    from hermes_tui.backup import restoring

    run_dir = invocation.run_dir()
    manifest = restoring.restore(source, run_dir)
    click.echo(f"restored {run_dir.root}: {_described(manifest)}")
    click.echo(f"start it with `{invocation.command()}`")


def _described(manifest: Manifest) -> str:
    """Return what a backup holds, in a few words."""
    import time

    from hermes_tui.core.units import size

    num_checkpoints = sum(name.endswith("/COMPLETE") for name in manifest.files)
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.made_at))
    return (
        f"{len(manifest.files)} files, {size(manifest.num_bytes)}, {num_checkpoints} checkpoints, "
        f"as of {at}"
    )
