"""The data proxy: stores the conversations, and runs turns on the worker of its pair."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import (
    EXCEPTION_HANDLERS,
    error_response,
    health_response,
    read_body,
    read_query,
    sse,
)
from hermes_tui_common.openapi import described
from hermes_tui_common.peer_client import peer_client
from hermes_tui_common.request_keys import RequireKey
from hermes_tui_common.routes import ApiRoute, BodySize, Health, JsonObject, Rows
from hermes_tui_common.serving import report_notices
from hermes_tui_common.streaming import ClientGoneError, LiveResponse, unless_gone
from hermes_tui_common.upstream_hosts import UpstreamHosts
from hermes_tui_services.api.config import DataProxyRole
from hermes_tui_services.api.events import TurnEvent, TurnFailed, event_to_json
from hermes_tui_services.api.protocol import (
    ApprovalBody,
    ForkBody,
    SearchQuery,
    TurnRequest,
    Upstream,
    check_session_key,
)
from hermes_tui_services.api.wire import (
    ConversationInfo,
    ForkAnswer,
    History,
    InterruptAnswer,
    JoinedTurn,
    RunningTurn,
    SearchHit,
    StatusAnswer,
    StoredTurn,
)
from hermes_tui_services.data_proxy.model_access import RELAY_PATH, ModelAccess, relay_client
from hermes_tui_services.data_proxy.registration import Registration
from hermes_tui_services.data_proxy.retention import Retention
from hermes_tui_services.data_proxy.sessions import Sessions
from hermes_tui_services.data_proxy.store import ConversationStore, TurnRow
from hermes_tui_services.data_proxy.turns import Turn
from hermes_tui_services.data_proxy.untrained_scores import UntrainedScores
from hermes_tui_services.data_proxy.worker_client import WorkerClient

logger = logging.getLogger(__name__)

MAX_REAP_S = 30.0
"""Longest time between two searches for idle sessions."""

STOP_S = 2.0
"""How long a stop waits until interrupted turns are stored; within the role's own deadline."""


def create_app(config: DataProxyRole, *, url: str | None = None) -> Starlette:
    """Return the data proxy's app.

    Args:
        config: the role.
        url: where this process answers; None reads it from the run file.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        store = ConversationStore(config.database)
        await store.open()
        damage = [store.notice] if store.notice else []
        report_notices(config.serve, damage)
        async with (
            peer_client(config.admin_key.get_secret_value()) as client,
            peer_client(config.worker_key.get_secret_value()) as worker_client,
            relay_client() as servers,
        ):
            access = ModelAccess(
                client,
                servers,
                config.gateway_run_file,
                own_network=config.relay_socket is not None,
            )
            worker = WorkerClient(worker_client, config.worker_url)
            registration = Registration(client, config, lambda: sessions.keys(), url)
            sessions = Sessions(
                store,
                worker,
                access,
                config.upstream,
                UpstreamHosts(config.inference_hosts),
                registration.release,
            )
            app.state.store, app.state.sessions, app.state.access = store, sessions, access
            app.state.registration = registration
            scores = UntrainedScores(config.gateway_run_file)
            retention = Retention(
                store,
                config.store,
                is_kept=lambda key, upstream: _is_kept(sessions, scores, key, upstream),
                report=lambda text: report_notices(config.serve, [*damage, text]),
            )
            chores = [
                asyncio.create_task(retention.keep_within()),
                asyncio.create_task(registration.keep()),
                asyncio.create_task(_reap(sessions, config.session_timeout_s)),
            ]
            try:
                yield
            finally:
                for chore in chores:
                    chore.cancel()
                await asyncio.wait(chores)
                await sessions.stop(STOP_S)
                await registration.unregister()
                await store.close()

    return Starlette(
        lifespan=lifespan,
        exception_handlers=EXCEPTION_HANDLERS,
        middleware=[
            Middleware(RequireKey, key=config.admin_key.get_secret_value(), except_under=RELAY_PATH)
        ],
        routes=described("Hermes TUI: a data proxy", _routes()),
    )


def _routes() -> list[ApiRoute]:
    prefix, post, done = "/session/{key:session_key}", "POST", StatusAnswer
    approval = f"{prefix}/approvals/{{approval_id}}"
    relayed = f"{RELAY_PATH}/v1/{{path:path}}"
    return [
        ApiRoute("/health", _health, answer=Health),
        ApiRoute("/sessions", _sessions, answer=Rows[ConversationInfo]),
        ApiRoute("/turns", _turns, answer=Rows[RunningTurn]),
        ApiRoute("/search", _search, query=SearchQuery, answer=Rows[SearchHit]),
        ApiRoute(
            f"{prefix}/turn",
            _turn,
            method=post,
            body=TurnRequest,
            size=BodySize.CONVERSATION,
            answer=JoinedTurn,
            events=True,
        ),
        ApiRoute(f"{prefix}/close", _close, method=post, answer=done),
        ApiRoute(f"{prefix}/interrupt", _interrupt, method=post, answer=InterruptAnswer),
        ApiRoute(approval, _answer, method=post, body=ApprovalBody, answer=done),
        ApiRoute(f"{prefix}/fork", _fork, method=post, body=ForkBody, answer=ForkAnswer),
        ApiRoute(f"{prefix}/history", _history, answer=History),
        ApiRoute(f"{prefix}/events", _events, events=True),
        ApiRoute(relayed, _relay, answer=JsonObject),
        ApiRoute(
            relayed,
            _relay,
            method=post,
            body=JsonObject,
            size=BodySize.CONVERSATION,
            answer=JsonObject,
            events=True,
        ),
    ]


async def _relay(request: Request) -> Response:
    """Pass a model call of the worker's on."""
    access: ModelAccess = request.app.state.access
    return await access.relay(request)


