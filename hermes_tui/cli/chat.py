"""``chat``: the agent, line by line, with the flags of AReaL's ``hermes_loop.py``."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from hermes_tui.cli.connect import Gateway, agent_gateway, inference_gateway
from hermes_tui.cli.overrides import Invocation, OverridesCommand
from hermes_tui_common.errors import ConfigError, HermesTuiError

if TYPE_CHECKING:
    import asyncio

    from hermes_tui_services.api.client import AgentClient
    from hermes_tui_services.api.events import ApprovalRequested

_MODEL = "hermes-agent"
_QUIT = ("quit", "exit", "q")
_TASK_ID = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """Where the agent's model calls go; None in all fields is the configured upstream."""

    base_url: str | None = None
    session_key: str | None = field(default=None, repr=False)
    model: str | None = None
    session_id: str | None = None
    """The trainer's session, when it was started here; the screens know its turns by that."""


@click.command(cls=OverridesCommand)
@click.argument("gateway_addr", required=False)
@click.option("--admin-api-key", help="Admin key of the agent gateway.")
@click.option("--inf-base-url", default="", help="Inference gateway that records the calls.")
@click.option("--inf-model", default="", help="Model to ask for there.")
@click.option("--session-api-key", default="", help="Session key, from `hermes-tui session start`.")
@click.pass_obj
def chat(
    invocation: Invocation,
    gateway_addr: str | None,
    admin_api_key: str | None,
    inf_base_url: str,
    inf_model: str,
    session_api_key: str,
) -> None:
    """Talk to the agent line by line.

    Without arguments it talks to the running stack, under a new session that is recorded.
    """
    if bool(inf_base_url) != bool(session_api_key):
        raise ConfigError("--inf-base-url and --session-api-key go together: give both or neither")
    route = _Route(
        base_url=inf_base_url or None, session_key=session_api_key or None, model=inf_model or None
    )
    import asyncio  # late, as all that --help does not need

    with asyncio.Runner() as runner:
        gateway, route = runner.run(_connect(invocation, gateway_addr, admin_api_key, route))
        _loop(runner, gateway, route)


async def _connect(
    invocation: Invocation, url: str | None, admin_key: str | None, route: _Route
) -> tuple[Gateway, _Route]:
    gateway = await agent_gateway(invocation, url, admin_key)
    if not url and not route.base_url:
        route = await _new_session(invocation, route.model)
    return gateway, route


def _loop(runner: asyncio.Runner, gateway: Gateway, route: _Route) -> None:
    """Read and answer until the person leaves; ctrl+c ends the turn that runs, else the chat."""
    from hermes_tui_services.api.client import AgentClient

    user = f"hermes-{int(time.time())}"
    session_key = route.session_id or f"agent:{_MODEL}:{user}"
    click.echo(f"Session: {route.session_id or user}")
    if route.base_url:
        click.echo(f"Self-evolution: routing LLM calls via {route.base_url}")
    click.echo("Type your message (or 'quit' to exit):\n")
    client = AgentClient(gateway.url, gateway.key)
    try:
        while (message := _read_message()) is not None:
            if message:
                _turn(runner, _show_turn(client, session_key, message, route))
    finally:
        runner.run(client.aclose())


async def _new_session(invocation: Invocation, model: str | None) -> _Route:
    """Return a route under a new session of the running stack, or none when it has no trainer."""
    from hermes_tui_training.api.client import InferenceClient

    try:
        gateway: Gateway = await inference_gateway(invocation, None, None)
    except ConfigError:
        return _Route(model=model)
    async with InferenceClient(gateway.url, gateway.key) as client:
        answer = await client.start_session(_TASK_ID)
    click.echo(f"Session API key (for `hermes-tui reward --api-key`): {answer.api_key}")
    return _Route(
        base_url=gateway.url,
        session_key=answer.api_key,
        model=model,
        session_id=answer.session_id,
    )


def _read_message() -> str | None:
    """Return what was typed, "" for nothing, None at the end."""
    try:
        text = input("You: ").strip()
    except (EOFError, KeyboardInterrupt):
        click.echo()
        return None
    return None if text.lower() in _QUIT else text


def _turn(runner: asyncio.Runner, turn: Coroutine[object, object, None]) -> None:
    try:
        runner.run(turn)
    except KeyboardInterrupt:
        click.echo("\n[interrupted]\n")  # hanging up interrupts the turn; its text is kept
    except HermesTuiError as error:
        from hermes_tui.core.sanitize import clean

        click.echo(f"error: {clean(str(error))}\n")


async def _show_turn(client: AgentClient, session_key: str, message: str, route: _Route) -> None:
    from hermes_tui.core.sanitize import clean
    from hermes_tui_services.api import events as updates

    click.echo("Agent: ", nl=False)
    async for update in client.turn(
        message,
        session_key=session_key,
        inf_base_url=route.base_url,
        session_api_key=route.session_key,
        inf_model=route.model,
    ):
        match update:
            case updates.TextArrived():
                click.echo(clean(update.text), nl=False)
            case updates.ToolCalled():
                click.echo(f"\n[tool] {clean(update.name)} {clean(update.arguments)}")
            case updates.ToolReturned():
                click.echo(f"[result] {clean(update.output)[:500]}")
            case updates.ApprovalRequested():
                await _ask(client, session_key, update)
            case updates.TurnFailed():
                click.echo(f"\nerror: {clean(update.message)}")
    click.echo("\n")


async def _ask(client: AgentClient, session_key: str, request: ApprovalRequested) -> None:
    """Ask the person what the agent asks; an empty answer lets the request run out: a no."""
    from hermes_tui.core.sanitize import clean, exposed

    if request.command:
        click.echo(f"\n[approval] {exposed(request.command)}")
    click.echo(f"[approval] {exposed(request.description)}")
    choices = "/".join(clean(choice) for choice in request.choices)
    # Blocking is right: the turn itself waits for this answer.
    answer = input(f"[{choices or 'your answer'}] ").strip()  # noqa: ASYNC250
    if answer:
        await client.approve(session_key, request.approval_id, answer)
