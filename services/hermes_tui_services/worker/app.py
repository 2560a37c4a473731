"""The worker: runs one agent class, a turn per request, and streams what the turn does."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui_common.errors import ApiError, HermesTuiError
from hermes_tui_common.heartbeat import working
from hermes_tui_common.http import EXCEPTION_HANDLERS, health_response, read_body, sse
from hermes_tui_common.keyed_locks import KeyedLocks
from hermes_tui_common.openapi import described
from hermes_tui_common.request_keys import RequireKey
from hermes_tui_common.routes import ApiRoute, BodySize
from hermes_tui_common.serving import report_stage
from hermes_tui_common.streaming import LiveResponse
from hermes_tui_services.api.agent import (
    CHAT_REQUEST_KEY,
    AgentRequest,
    AgentResponse,
    AgentRunnable,
    StreamResponse,
    TurnInterrupted,
)
from hermes_tui_services.api.config import WorkerRole
from hermes_tui_services.api.events import (
    BytesRelayed,
    RelayStarted,
    TurnCompleted,
    TurnEnd,
    TurnFailed,
    event_to_json,
    turn_interrupted,
)
from hermes_tui_services.api.protocol import ApprovalBody
from hermes_tui_services.api.wire import InterruptAnswer, StatusAnswer, WorkerHealth
from hermes_tui_services.worker.agent_loader import load_agent
from hermes_tui_services.worker.emitter import StreamEmitter
from hermes_tui_services.worker.own_network import way_to_relay

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Run:
    """One turn in progress."""

    request: AgentRequest
    emitter: StreamEmitter
    task: asyncio.Task[None] | None = None
    started: bool = False
    interrupted: bool = False
    finished: bool = False
    watch: asyncio.Task[None] | None = None
    """Reports an interrupted run to the heartbeat until it is over."""

    def finish(self, end: TurnEnd) -> None:
        """Report the last event."""
        self.finished = True
        self.emitter.push(end)


@dataclass(slots=True, kw_only=True)
class _Worker:
    """The agent, its runs, and the order in which a session's runs go."""

    agent: AgentRunnable
    runs: dict[str, list[_Run]] = field(default_factory=dict)
    locks: KeyedLocks = field(default_factory=KeyedLocks)

    def start(self, request: AgentRequest) -> _Run:
        """Start a turn in a task of its own."""
        instructions = request.metadata.get("instructions")
        if instructions and not getattr(self.agent, "takes_instructions", False):
            request = replace(request, message=f"{instructions}\n{request.message}")
        run = _Run(request=request, emitter=StreamEmitter())
        self.runs.setdefault(request.session_key, []).append(run)
        run.task = asyncio.create_task(self._run(run), name=request.run_id)
        return run

    async def _run(self, run: _Run) -> None:
        key = run.request.session_key
        try:
            async with self.locks.hold(key):
                if run.interrupted:
                    raise TurnInterrupted
                run.started = True
                response = await self.agent.run(run.request, emitter=run.emitter)
                if _is_relay(response):
                    await _relay(run, response)
                    response = AgentResponse()
            run.finish(_completed(response))
        except (TurnInterrupted, asyncio.CancelledError):
            run.finish(turn_interrupted())
        except ApiError as error:
            run.finish(TurnFailed.of(error))
        except HermesTuiError as error:
            run.finish(TurnFailed(message=str(error), code="agent_failed"))
        except Exception as error:  # one turn's failure must not take the worker down
            logger.exception("agent raised session=%s run=%s", key, run.request.run_id)
            text = f"{type(error).__name__}: {error}"
            run.finish(TurnFailed(message=text, code="agent_failed"))
        finally:
            self.runs[key].remove(run)
            if not self.runs[key]:
                del self.runs[key]

    async def interrupt(self, run: _Run) -> None:
        """Stop one run: by the agent's own means, else by cancelling its task."""
        if run.interrupted or run.finished:
            return
        run.interrupted = True
        if not run.started:
            return  # it will see the flag once its turn comes
        if run.task:
            run.watch = asyncio.create_task(_report_until_over(run.request.run_id, run.task))
        stop = getattr(self.agent, "interrupt", None)
        if stop is not None:
            await _maybe_await(stop(run.request.session_key))
        elif run.task:
            run.task.cancel()

    async def close(self, session_key: str) -> None:
        """Stop a session's runs and let the agent forget the session."""
        runs = list(self.runs.get(session_key, ()))
        for run in runs:
            await self.interrupt(run)
        async with self.locks.hold(session_key):
            await _maybe_call(self.agent, "close_session", session_key)


def _is_relay(response: object) -> TypeGuard[StreamResponse]:
    """Return whether an agent passes another server's answer on; the class may be AReaL's own."""
    return hasattr(response, "status_code") and hasattr(response, "body")


