"""``export``: what was recorded, for other programs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from hermes_tui.cli_commands.connect import inference_gateway, run_async
from hermes_tui.cli_commands.words import Invocation, WordsCommand
from hermes_tui_services.errors import ConfigError

if TYPE_CHECKING:
    from hermes_tui_training.exports.sources import Selection
    from hermes_tui_training.types import Episode

_NAMES = ("jsonl", "parquet", "trl", "art", "atropos", "verifiers", "tinker")


@click.command(cls=WordsCommand)
@click.argument("gateway_url", required=False)
@click.option(
    "--admin-key", envvar="ADMIN_KEY", help="Admin key of the inference gateway (env: ADMIN_KEY)."
)
@click.option(
    "--database",
    type=click.Path(path_type=Path),
    help="Read this trajectories.db, unchanged, instead of asking a gateway.",
)
@click.option("--format", "name", type=click.Choice(_NAMES), default="jsonl", show_default=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write; standard output when not given.",
)
@click.option("--session-id", help="Only this session's episodes.")
@click.option("--group-id", help="Only this group's episodes.")
@click.option("--state", help="Only episodes in this state, such as trained.")
@click.option("--episode-id", "episode_ids", multiple=True, help="This episode; may be repeated.")
@click.option(
    "--style",
    type=click.Choice(("individual", "concat")),
    default="concat",
    show_default=True,
    help="A row per completion, or per run of completions that continue each other.",
)
@click.option(
    "--discount",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Discount of rewards per completion, counted back from the last.",
)
@click.pass_obj
def export(
    invocation: Invocation,
    gateway_url: str | None,
    admin_key: str | None,
    database: Path | None,
    name: str,
    output: Path | None,
    session_id: str | None,
    group_id: str | None,
    state: str | None,
    episode_ids: tuple[str, ...],
    style: str,
    discount: float,
) -> None:
    """Export recorded episodes: tokens, log-probabilities, masks, versions, rewards.

    It marks nothing, and may run beside a stack that works.
    """
    from hermes_tui_training.exports.formats import FORMATS
    from hermes_tui_training.exports.rows import ExportOptions
    from hermes_tui_training.exports.sources import Selection

    form = FORMATS[name]
    if output is None and not form.is_text:
        raise click.UsageError(f"--format {name} needs --output FILE.")
    selection = Selection(
        session_id=session_id, group_id=group_id, state=state, episode_ids=episode_ids
    )
    if database is None:
        episodes = run_async(_asked(invocation, gateway_url, admin_key, selection))
    elif gateway_url or admin_key:
        raise click.UsageError("--database goes without a gateway and its key.")
    else:
        episodes = _read(database, selection)
    if not episodes:
        raise ConfigError("nothing was recorded that matches; `session list` shows the sessions")
    options = ExportOptions(style=style, discount=discount)  # type: ignore[arg-type]
    with _opened(output) as file:
        written = form.write(form.convert(episodes, options), file)
    click.echo(f"exported {written} {form.row} of {len(episodes)} episodes", err=True)


async def _asked(
    invocation: Invocation, url: str | None, key: str | None, selection: Selection
) -> list[Episode]:
    from hermes_tui_training.client import InferenceClient
    from hermes_tui_training.exports.sources import from_gateway

    gateway = await inference_gateway(invocation, url, key)
    async with InferenceClient(gateway.url, gateway.key) as client:
        return [episode async for episode in from_gateway(client, selection)]


def _read(database: Path, selection: Selection) -> list[Episode]:
    from hermes_tui_training.exports.sources import from_database

    return list(from_database(database, selection))


@contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    """Open what is written to; a file appears under its name once it is whole."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    try:
        descriptor, name = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(name, output)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
