"""``config init|show|check``."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_tui.cli_commands.words import Invocation, WordsGroup


@click.group(cls=WordsGroup)
def config() -> None:
    """Write, show or check the configuration."""


@config.command()
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def init(force: bool) -> None:
    """Write hermes.toml here: every setting, explained, left at its default."""
    from hermes_tui.core.config import FILE_NAME
    from hermes_tui.core.reference import reference_toml
    from hermes_tui_services.errors import ConfigError

    path = Path(FILE_NAME)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(reference_toml(commented_out=True))
    except FileExistsError as error:
        raise ConfigError(f"{path.absolute()}: is there already; --force replaces it") from error
    except OSError as error:
        raise ConfigError(f"{path.absolute()}: cannot be written ({error.strerror})") from error
    click.echo(f"wrote {path.absolute()}")


@config.command()
@click.pass_obj
def show(invocation: Invocation) -> None:
    """Print what is in force, and where each setting came from; keys are masked."""
    from hermes_tui.core.config import load_with_sources
    from hermes_tui.core.reference import config_toml

    loaded, sources = load_with_sources(invocation.overrides, path=invocation.config_file)
    click.echo(
        config_toml(loaded, lambda key: sources.where(key) if sources.sets(key) else ""), nl=False
    )


@config.command()
@click.pass_obj
def check(invocation: Invocation) -> None:
    """Check the configuration; exits with 2 and one line when it is wrong."""
    from hermes_tui.core.config import load_with_sources
    from hermes_tui.core.paths import RunDir

    loaded, sources = load_with_sources(invocation.overrides, path=invocation.config_file)
    click.echo(f"ok: {sources.file or 'no file, all defaults'}")
    click.echo(f"run directory: {RunDir.of(loaded).root}")
