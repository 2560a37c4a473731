"""``session start|end|list|show`` and ``reward``, with the flags of AReaL's scripts."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hermes_tui.cli.connect import inference_gateway, run_async
from hermes_tui.cli.overrides import Invocation, OverridesCommand, OverridesGroup

if TYPE_CHECKING:
    from hermes_tui_training.api.client import InferenceClient
    from hermes_tui_training.api.types import Session
    from hermes_tui_training.api.wire import (
        EndedSession,
        EpisodeRecord,
        RewardAnswer,
        StartedSessions,
        TopicAnswer,
    )

_TITLE_CELLS = 60
"""Width of a session's title in a list."""

_PAGE = 1000
"""Episodes that are asked for at once."""

_gateway = click.argument("gateway_url", required=False)
_admin_key = click.option(
    "--admin-key", envvar="ADMIN_KEY", help="Admin key of the inference gateway (env: ADMIN_KEY)."
)


@click.group(cls=OverridesGroup)
def session() -> None:
    """Start, end and look at the sessions that the trainer records."""


@session.command()
@_gateway
@_admin_key
@click.option(
    "--task-id",
    envvar="TASK_ID",
    default="demo-task",
    show_default=True,
    help="Task identifier (env: TASK_ID).",
)
@click.option(
    "--api-key",
    envvar="SESSION_API_KEY",
    help="Use a session key again: its open episode ends (env: SESSION_API_KEY).",
)
@click.option(
    "--group-size", type=click.IntRange(1, 1024), default=1, help="Sibling sessions of one task."
)
@click.pass_obj
def start(
    invocation: Invocation,
    gateway_url: str | None,
    admin_key: str | None,
    task_id: str,
    api_key: str | None,
    group_size: int,
) -> None:
    """Start a session; print its id and its key.

    On standard error, too, as NAME=VALUE.
    """
    answer, url = run_async(
        _start(invocation, gateway_url, admin_key, task_id, api_key, group_size)
    )
    for row in answer.sessions:
        click.echo(f"Session ID : {row.session_id}")
        click.echo(f"API Key    : {row.session_api_key}")
    key = answer.api_key
    click.echo(f"\nTalk under it:  hermes-tui chat --session-api-key {key} --inf-base-url {url}")
    click.echo(f"Then judge it:  hermes-tui reward {url} --api-key {key} --reward 1.0")
    click.echo(f"SESSION_API_KEY={key}", err=True)
    click.echo(f"SESSION_ID={answer.session_id}", err=True)


async def _start(
    invocation: Invocation,
    url: str | None,
    admin_key: str | None,
    task_id: str,
    api_key: str | None,
    group_size: int,
) -> tuple[StartedSessions, str]:
    from hermes_tui_training.api.client import InferenceClient

    gateway = await inference_gateway(invocation, url, admin_key)
    async with InferenceClient(gateway.url, gateway.key) as client:
        answer = await client.start_session(task_id, api_key=api_key, group_size=group_size)
    return answer, gateway.url


@session.command()
@click.argument("session_id")
@_gateway
@_admin_key
@click.pass_obj
def end(
    invocation: Invocation, session_id: str, gateway_url: str | None, admin_key: str | None
) -> None:
    """End a session.

    Its key works no longer, and its open episode is closed.
    """

    async def call() -> EndedSession:
        from hermes_tui_training.api.client import InferenceClient

        gateway = await inference_gateway(invocation, gateway_url, admin_key)
        async with InferenceClient(gateway.url, gateway.key) as client:
            return await client.end_session(session_id)

    answer = run_async(call())
    click.echo(f"ended {session_id}: {answer.interaction_count} completions recorded")


@session.command()
@click.argument("session_id")
@click.argument("topic")
@_gateway
@_admin_key
@click.pass_obj
def topic(
    invocation: Invocation,
    session_id: str,
    topic: str,
    gateway_url: str | None,
    admin_key: str | None,
) -> None:
    """Say what a session and its siblings are about.

    Baselines are kept per topic.
    """
    from hermes_tui_training.api.config import TOPIC_RULE, is_topic

    if not is_topic(topic):
        raise click.BadParameter(TOPIC_RULE, param_hint="TOPIC")

    async def call() -> TopicAnswer:
        from hermes_tui_training.api.client import InferenceClient

        gateway = await inference_gateway(invocation, gateway_url, admin_key)
        async with InferenceClient(gateway.url, gateway.key) as client:
            return await client.set_topic(session_id, topic)

    answer = run_async(call())
    click.echo(f"{answer.session_id} is about {answer.topic}")


@session.command(name="list")
@_gateway
@_admin_key
@click.option("--json", "as_json", is_flag=True, help="The rows as they are.")
@click.pass_obj
def list_(
    invocation: Invocation, gateway_url: str | None, admin_key: str | None, as_json: bool
) -> None:
    """List the sessions, the newest last."""

    async def call() -> list[Session]:
        from hermes_tui_training.api.client import InferenceClient

        gateway = await inference_gateway(invocation, gateway_url, admin_key)
        async with InferenceClient(gateway.url, gateway.key) as client:
            return await client.sessions()

    rows = run_async(call())
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    from hermes_tui.core.models import SessionRow
    from hermes_tui.core.sanitize import one_line, shorten

    click.echo(f"{'SESSION':<30}{'STARTED':<21}{'STATE':<11}{'TASK':<12}{'TOPIC':<12}TITLE")
    for row in rows:
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.created_at))
        state = SessionRow.of(row).end_word or "open"
        task, topic = one_line(row.task_id), one_line(row.topic)
        title = shorten(one_line(row.title or ""), _TITLE_CELLS)
        head = f"{row.session_id:<30}{started:<21}{state:<11}{task:<11} {topic:<11} "
        click.echo(f"{head}{title}".rstrip())


