"""The agent service's roles as apps in the test's own event loop, and agents made for tests."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from hermes_tui_common.limits import DEFAULT_LIMITS
from hermes_tui_common.serving import ServeConfig, server_config
from hermes_tui_services.api.agent import AgentRequest, AgentResponse, TurnInterrupted
from hermes_tui_services.api.config import (
    AgentConfig,
    DataProxyRole,
    GatewayRole,
    RouterRole,
    WorkerRole,
)
from hermes_tui_services.api.events import ApprovalRequested, ReasoningArrived
from hermes_tui_services.data_proxy.app import create_app as data_proxy_app
from hermes_tui_services.gateway.app import create_app as gateway_app
from hermes_tui_services.router.app import create_app as router_app
from hermes_tui_services.worker.app import create_app as worker_app

ADMIN_KEY = "admin-key-of-the-tests"
WORKER_KEY = "worker-key-of-the-tests"
HEADERS = {"Authorization": f"Bearer {ADMIN_KEY}"}

USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
"""What every turn of the scripted agent costs."""


async def eventually(condition: Callable[[], Any], within_s: float = 5.0) -> Any:
    """Return the condition's value, awaited if need be, once it is true; fail after a deadline."""
    async with asyncio.timeout(within_s):
        while True:
            value = condition()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.005)


@dataclass
class ScriptedAgent:
    """Does what its message says: words are streamed, words with a colon are commands.

    ``tool:NAME`` calls a tool and gives it a result, ``wait:GATE`` waits until the gate is open,
    ``ask:ID`` asks a person and goes on, ``late:ID`` has asked one too long ago, ``think:TEXT``
    reasons, ``reply:TEXT`` makes the reply another one than was streamed, ``fail:TEXT`` raises.
    """

    seen: list[AgentRequest] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    waiting: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    answers: list[tuple[str, str, str, str | None]] = field(default_factory=list)
    interrupts: int = 0

    def open(self, gate: str) -> None:
        self.gates.setdefault(gate, asyncio.Event()).set()

    async def run(self, request: AgentRequest, *, emitter: Any) -> AgentResponse:
        self.seen.append(request)
        text = []
        for word in request.message.split():
            command, _, argument = word.partition(":")
            if command == "wait":
                await self._wait(request.session_key, argument)
            elif command == "fail":
                raise RuntimeError(argument)
            elif command in ("ask", "late"):
                emitter.push(
                    ApprovalRequested(
                        approval_id=argument,
                        description="?",
                        choices=("once", "deny"),
                        expires_at=time.time() + (60 if command == "ask" else -1),
                    )
                )
            elif command == "think":
                emitter.push(ReasoningArrived(text=argument))
            elif command == "reply":
                text = [argument]
            elif command == "tool":
                await emitter.emit_tool_call(argument, '{"a": 1}')
                await emitter.emit_tool_result(argument, "done")
            else:
                await emitter.emit_delta(f" {word}" if text else word)
                text.append(word)
        return AgentResponse(summary=" ".join(text), metadata={"usage": dict(USAGE)})

    async def _wait(self, session_key: str, gate: str) -> None:
        event = self.gates.setdefault(gate, asyncio.Event())
        self.waiting[session_key] = asyncio.ensure_future(event.wait())
        try:
            await self.waiting[session_key]
        except asyncio.CancelledError:
            raise TurnInterrupted from None
        finally:
            del self.waiting[session_key]

    def interrupt(self, session_key: str) -> None:
        self.interrupts += 1
        if task := self.waiting.get(session_key):
            task.cancel()

    async def close_session(self, session_key: str) -> None:
        self.closed.append(session_key)

    def answer(self, session_key: str, approval_id: str, choice: str, reason: str | None) -> None:
        self.answers.append((session_key, approval_id, choice, reason))


class Served:
    """An app that is served in this event loop."""

    def __init__(self, app: ASGIApp, port: int = 0) -> None:
        config = server_config(app, DEFAULT_LIMITS, port=port, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._sock = config.bind_socket()
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"

    async def start(self) -> str:
        """Serve it; return its URL once it answers."""
        # Not serve(): that one takes the process's signal handlers.
        self._task = asyncio.create_task(self._server._serve([self._sock]))
        await eventually(lambda: self._server.started or self._task.done())
        return self.url

    async def stop(self) -> None:
        """Stop it; its connections are closed."""
        self._server.should_exit = True
        await self._task
        self._sock.close()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def worker_role(tmp_path: Path, **agent: Any) -> WorkerRole:
    """Return a worker's configuration."""
    return WorkerRole(
        serve=ServeConfig(name="worker-0"),
        admin_key=WORKER_KEY,
        agent=AgentConfig.model_validate(agent),
        home=tmp_path / "home",
        workdir=tmp_path / "work",
    )


@dataclass(slots=True, kw_only=True)
class Chain:
    """A whole agent service in one event loop."""

    agents: list[ScriptedAgent]
    gateway: str
    router: str
    proxies: list[str]
    workers: list[str]
    client: httpx.AsyncClient
    served: list[Served]
    """Router, then worker and data proxy of each pair, then the gateway."""

    @property
    def agent(self) -> ScriptedAgent:
        return self.agents[0]

    async def say(self, text: str, user: str = "u", **more: Any) -> httpx.Response:
        """Run one turn through the gateway."""
        body = {"input": text, "model": "m", "user": user, **more}
        return await self.client.post("/v1/responses", json=body)

    async def history(self, session_key: str = "agent:m:u") -> list[dict[str, Any]]:
        answer = await self.client.get(f"/sessions/{session_key}/history")
        assert answer.status_code == 200, answer.text
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages


@asynccontextmanager
async def chain(
    tmp_path: Path,
    *,
    pairs: int = 1,
    retry_s: float = 2.0,
    session_timeout_s: float = 1000.0,
    gateway_run_file: Path | None = None,
) -> AsyncIterator[Chain]:
    """Serve gateway, router and pairs with scripted agents."""
    agents = [ScriptedAgent() for _ in range(pairs)]
    key = {"serve": ServeConfig(name="test"), "admin_key": ADMIN_KEY}
    served: list[Served] = []

    async def serve(app: ASGIApp, port: int = 0) -> str:
        served.append(Served(app, port))
        return await served[-1].start()

    async with AsyncExitStack() as stack:
        stack.push_async_callback(_stop_all, served)
        router = await serve(router_app(RouterRole(**key, poll_s=0.1)))
        workers, proxies = [], []
        for agent in agents:
            workers.append(await serve(worker_app(worker_role(tmp_path), agent)))
            role = DataProxyRole(
                **key,
                router_url=router,
                worker_url=workers[-1],
                worker_key=WORKER_KEY,
                gateway_run_file=gateway_run_file,
                database=tmp_path / "conversations.db",
                session_timeout_s=session_timeout_s,
            )
            port = _free_port()
            app = data_proxy_app(role, url=f"http://127.0.0.1:{port}")
            proxies.append(await serve(app, port))
        gateway = await serve(gateway_app(GatewayRole(**key, router_url=router, retry_s=retry_s)))
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=gateway, headers=HEADERS, timeout=20)
        )

        async def registered() -> bool:
            health = (await client.get(f"{router}/health")).json()
            return bool(health["registered_proxies"] == pairs)

        await eventually(registered)
        yield Chain(
            agents=agents,
            gateway=gateway,
            router=router,
            proxies=proxies,
            workers=workers,
            client=client,
            served=served,
        )


async def _stop_all(served: list[Served]) -> None:
    await asyncio.gather(*(one.stop() for one in served))
