"""The command line. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import click

from hermes_tui import __version__
from hermes_tui.cli.overrides import Invocation, OverridesGroup
from hermes_tui.core.errors import EXIT_INTERRUPTED
from hermes_tui_common.errors import HermesTuiError


class _LateGroup(OverridesGroup):
    """A group whose commands are imported when they are asked for."""

    places: ClassVar[Mapping[str, str]] = {
        "setup": "stack:setup",
        "attach": "stack:attach",
        "status": "stack:status",
        "stop": "stack:stop",
        "logs": "logs:logs",
        "backup": "backup:backup",
        "restore": "backup:restore",
        "web": "web:web",
        "chat": "chat:chat",
        "session": "sessions:session",
        "reward": "sessions:reward",
        "export": "export:export",
        "train": "train:train",
        "agent": "agent:agent",
        "engine": "engine:engine",
        "inf": "inf:inf",
        "config": "config:config",
        "doctor": "doctor:doctor",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return None
        module, _, attribute = self.places[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"hermes_tui.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_LateGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Any setting can stand on the command line: section.key=value, such as "
    "services.pairs.count=2. `hermes-tui config init` lists them all.",
)
@click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="Configuration file; else the nearest hermes.toml.",
)
@click.option(
    "--serve", is_flag=True, help="Run the stack without a screen; JSON lines on standard output."
)
@click.option("--plain", is_flag=True, help="Talk line by line: for screen readers and pipes.")
@click.version_option(__version__, prog_name="hermes-tui")
@click.pass_context
def cli(ctx: click.Context, config_file: Path | None, serve: bool, plain: bool) -> None:
    """Talk to the Hermes agent, watch its tokens, judge it with one key, and see it learn.

    Without a command it opens the screen, and starts the stack when none runs.
    """
    invocation = ctx.ensure_object(Invocation)
    invocation.config_file = config_file
    if ctx.invoked_subcommand is not None:
        if serve or plain:
            raise click.UsageError(f"{'--serve' if serve else '--plain'} takes no command.")
        return
    if serve and plain:
        raise click.UsageError("--serve and --plain exclude each other.")
    if plain:
        from hermes_tui.plain.run import run_plain

        raise SystemExit(run_plain(invocation.load(), invocation.command("stop")))
    if serve:
        from hermes_tui.supervisor import serve as headless

        raise SystemExit(headless.serve(invocation.load()))
    from hermes_tui.cli.stack import open_screen

    raise SystemExit(open_screen(invocation.load()))


def main(args: list[str] | None = None) -> Any:
    """Run the command line; every expected error is one line on standard error.

    Such a line begins with ``error: ``, whoever found the mistake.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no UTF-8 shows a question mark instead of ending the program.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = cli.main(args=args, prog_name="hermes-tui", standalone_mode=False)
        raise SystemExit(code if isinstance(code, int) else 0)
    except click.Abort:
        raise SystemExit(EXIT_INTERRUPTED) from None
    except click.ClickException as error:
        click.echo(f"error: {_one_line(error)}", err=True)
        raise SystemExit(error.exit_code) from error
    except HermesTuiError as error:
        from hermes_tui.core.errors import exit_code
        from hermes_tui.core.sanitize import clean

        click.echo(f"error: {clean(str(error))}", err=True)
        raise SystemExit(exit_code(error)) from error


def _one_line(error: click.ClickException) -> str:
    """Return what is wrong with a command line, and where to read how it is meant."""
    said = error.format_message().rstrip(".")
    said = said[:1].lower() + said[1:]
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return said
    return f"{said}; see `{error.ctx.command_path} --help`"


if __name__ == "__main__":
    main()
