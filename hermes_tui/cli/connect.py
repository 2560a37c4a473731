"""Finding a gateway and its key: from the command line, else from the running stack."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from hermes_tui.cli.overrides import Invocation
from hermes_tui_common.errors import ConfigError

if TYPE_CHECKING:
    from hermes_tui.config.secrets import Keys
    from hermes_tui.core.stack_status import StackStatus

Result = TypeVar("Result")


def run_async(main: Coroutine[object, object, Result]) -> Result:
    """Run a command's coroutine; ctrl+c ends it as it ends any program."""
    import asyncio  # late, as all that --help does not need

    from hermes_tui.core.errors import EXIT_INTERRUPTED

    try:
        return asyncio.run(main)
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A gateway, and the key to use there."""

    url: str
    """Its address."""
    key: str = field(repr=False)
    """Admin or session key."""


async def inference_gateway(invocation: Invocation, url: str | None, key: str | None) -> Gateway:
    """Return the inference gateway: the one named, else the running stack's.

    Raises:
        NotRunningError: none was named and nothing runs.
        ConfigError: no key was given for a gateway that is not the stack's, or training is off.
    """
    if url and key:
        return Gateway(url=url.rstrip("/"), key=key)
    stack, keys = await running_stack(invocation)
    if not stack.inference_gateway:
        raise ConfigError("training is off in the running stack, so it has no inference gateway")
    _require_own(url, stack.inference_gateway, "--admin-key or ADMIN_KEY")
    return Gateway(url=stack.inference_gateway, key=key or keys.inference_admin_key)


async def agent_gateway(invocation: Invocation, url: str | None, key: str | None) -> Gateway:
    """Return the agent gateway: the one named, else the running stack's.

    Raises:
        NotRunningError: none was named and nothing runs.
        ConfigError: no key was given for a gateway that is not the stack's.
    """
    if url and key:
        return Gateway(url=url.rstrip("/"), key=key)
    stack, keys = await running_stack(invocation)
    if not stack.agent_gateway:
        raise ConfigError("the running stack has no agent gateway that is ready")
    _require_own(url, stack.agent_gateway, "--admin-api-key")
    return Gateway(url=stack.agent_gateway, key=key or keys.agent_admin_key)


async def running_stack(invocation: Invocation) -> tuple[StackStatus, Keys]:
    """Return the running stack's state and its keys.

    Raises: NotRunningError: nothing runs.
    """
    from hermes_tui.config.secrets import read_keys
    from hermes_tui.core.errors import NotRunningError
    from hermes_tui.stack_client.launch import find_supervisor

    run_dir = invocation.run_dir()
    async with await find_supervisor(run_dir) as client:
        stack = await client.status()
    keys = read_keys(run_dir)
    if keys is None:
        raise NotRunningError(str(run_dir.root))
    return stack, keys


def _require_own(url: str | None, own: str, option: str) -> None:
    """Let a key of ours go to no gateway but ours."""
    if url and url.rstrip("/") != own:
        raise ConfigError(f"{url} is not the running stack's {own}; give its key with {option}")
