"""Every HTTP surface of the stack, served in one thread: scripted agent, engine and learner."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
from fakes import inference, roles
from fakes.roles import Served
from fakes.stack import fake_plan
from starlette.applications import Starlette

from hermes_tui.supervisor.control import ControlApi
from hermes_tui.supervisor.events import EventLog
from hermes_tui.supervisor.stack import Stack
from hermes_tui_common.openapi import described
from hermes_tui_common.serving import ServeConfig
from hermes_tui_services.api.config import DataProxyRole, GatewayRole, RouterRole
from hermes_tui_services.data_proxy.app import create_app as data_proxy_app
from hermes_tui_services.gateway.app import create_app as gateway_app
from hermes_tui_services.router.app import create_app as router_app
from hermes_tui_services.worker.app import create_app as worker_app
from hermes_tui_training.api.config import LearnerRole, ModelConfig, TrainingConfig
from hermes_tui_training.api.learner import VersionExistsError
from hermes_tui_training.inference_gateway.route_table import all_routes

NAMES = (
    "agent gateway",
    "router",
    "data proxy",
    "worker",
    "inference gateway",
    "learner",
    "control API",
)


@dataclass(frozen=True, kw_only=True)
class Surface:
    """One server."""

    url: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


class _BusyLearner:
    """A learner that has made every version already."""

    version = 3

    def step(self, _: Any) -> Any:
        raise VersionExistsError("it is made")

    rollback = step


def _learner_app(folder: Path) -> Starlette:
    from hermes_tui_training.learner import app

    role = LearnerRole(
        serve=ServeConfig(name="learner"),
        admin_key=roles.ADMIN_KEY,
        model=ModelConfig(),
        training=TrainingConfig(),
        checkpoints=folder / "checkpoints",
    )
    return app.create_app(role)


def apps(folder: Path) -> dict[str, Starlette]:
    """Return every server's app, not started."""
    key: dict[str, Any] = {"serve": ServeConfig(name="x"), "admin_key": roles.ADMIN_KEY}
    there = "http://127.0.0.1:1"
    proxy = DataProxyRole(
        **key,
        router_url=there,
        worker_url=there,
        worker_key=roles.WORKER_KEY,
        database=folder / "conversations.db",
    )
    return {
        "agent gateway": gateway_app(GatewayRole(**key, router_url=there)),
        "router": router_app(RouterRole(**key)),
        "data proxy": data_proxy_app(proxy),
        "worker": worker_app(roles.worker_role(folder)),
        "inference gateway": Starlette(routes=described("", all_routes())),
        "learner": _learner_app(folder),
        "control API": _control_app(folder / "control")[0],
    }


def _control_app(folder: Path) -> tuple[Starlette, str]:
    plan = fake_plan(folder)
    events = EventLog()
    url = "http://127.0.0.1:1"
    key = plan.keys.control_key
    api = ControlApi(Stack(plan, events), events, key=key, url=url, shut_down=lambda: None)
    return api.app(), key


@contextlib.asynccontextmanager
async def _serving(folder: Path) -> AsyncIterator[dict[str, Surface]]:
    from hermes_tui_training.learner.app import LearnerService

    for name in ("chain", "gateway", "learner", "control"):
        (folder / name).mkdir()
    control, control_key = _control_app(folder / "control")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(mock.patch.object(LearnerService, "_load", return_value=_BusyLearner()))
        chain = await stack.enter_async_context(roles.chain(folder / "chain", retry_s=0.2))
        gateway = await stack.enter_async_context(
            inference.running_gateway(folder / "gateway", port=0)
        )
        urls = [chain.gateway, chain.router, chain.proxies[0], chain.workers[0], gateway.url]
        for app in (_learner_app(folder / "learner"), control):
            served = Served(app)
            stack.push_async_callback(served.stop)
            urls.append(await served.start())
        keys = {
            "inference gateway": inference.ADMIN_KEY,
            "control API": control_key,
            "worker": roles.WORKER_KEY,
        }
        yield {
            name: Surface(url=url, key=keys.get(name, roles.ADMIN_KEY))
            for name, url in zip(NAMES, urls, strict=True)
        }


@contextlib.contextmanager
def served_surfaces(folder: Path) -> Iterator[dict[str, Surface]]:
    """Serve all of them in a thread until the block ends."""
    found: dict[str, Surface] = {}
    ready, failures = threading.Event(), list[BaseException]()
    end: list[Any] = []

    async def serve() -> None:
        over = asyncio.Event()
        end.append((asyncio.get_running_loop(), over))
        try:
            async with _serving(folder) as surfaces:
                found.update(surfaces)
                ready.set()
                await over.wait()
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        if failures:
            raise failures[0]
        yield found
    finally:
        loop, over = end[0]
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(over.set)
        thread.join(60)


def is_alive(surface: Surface) -> bool:
    """Return whether a server still answers."""
    return httpx.get(f"{surface.url}/health", timeout=10).status_code == 200
