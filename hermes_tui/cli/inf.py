"""``inf run|register|deregister|models|…``: inference services, as ``areal inf`` has them.

An inference service is a stack without the agent service: the trainer and its gateway.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from hermes_tui.cli.background import (
    ServiceKind,
    add_lifecycle,
    config_option,
    json_option,
    launch,
    service_option,
)
from hermes_tui.cli.connect import Gateway, inference_gateway, run_async
from hermes_tui.cli.overrides import Invocation, OverridesGroup
from hermes_tui.cli.train import TRAINER_ONLY

if TYPE_CHECKING:
    from hermes_tui_training.api.client import InferenceClient

Result = TypeVar("Result")

_KIND = ServiceKind(
    command="inf",
    title="inference service",
    folder="inference",
    gateway="trainer",
    components={"gateway": "trainer"},
)

_target = click.option(
    "--service",
    help="Name of a service that `inf run` started; without it the running stack is asked.",
)
_url = click.option("--gateway-url", help="Address of another inference gateway.")
_key = click.option(
    "--admin-key", envvar="ADMIN_KEY", help="Admin key of that gateway (env: ADMIN_KEY)."
)


@click.group(cls=OverridesGroup)
@config_option
@click.pass_obj
def inf(invocation: Invocation, config_file: Path | None) -> None:
    """Run inference services, register other servers' models."""
    invocation.config_file = config_file or invocation.config_file


@inf.command()
@service_option
@click.option("--gateway-host", "--host", "host", help="Address of the inference gateway.")
@click.option(
    "--gateway-port", "--port", "port", type=click.IntRange(0, 65535), help="Port to listen on."
)
@click.option("--admin-api-key", help="Admin key; minted when not given.")
@click.option("--model-path", help="Model to serve and train: model.path.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
)
@click.option(
    "--setup-timeout",
    "--launch-timeout",
    "start_timeout_s",
    type=float,
    help="Seconds until every process must be ready.",
)
@click.option("--detach", is_flag=True, help="Without effect: it always runs in the background.")
@click.option("--scheduler", type=click.Choice(["local"]), help="Only local: this machine.")
@click.option("--force", is_flag=True, help="Replace a service of this name that runs.")
@click.pass_obj
def run(invocation: Invocation, /, service: str, force: bool, **options: object) -> None:
    """Start an inference service; prints its address."""
    level = options["log_level"]
    settings = {
        "training.gateway.host": options["host"],
        "training.gateway.port": options["port"],
        "training.admin_api_key": options["admin_api_key"],
        "model.path": options["model_path"],
        "run.log_level": str(level).upper() if level else None,
        "run.start_timeout_s": options["start_timeout_s"],
        "run.dir": str(_KIND.run_dir(invocation, service).root),
    }
    overrides = [
        f"{key}={json.dumps(value)}" for key, value in settings.items() if value is not None
    ]
    config = invocation.load(*overrides, *TRAINER_ONLY)
    stack = launch(_KIND, config, service, replace=force)
    click.echo(f"  gateway: {stack.inference_gateway}")
    click.echo(f"  model:   {config.model.path}")
    click.echo(f"  keys:    {Path(stack.run_dir) / 'keys.json'}")
    click.echo(f"  stop:    hermes-tui inf stop --service {service}")


@inf.command()
@click.argument("name", required=False)
@click.option("--model-name", help="What requests will call the model; or the argument.")
@click.option("--api-url", help="Base URL of the OpenAI-compatible server that has the model.")
@click.option("--provider-model", help="What that server calls it; the same when not given.")
@click.option("--provider-api-key-env", help="Environment variable with that server's key.")
@click.option("--provider-api-key", help="That server's key; other users can see it on this line.")
@click.option(
    "--policy-version",
    type=click.IntRange(0),
    help="Version of the policy that the server serves: its tokens are then trained.",
)
@_target
@_url
@_key
@click.pass_obj
def register(
    invocation: Invocation,
    name: str | None,
    model_name: str | None,
    api_url: str | None,
    provider_model: str | None,
    provider_api_key_env: str | None,
    provider_api_key: str | None,
    policy_version: int | None,
    service: str | None,
    gateway_url: str | None,
    admin_key: str | None,
) -> None:
    """Register another server's model.

    Chat completions under a session key that name it go there, and are recorded.
    """
    named = name or model_name
    if not named:
        raise click.UsageError("Name the model.")
    if not api_url:
        raise click.UsageError(
            "--api-url is needed: it is another server's model. What is served here is model.path."
        )
    key = provider_api_key
    if provider_api_key_env:
        key = os.environ.get(provider_api_key_env)
        if not key:
            raise click.UsageError(f"The environment variable {provider_api_key_env} is empty.")

    async def call(client: InferenceClient) -> None:
        await client.register_model(
            named,
            api_url,
            api_key=key,
            provider_model=provider_model,
            policy_version=policy_version,
        )

    _ask(invocation, service, gateway_url, admin_key, call)
    click.echo(f"Registered {named!r} at {api_url}.")


@inf.command()
@click.argument("name", required=False)
@click.option("--model-name", help="The model; or the argument.")
@_target
@_url
@_key
@click.pass_obj
def deregister(
    invocation: Invocation,
    name: str | None,
    model_name: str | None,
    service: str | None,
    gateway_url: str | None,
    admin_key: str | None,
) -> None:
    """Forget another server's model; what was recorded of it stays."""
    named = name or model_name
    if not named:
        raise click.UsageError("Name the model.")

    async def call(client: InferenceClient) -> None:
        await client.deregister_model(named)

    _ask(invocation, service, gateway_url, admin_key, call)
    click.echo(f"Deregistered {named!r}.")


@inf.command()
@_target
@_url
@_key
@json_option
@click.pass_obj
def models(
    invocation: Invocation,
    service: str | None,
    gateway_url: str | None,
    admin_key: str | None,
    as_json: bool,
) -> None:
    """List the model that is trained, and other servers' models."""

    async def call(client: InferenceClient) -> list[str]:
        return await client.model_names()

    names = _ask(invocation, service, gateway_url, admin_key, call)
    if as_json:
        click.echo(json.dumps({"models": names}))
    else:
        for name in names:
            click.echo(name)


def _ask(
    invocation: Invocation,
    service: str | None,
    url: str | None,
    key: str | None,
    call: Callable[[InferenceClient], Awaitable[Result]],
) -> Result:
    """Return what a call of the inference gateway returns: a service's, the named, or our own."""

    async def ask() -> Result:
        from hermes_tui_training.api.client import InferenceClient

        gateway: Gateway = await inference_gateway(invocation, url, key)
        async with InferenceClient(gateway.url, gateway.key) as client:
            return await call(client)

    if service is not None:
        root = _KIND.run_dir(invocation, service).root
        invocation.overrides.append(f"run.dir={json.dumps(str(root))}")
    return run_async(ask())


add_lifecycle(inf, _KIND)