@session.command()
@click.argument("session_id")
@_gateway
@_admin_key
@click.option("--json", "as_json", is_flag=True, help="Episodes with everything recorded.")
@click.pass_obj
def show(
    invocation: Invocation,
    session_id: str,
    gateway_url: str | None,
    admin_key: str | None,
    as_json: bool,
) -> None:
    """Show a session's episodes and what was said in them."""

    async def call() -> list[EpisodeRecord]:
        from hermes_tui_training.api.client import InferenceClient

        gateway = await inference_gateway(invocation, gateway_url, admin_key)
        async with InferenceClient(gateway.url, gateway.key) as client:
            rows = await client.episodes(session_id=session_id, limit=1000)
            return [await client.episode(row.episode_id) for row in rows]

    episodes = run_async(call())
    if as_json:
        rows = [episode.model_dump(mode="json", exclude_unset=True) for episode in episodes]
        click.echo(json.dumps(rows, indent=2))
        return
    for episode in episodes:
        _print_episode(episode)


def _print_episode(episode: EpisodeRecord) -> None:
    from hermes_tui.core.reward_text import reward_text
    from hermes_tui.core.sanitize import one_line
    from hermes_tui_training.api.types import trained_where

    reward = "no reward" if episode.reward is None else f"reward {reward_text(episode.reward)}"
    reward += f" (“{episode.feedback}”)" if episode.feedback else ""
    step = f" · step {episode.step}" if episode.step is not None else ""
    dropped = f" · {episode.dropped_reason}" if episode.dropped_reason else ""
    head = f"{episode.episode_id} · {episode.state} · {reward}{step}{dropped}"
    click.echo(one_line(head))
    for completion in episode.completions:
        prompts = [m for m in completion.request_messages if m["role"] == "user"]
        said = completion.message or {}
        logprobs = completion.logprobs
        mean = f", mean logprob {sum(logprobs) / len(logprobs):.3f}" if logprobs else ""
        why = completion.untrainable_reason
        untrained = f", not trainable: {why}" if why else ""
        constrained = trained_where(completion.removed_probs, len(logprobs)).count(False)
        if constrained and not why:
            untrained = f", {constrained} of them constrained, not trainable"
        if prompts:
            _echo("  user       ", str(prompts[-1]["content"]))
        _echo("  assistant  ", str(said.get("content") or ""))
        about = f"{completion.completion_id}, {len(logprobs)} tokens{mean}"
        _echo("             ", f"{about}, {completion.finish_reason}{untrained}")


def _echo(head: str, text: str) -> None:
    """Print foreign text behind a head, without what steers a terminal; its lines line up."""
    from hermes_tui.core.sanitize import clean

    click.echo(head + clean(text).replace("\n", "\n" + " " * len(head)))


async def _last_episode(client: InferenceClient) -> str:
    """Return the id of the episode in which something was sampled last, after saying which it is.

    Raises: ConfigError: nothing was recorded yet.
    """
    from hermes_tui.core.sanitize import one_line, shorten
    from hermes_tui_common.errors import ConfigError

    spoken = [row for row in await client.sessions() if row.num_episodes]
    if not spoken:
        raise ConfigError("there is no episode to judge: nothing was said in this stack yet")
    session = max(spoken, key=lambda row: row.last_active_at)
    number, episode = 0, None
    while page := await client.episodes(
        session_id=session.session_id, after=episode.episode_id if episode else None, limit=_PAGE
    ):
        number, episode = number + len(page), page[-1]
    assert episode, "the session has episodes"
    title = shorten(one_line(session.title or session.task_id), _TITLE_CELLS)
    click.echo(f"judging episode {number} of “{title}”: {episode.episode_id}, {episode.state}")
    return episode.episode_id


@click.command(cls=OverridesCommand)
@_gateway
@click.option(
    "--api-key",
    envvar="SESSION_API_KEY",
    help="The session's sk-sess- key (env: SESSION_API_KEY); without it the stack's last episode.",
)
@click.option(
    "--reward",
    "value",
    type=float,
    envvar="REWARD",
    default=1.0,
    show_default=True,
    help="The reward (env: REWARD).",
)
@click.option("--feedback", help="A sentence that says why; it is kept with the reward.")
@click.option("--interaction-id", help="One completion; the last one when not given.")
@click.pass_obj
def reward(
    invocation: Invocation,
    gateway_url: str | None,
    api_key: str | None,
    value: float,
    feedback: str | None,
    interaction_id: str | None,
) -> None:
    """Judge the session's episode; the trainer learns from it.

    Without a key it judges the newest episode of the running stack, and says first which that is.
    """
    if not math.isfinite(value):
        raise click.BadParameter("a reward is a finite number", param_hint="--reward")

    async def call() -> RewardAnswer:
        from hermes_tui_training.api.client import InferenceClient

        gateway = await inference_gateway(invocation, gateway_url, api_key)
        async with InferenceClient(gateway.url, gateway.key) as client:
            episode_id = None if api_key or interaction_id else await _last_episode(client)
            return await client.set_reward(
                value, feedback=feedback, episode_id=episode_id, interaction_id=interaction_id
            )

    answer = run_async(call())
    click.echo(
        f"Reward {answer.reward} applied to {answer.episode_id} "
        f"({answer.interaction_count} completions)"
    )
    if answer.warning:
        click.echo(f"warning: {answer.warning}", err=True)