async def _relay(run: _Run, response: StreamResponse) -> None:
    """Pass another server's answer on, byte for byte."""
    if CHAT_REQUEST_KEY not in run.request.metadata:
        raise TypeError("run() returned a StreamResponse, which only /v1/chat/completions relays")
    headers = {k: v for k, v in response.headers.items() if k.lower() not in _FRAMING}
    run.emitter.push(RelayStarted(status=response.status_code, headers=headers))
    async for part in response.body:
        if run.interrupted:
            raise TurnInterrupted
        run.emitter.push(BytesRelayed(data=part))


_FRAMING = ("connection", "content-length", "keep-alive", "transfer-encoding")
"""Headers about one connection; each hop sets its own."""


async def _report_until_over(run_id: str, run: asyncio.Task[None]) -> None:
    """Report a run that was interrupted: an agent that never lets go of one blocks its session."""
    with working(f"ending the interrupted turn {run_id}"):
        await asyncio.wait((run,))


def _completed(response: AgentResponse) -> TurnCompleted:
    # AReaL's own AgentResponse, which an agent may return, has no messages.
    if not hasattr(response, "summary"):
        raise TypeError(f"run() returned {type(response).__name__}, not an AgentResponse")
    return TurnCompleted(
        text=response.summary or "",
        metadata=dict(getattr(response, "metadata", None) or {}),
        messages=getattr(response, "messages", None),
    )


async def _maybe_await(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _maybe_call(agent: AgentRunnable, name: str, *args: Any) -> Any:
    method = getattr(agent, name, None)
    return None if method is None else await _maybe_await(method(*args))


def create_app(config: WorkerRole, agent: AgentRunnable | None = None) -> Starlette:
    """Return the worker's app.

    Args:
        config: the role.
        agent: in place of the class that the configuration names.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        report_stage(config.serve, "loading the agent")
        app.state.worker = _Worker(agent=agent or load_agent(config))
        async with way_to_relay(config.relay_socket):
            yield
            await _stop(app.state.worker)

    return Starlette(
        lifespan=lifespan,
        exception_handlers=EXCEPTION_HANDLERS,
        middleware=[Middleware(RequireKey, key=config.admin_key.get_secret_value())],
        routes=described("Hermes TUI: a worker", _routes()),
    )


def _routes() -> list[ApiRoute]:
    prefix, post, done = "/session/{key:session_key}", "POST", StatusAnswer
    approval = f"{prefix}/approvals/{{approval_id}}"
    large = BodySize.CONVERSATION
    return [
        ApiRoute("/health", _health, answer=WorkerHealth),
        ApiRoute("/run", _run, method=post, body=AgentRequest, size=large, events=True),
        ApiRoute(f"{prefix}/close", _close, method=post, answer=done),
        ApiRoute(f"{prefix}/interrupt", _interrupt, method=post, answer=InterruptAnswer),
        ApiRoute(approval, _answer, method=post, body=ApprovalBody, answer=done),
    ]


async def _stop(worker: _Worker) -> None:
    runs = [run for runs in worker.runs.values() for run in runs]
    for run in runs:
        await worker.interrupt(run)
    tasks = [run.task for run in runs if run.task]
    if tasks:
        await asyncio.wait(tasks, timeout=2.0)  # within the role's own stop deadline
    await _maybe_call(worker.agent, "close_all_sessions")


async def _health(request: Request) -> Response:
    return health_response(running=len(request.app.state.worker.runs))


async def _run(request: Request) -> Response:
    body = await read_body(request, AgentRequest)
    worker: _Worker = request.app.state.worker
    return LiveResponse(_stream(worker, worker.start(body)))


async def _stream(worker: _Worker, run: _Run) -> AsyncGenerator[bytes, None]:
    try:
        async for batch in run.emitter.batches():
            yield b"".join(sse(event_to_json(event)) for event in batch)
    finally:
        # Whoever read this has gone, or the run is over and this does nothing.
        await worker.interrupt(run)


async def _close(request: Request) -> Response:
    await request.app.state.worker.close(request.path_params["key"])
    return JSONResponse(StatusAnswer().model_dump())


async def _interrupt(request: Request) -> Response:
    worker: _Worker = request.app.state.worker
    runs = [run for run in worker.runs.get(request.path_params["key"], ()) if run.started]
    for run in runs:
        await worker.interrupt(run)
    return JSONResponse(InterruptAnswer(interrupted=bool(runs)).model_dump())


async def _answer(request: Request) -> Response:
    body = await read_body(request, ApprovalBody)
    worker: _Worker = request.app.state.worker
    if getattr(worker.agent, "answer", None) is None:
        raise ApiError(404, "This agent asks for no approvals.")
    key, approval_id = request.path_params["key"], request.path_params["approval_id"]
    await _maybe_call(worker.agent, "answer", key, approval_id, body.choice, body.reason)
    return JSONResponse(StatusAnswer().model_dump())
