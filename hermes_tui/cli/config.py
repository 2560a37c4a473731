"""``config init|show|check``."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_tui.cli.overrides import Invocation, OverridesGroup


@click.group(cls=OverridesGroup)
def config() -> None:
    """Write, show or check the configuration."""


@config.command()
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def init(force: bool) -> None:
    """Write hermes.toml here, for this machine.

    Every setting is explained and left at its default, but for those that the machine asks for.
    """
    from hermes_tui.config.paths import RunDir
    from hermes_tui.config.recommend import describe, recommend
    from hermes_tui.config.reference import machine_toml
    from hermes_tui.config.settings import FILE_NAME, Config
    from hermes_tui.supervisor.system_sampler import SystemSampler
    from hermes_tui_common.errors import ConfigError

    path = Path(FILE_NAME)
    machine, free = SystemSampler().sample({}), RunDir.of(Config()).free_bytes
    about, settings = describe(machine, free), recommend(machine, free)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(machine_toml(settings, about))
    except FileExistsError as error:
        raise ConfigError(f"{path.absolute()}: is there already; --force replaces it") from error
    except OSError as error:
        raise ConfigError(f"{path.absolute()}: cannot be written ({error.strerror})") from error
    click.echo(f"wrote {path.absolute()} for {about}")
    for key, setting in settings.items():
        click.echo(f"  {key} = {setting.value}, for {setting.why}")


@config.command()
@click.pass_obj
def show(invocation: Invocation) -> None:
    """Print what is in force, and where it came from.

    Keys are masked.
    """
    from hermes_tui.config.reference import config_toml
    from hermes_tui.config.settings import load_with_sources

    loaded, sources = load_with_sources(invocation.overrides, path=invocation.config_file)
    click.echo(
        config_toml(loaded, lambda key: sources.where(key) if sources.sets(key) else ""), nl=False
    )


@config.command()
@click.pass_obj
def check(invocation: Invocation) -> None:
    """Check the configuration.

    Exits with 2 and says all that is wrong, where, and what is meant instead.
    """
    from textual.theme import BUILTIN_THEMES

    from hermes_tui.config.paths import RunDir
    from hermes_tui.config.settings import load_with_problems
    from hermes_tui.core.errors import EXIT_CONFIG
    from hermes_tui.core.sanitize import clean
    from hermes_tui.tui.keys import resolve

    loaded, sources, problems = load_with_problems(
        invocation.overrides, path=invocation.config_file
    )
    place = sources.file or "configuration"
    if loaded is not None:
        problems += [f"{place}: {problem}" for problem in resolve(loaded.tui.keymap).problems]
        if (theme := loaded.tui.theme) not in BUILTIN_THEMES:
            known = ", ".join(sorted(BUILTIN_THEMES))
            where = sources.where("tui.theme")
            problems.append(f"{where}: tui.theme: there is no theme “{theme}”; there are {known}")
    if problems or loaded is None:
        for problem in problems:
            click.echo(f"error: {clean(problem)}", err=True)
        raise SystemExit(EXIT_CONFIG)
    click.echo(f"ok: {sources.file or 'no file, all defaults'}")
    click.echo(f"run directory: {RunDir.of(loaded).root}")