async def _is_kept(
    sessions: Sessions, scores: UntrainedScores, session_key: str, upstream: Upstream | None
) -> bool:
    """Return whether a conversation stays however old it is."""
    return sessions.is_running(session_key) or await scores.wait_under(upstream)


async def _reap(sessions: Sessions, timeout_s: float) -> None:
    while True:
        await asyncio.sleep(min(timeout_s / 2, MAX_REAP_S))
        for session_key in await sessions.release_idle(timeout_s):
            logger.info("released idle session=%s", session_key)


async def _health(request: Request) -> Response:
    return health_response(request.app.state.registration.problem)


async def _turn(request: Request) -> Response:
    key = check_session_key(request.path_params["key"])
    body = await read_body(request, TurnRequest)
    request.app.state.access.note_address(request)
    sessions: Sessions = request.app.state.sessions
    turn = await sessions.submit(key, body)
    if body.stream:
        return LiveResponse(_stream(sessions.follow(turn)))
    try:
        events = await unless_gone(request, _collect(sessions, turn))
    except ClientGoneError:
        return Response(status_code=499)
    return _joined(turn, events)


async def _events(request: Request) -> Response:
    """Stream the turn in flight from its beginning; a reader of this does not keep it alive."""
    sessions: Sessions = request.app.state.sessions
    return LiveResponse(_stream(sessions.running(request.path_params["key"]).join()))


async def _stream(following: AsyncGenerator[list[TurnEvent], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(following) as batches:
        async for batch in batches:
            yield b"".join(sse(event_to_json(event)) for event in batch)


async def _collect(sessions: Sessions, turn: Turn) -> list[TurnEvent]:
    return [event async for batch in sessions.follow(turn) for event in batch]


def _joined(turn: Turn, events: Sequence[TurnEvent]) -> Response:
    """Return a whole turn as one answer, in AReaL's shape: summary, metadata, events."""
    end = event_to_json(events[-1])
    if isinstance(events[-1], TurnFailed):
        return error_response(events[-1].error())
    joined = JoinedTurn(
        run_id=turn.run_id,
        summary=end["summary"],
        metadata=end["metadata"],
        events=[event_to_json(event) for event in events[1:-1]],
    )
    return JSONResponse(joined.model_dump())


async def _close(request: Request) -> Response:
    await request.app.state.sessions.close(request.path_params["key"])
    return JSONResponse(StatusAnswer().model_dump())


async def _interrupt(request: Request) -> Response:
    stopped = request.app.state.sessions.interrupt(request.path_params["key"])
    return JSONResponse(InterruptAnswer(interrupted=stopped).model_dump())


async def _answer(request: Request) -> Response:
    body = await read_body(request, ApprovalBody)
    params = request.path_params
    await request.app.state.sessions.answer(params["key"], params["approval_id"], body)
    return JSONResponse(StatusAnswer().model_dump())


async def _fork(request: Request) -> Response:
    key = request.path_params["key"]
    body = await read_body(request, ForkBody)
    store: ConversationStore = request.app.state.store
    num_turns = await store.fork(key, check_session_key(body.session_key), body.until)
    if num_turns is None:
        if await store.turns(key) is None:
            raise ApiError(404, "There is no such session.", code="session_not_found")
        raise ApiError(
            409,
            "There is a session of this key already: a fork needs a new one.",
            param="session_key",
        )
    return JSONResponse(ForkAnswer(num_turns=num_turns).model_dump())


async def _history(request: Request) -> Response:
    key = request.path_params["key"]
    turns = await request.app.state.store.turns(key)
    if turns is None:
        raise ApiError(404, "There is no such session.", code="session_not_found")
    history = History(
        session_key=key,
        running=request.app.state.sessions.is_running(key),
        messages=[message for turn in turns for message in turn.messages],
        turns=[_stored_turn(turn) for turn in turns],
    )
    return JSONResponse(history.model_dump())


def _stored_turn(turn: TurnRow) -> StoredTurn:
    return StoredTurn(
        run_id=turn.run_id,
        num_messages=len(turn.messages),
        interrupted=turn.interrupted,
        metadata=turn.metadata,
        started_at=turn.started_at,
        finished_at=turn.finished_at,
    )


async def _turns(request: Request) -> Response:
    rows = [
        RunningTurn(
            session_key=turn.session_key, run_id=turn.run_id, started_at=turn.running_since
        ).model_dump()
        for turn in request.app.state.sessions.in_flight()
    ]
    return JSONResponse({"data": rows})


async def _search(request: Request) -> Response:
    query = read_query(request, SearchQuery)
    hits = await request.app.state.store.search(query.q, query.limit)
    return JSONResponse({"data": [hit.model_dump() for hit in hits]})


async def _sessions(request: Request) -> Response:
    sessions: Sessions = request.app.state.sessions
    stored: list[ConversationInfo] = await request.app.state.store.sessions()
    rows = [
        row.model_copy(update={"running": sessions.is_running(row.session_key)}) for row in stored
    ]
    known = {row.session_key for row in rows}
    # A session is stored once it has something to keep: its first turn may still run.
    begun = [
        _begun_session(turn)
        for turn in sessions.in_flight()
        if turn.session_key not in known and turn.request.history is None
    ]
    return JSONResponse({"data": [row.model_dump() for row in (*begun, *rows)]})


def _begun_session(turn: Turn) -> ConversationInfo:
    upstream = turn.request.upstream
    return ConversationInfo(
        session_key=turn.session_key,
        created_at=turn.started_at,
        last_active_at=turn.running_since,
        num_turns=0,
        inf_base_url=upstream.base_url if upstream else None,
        running=True,
    )
