"""``train``: the trainer and its inference gateway alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from hermes_tui.cli.overrides import Invocation, OverridesCommand

_YAML = (".yaml", ".yml")

TRAINER_ONLY = ("training.enabled=true", "services.enabled=false")
"""Settings of a stack without the agent service."""


@click.command(cls=OverridesCommand)
@click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="Configuration file: TOML, or a YAML file of AReaL's train.py.",
)
@click.argument("words", nargs=-1)
@click.pass_obj
def train(invocation: Invocation, config_file: Path | None, words: tuple[str, ...]) -> None:
    """Run trainer and inference gateway without the agent.

    WORDS are settings, key=value: ours, and those of AReaL's train.py. What of AReaL's has no
    counterpart is named, with what to use instead.
    """
    from hermes_tui.supervisor.serve import serve

    take_over(invocation, config_file, words)
    raise SystemExit(serve(invocation.load(*TRAINER_ONLY)))


def take_over(invocation: Invocation, config_file: Path | None, words: tuple[str, ...]) -> None:
    """Read AReaL's settings, from a YAML file and the command line, into the invocation.

    Raises: ConfigError: a file or a word cannot be taken over.
    """
    from hermes_tui.config.areal import read_words, read_yaml

    overrides: list[str] = []
    if config_file and config_file.suffix in _YAML:
        translation = read_yaml(config_file)
        overrides += translation.words()
        _tell_left_out(translation.left_out, str(config_file))
    elif config_file:
        invocation.config_file = config_file
    translation = read_words((*invocation.overrides, *words))
    for word, reason in translation.left_out.items():
        click.echo(f"note: {word} is left out: {reason}", err=True)
    invocation.overrides = [*overrides, *translation.words()]


def _tell_left_out(left_out: Mapping[str, str], source: str) -> None:
    """Say in one line what of a file is left out; docs/areal.md says why."""
    if left_out:
        sections = sorted({word.partition(".")[0] for word in left_out})
        click.echo(
            f"note: {len(left_out)} settings of {source} have no counterpart and are left out, "
            f"in {', '.join(sections)}; docs/areal.md says what to use instead",
            err=True,
        )
