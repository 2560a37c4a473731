"""``export``: recorded episodes, in the formats of other programs."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from hermes_tui.cli.connect import inference_gateway
from hermes_tui.cli.overrides import Invocation, OverridesCommand
from hermes_tui_common.errors import ConfigError

if TYPE_CHECKING:
    from hermes_tui_training.api.types import Episode
    from hermes_tui_training.exports.episode_sources import Selection

_GGUF_TYPES = ("F32", "F16", "Q8_0")

_NAMES = ("jsonl", "parquet", "trl", "art", "atropos", "verifiers", "tinker")


@click.command(cls=OverridesCommand)
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
@click.option("--weights", is_flag=True, help="Export a policy version's weights instead.")
@click.option(
    "--policy-version",
    type=click.IntRange(0),
    help="With --weights: which version; 0 is the base model. The newest when not given.",
)
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path),
    help="With --weights: the directory to make, in Hugging Face's layout.",
)
@click.option(
    "--gguf",
    "gguf_types",
    multiple=True,
    type=click.Choice((*_GGUF_TYPES, "none")),
    default=("F16",),
    show_default=True,
    help="With --weights: which GGUF file to write, with a Modelfile for Ollama; may be repeated.",
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
    weights: bool,
    policy_version: int | None,
    directory: Path | None,
    gguf_types: tuple[str, ...],
) -> None:
    """Export recorded episodes, or weights, for other programs.

    Tokens, log-probabilities, masks, policy versions, rewards; with --weights a policy version,
    its adapter merged into the base model.

    Changes nothing, and may run while the stack works.
    """
    if weights:
        _export_weights(invocation, policy_version, directory, gguf_types)
        return
    if policy_version is not None or directory:
        raise click.UsageError("--policy-version and --to go with --weights.")
    from hermes_tui_training.exports.episode_sources import Selection, from_database
    from hermes_tui_training.exports.formats import FORMATS
    from hermes_tui_training.exports.rows import ExportOptions

    format_ = FORMATS[name]
    if output is None and not format_.is_text:
        raise click.UsageError(f"--format {name} needs --output FILE.")
    selection = Selection(
        session_id=session_id, group_id=group_id, state=state, episode_ids=episode_ids
    )
    if database is None:
        episodes = _Counted(_from_gateway(invocation, gateway_url, admin_key, selection))
    elif gateway_url:
        raise click.UsageError("--database and a gateway's URL exclude each other.")
    else:
        episodes = _Counted(from_database(database, selection))
    options = ExportOptions(style=style, discount=discount)  # type: ignore[arg-type]
    with _opened(output) as file:
        written = format_.write(format_.convert(episodes, options), file)
        if not episodes.num:
            raise ConfigError("no recorded episode matches; see `hermes-tui session list`")
    click.echo(f"exported {written} {format_.row} of {episodes.num} episodes", err=True)


def _export_weights(
    invocation: Invocation, version: int | None, directory: Path | None, types: tuple[str, ...]
) -> None:
    from hermes_tui.cli.stack import run_staged

    if directory is None:
        raise click.UsageError("--weights needs --to DIRECTORY.")
    words = ["--model", invocation.load().model.path, "--to", str(directory)]
    words += ["--checkpoints", str(invocation.run_dir().checkpoints)]
    words += [] if version is None else ["--policy-version", str(version)]
    words += [word for kind in types if kind != "none" for word in ("--gguf", kind)]
    run_staged("hermes_tui_training.learner.export_weights", *words)


class _Counted:
    """Passes episodes on, and counts them."""

    def __init__(self, episodes: Iterator[Episode]) -> None:
        self.num = 0
        self._episodes = episodes

    def __iter__(self) -> Iterator[Episode]:
        for episode in self._episodes:
            self.num += 1
            yield episode


def _from_gateway(
    invocation: Invocation, url: str | None, key: str | None, selection: Selection
) -> Iterator[Episode]:
    """Yield a gateway's episodes one at a time: together they may not fit into memory."""
    import asyncio

    from hermes_tui.core.errors import EXIT_INTERRUPTED
    from hermes_tui_training.api.client import InferenceClient
    from hermes_tui_training.exports.episode_sources import from_gateway

    async def episodes() -> AsyncGenerator[Episode, None]:
        gateway = await inference_gateway(invocation, url, key)
        async with InferenceClient(gateway.url, gateway.key) as client:
            async for episode in from_gateway(client, selection):
                yield episode

    async def following(found: AsyncGenerator[Episode, None]) -> Episode | None:
        return await anext(found, None)

    with asyncio.Runner() as runner:
        found = episodes()
        try:
            while (episode := runner.run(following(found))) is not None:
                yield episode
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None


@contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    """Open the output; a file gets its name once it is complete."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    import tempfile

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
