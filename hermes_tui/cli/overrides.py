"""Overrides: ``section.key=value`` settings, anywhere on the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_tui.core.program import typed_program

if TYPE_CHECKING:
    from hermes_tui.config.paths import RunDir
    from hermes_tui.config.settings import Config

_OVERRIDE = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)+=")


@dataclass
class Invocation:
    """The command line's options and overrides that every command has."""

    config_file: Path | None = None
    """``--config``; None means the nearest file."""
    overrides: list[str] = field(default_factory=list)
    """The overrides, in order."""

    def load(self, *more: str) -> Config:
        """Return the configuration.

        Args:
            more: further overrides; they win over those of the command line.

        Raises: ConfigError: see ``load_config``.
        """
        from hermes_tui.config.settings import load_config

        return load_config((*self.overrides, *more), path=self.config_file)

    def command(self, *words: str) -> str:
        """Return the command line of another command on the same stack, which is running."""
        file = ["-c", str(self.config_file)] if self.config_file else []
        own = [word for word in self.overrides if word.startswith("run.")]
        return shlex.join([typed_program(), *file, *words, *own])

    def run_dir(self) -> RunDir:
        """Return the run directory."""
        from hermes_tui.config.paths import RunDir

        return RunDir.of(self.load())


def _split(command: click.Command, args: list[str]) -> Iterator[tuple[bool, str]]:
    """Yield (whether it is an override, argument); an option's value is never an override."""
    takes_value = {
        name
        for param in command.params
        if isinstance(param, click.Option) and not param.is_flag and not param.count
        for name in param.opts
    }
    before = ""
    for position, arg in enumerate(args):
        if arg == "--":
            yield from ((False, rest) for rest in args[position:])
            return
        yield bool(_OVERRIDE.match(arg)) and before not in takes_value, arg
        before = arg


class OverridesCommand(click.Command):
    """A command that takes overrides among its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the overrides into the invocation; parse the rest as the command's own arguments."""
        split = list(_split(self, args))
        ctx.ensure_object(Invocation).overrides += [
            arg for is_override, arg in split if is_override
        ]
        return super().parse_args(ctx, [arg for is_override, arg in split if not is_override])


class OverridesGroup(click.Group):
    """A group that takes overrides before its command."""

    command_class = OverridesCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the overrides before the command into the invocation."""
        own: list[str] = []
        invocation = ctx.ensure_object(Invocation)
        rest = iter(_split(self, args))
        before = ""
        for is_override, arg in rest:
            if is_override:
                invocation.overrides.append(arg)
            else:
                own.append(arg)
                if not arg.startswith("-") and before not in ("-c", "--config"):
                    break  # the command; it parses what follows
                before = arg
        return super().parse_args(ctx, own + [arg for _, arg in rest])
