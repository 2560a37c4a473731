"""The inference gateway on a real socket, over a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fakes.engine import FakeEngine, FakeOrchestrator, byte_tokenizer
from pydantic import SecretStr
from starlette.applications import Starlette

from hermes_tui_common.limits import DEFAULT_LIMITS
from hermes_tui_common.serving import ServeConfig, bind, server_config
from hermes_tui_training.api.config import ModelConfig, TrainerRole, TrainingConfig
from hermes_tui_training.chat_template.renderer import Chat
from hermes_tui_training.inference_gateway.app import create_app
from hermes_tui_training.store.store import Store

ADMIN_KEY = "admin-key-of-the-test"


@dataclass(kw_only=True)
class Gateway:
    """A running gateway and what is behind it."""

    url: str
    http: httpx.AsyncClient
    store: Store
    engine: FakeEngine
    orchestrator: FakeOrchestrator

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = ADMIN_KEY,
        **kwargs: Any,
    ) -> httpx.Response:
        """Send a request under a key."""
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        return await self.http.request(method, path, json=body, headers=headers, **kwargs)

    async def session(self, task_id: str = "task", **kwargs: Any) -> tuple[str, str]:
        """Start a session; return its id and its key."""
        answer = await self.call("POST", "/rl/start_session", {"task_id": task_id, **kwargs})
        assert answer.status_code == 201, answer.text
        return answer.json()["session_id"], answer.json()["api_key"]

    async def chat(self, key: str, text: str = "hi", **fields: Any) -> httpx.Response:
        """Ask for a completion."""
        body = {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}
        return await self.call("POST", "/v1/chat/completions", body, key=key)

    async def episode(self, session_id: str) -> dict[str, Any]:
        """Return a session's newest episode."""
        rows = (await self.call("GET", f"/rl/episodes?session_id={session_id}")).json()["data"]
        answer = await self.call("GET", f"/rl/episodes/{rows[-1]['episode_id']}")
        body: dict[str, Any] = answer.json()
        return body


@asynccontextmanager
async def running_gateway(
    directory: Path,
    *,
    training: TrainingConfig | None = None,
    engine: FakeEngine | None = None,
    port: int | None = None,
    chat: Chat | None = None,
) -> AsyncIterator[Gateway]:
    """Run a gateway whose store lies in a directory.

    Args:
        port: served there over real sockets (0: a free port); None calls it directly, which is
            faster, but streams come in one piece and clients cannot leave.
        chat: the model's chat format; ChatML by default.
    """
    training = training or TrainingConfig()
    unscored = training.reward.unscored
    store = Store(
        directory / "trajectories.db", unscored_reward=None if unscored == "skip" else unscored
    )
    engine = engine or FakeEngine()
    orchestrator = FakeOrchestrator()
    config = TrainerRole(
        serve=ServeConfig(name="trainer"),
        admin_key=SecretStr(ADMIN_KEY),
        model=ModelConfig(path="tiny"),
        training=training,
        database=directory / "trajectories.db",
        checkpoints=directory / "checkpoints",
        learner_run_file=directory / "learner.json",
    )
    app = create_app(
        config,
        store=store,
        engine=engine,
        chat=chat or Chat(byte_tokenizer()),
        orchestrator=orchestrator,  # type: ignore[arg-type]
    )
    async with AsyncExitStack() as stack:
        stack.callback(store.close)
        stack.push_async_callback(app.state.services.drain)
        transport: httpx.AsyncBaseTransport | None = None
        url = "http://gateway.test"
        if port is None:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        else:
            url = await stack.enter_async_context(_served(app, port))
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, transport=transport, timeout=20, trust_env=False)
        )
        yield Gateway(url=url, http=http, store=store, engine=engine, orchestrator=orchestrator)


@asynccontextmanager
async def _served(app: Starlette, port: int) -> AsyncIterator[str]:
    """Serve an app until the block ends, which closes its connections at once."""
    sock = bind(ServeConfig(name="trainer", port=port))
    config = server_config(app, DEFAULT_LIMITS, lifespan="off", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        sock.close()


def sse_data(text: str) -> list[str]:
    """Return the data of an event stream's events."""
    return [line[6:] for line in text.split("\n") if line.startswith("data: ")]


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.005)
