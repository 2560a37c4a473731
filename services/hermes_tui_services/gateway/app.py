"""The agent gateway: the public entrance of the agent service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import (
    EXCEPTION_HANDLERS,
    error_response,
    health_response,
    read_body,
    read_query,
)
from hermes_tui_common.openapi import described
from hermes_tui_common.peer_client import peer_client
from hermes_tui_common.request_keys import RequireKey
from hermes_tui_common.routes import ApiRoute, BodySize, Health, JsonObject, Rows
from hermes_tui_common.streaming import ClientGoneError, LiveResponse, unless_gone
from hermes_tui_services.api.config import GatewayRole
from hermes_tui_services.api.events import RelayStarted, TurnEvent
from hermes_tui_services.api.protocol import (
    SESSION_KEY_HEADER,
    ApprovalBody,
    ForkBody,
    SearchQuery,
    SessionBody,
    check_session_key,
    path_key,
)
from hermes_tui_services.api.wire import (
    AgentModel,
    AgentModels,
    ClosedSession,
    ConversationInfo,
    ForkAnswer,
    History,
    InterruptAnswer,
    RunningTurn,
    SearchHit,
    StatusAnswer,
)
from hermes_tui_services.gateway.data_proxies import DataProxies
from hermes_tui_services.gateway.relay import relayed
from hermes_tui_services.gateway.requests import (
    ChatBody,
    ResponsesBody,
    header_value,
    new_session_key,
    session_key_of,
)
from hermes_tui_services.gateway.responses import (
    ChatBuilder,
    ResponseBuilder,
    chat_stream,
    response_stream,
)
from hermes_tui_services.gateway.websocket import FrameSocket

AGENT_MODEL = "hermes-agent"
"""The agent's name as a model, for clients that list models."""


def create_app(config: GatewayRole) -> Starlette:
    """Return the gateway's app."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with peer_client(config.admin_key.get_secret_value()) as client:
            app.state.data_proxies = DataProxies(client, config.router_url, config.retry_s)
            yield

    return Starlette(
        lifespan=lifespan,
        exception_handlers=EXCEPTION_HANDLERS,
        middleware=[Middleware(RequireKey, key=config.admin_key.get_secret_value())],
        routes=described("Hermes TUI: the agent gateway", _routes()),
    )


def _routes() -> list[BaseRoute]:
    session, post = "/sessions/{key:session_key}", "POST"
    approval = f"{session}/approvals/{{approval_id}}"
    turn: dict[str, Any] = {"method": post, "size": BodySize.CONVERSATION, "events": True}
    return [
        ApiRoute("/health", _health, answer=Health),
        ApiRoute("/v1/responses", _responses, body=ResponsesBody, answer=JsonObject, **turn),
        ApiRoute("/v1/chat/completions", _chat, body=ChatBody, answer=JsonObject, **turn),
        ApiRoute("/v1/models", _models, answer=AgentModels),
        WebSocketRoute("/ws", _ws),
        ApiRoute("/turns", _turns, answer=Rows[RunningTurn]),
        ApiRoute("/search", _search, query=SearchQuery, answer=Rows[SearchHit]),
        ApiRoute("/sessions", _sessions, answer=Rows[ConversationInfo]),
        ApiRoute("/sessions/close", _close, method=post, body=SessionBody, answer=ClosedSession),
        ApiRoute(f"{session}/fork", _fork, method=post, body=ForkBody, answer=ForkAnswer),
        ApiRoute(f"{session}/history", _history, answer=History),
        ApiRoute(f"{session}/events", _events, events=True),
        ApiRoute(f"{session}/interrupt", _interrupt, method=post, answer=InterruptAnswer),
        ApiRoute(approval, _answer, method=post, body=ApprovalBody, answer=StatusAnswer),
    ]


async def _health(request: Request) -> Response:
    return health_response(await _data_proxies(request).problem())


async def _models(request: Request) -> Response:
    return JSONResponse(AgentModels(data=[AgentModel(id=AGENT_MODEL)]).model_dump())


async def _responses(request: Request) -> Response:
    body = await read_body(request, ResponsesBody)
    key = session_key_of(request, kind="agent", model=body.model, user=body.user)
    if key is None:
        raise ApiError(
            400,
            f"Name the conversation: send 'user', or the header {SESSION_KEY_HEADER}.",
            param="user",
        )
    turn = body.turn(request.headers.get("idempotency-key"))
    builder = ResponseBuilder(model=body.model)
    headers = {SESSION_KEY_HEADER: header_value(key)}
    try:
        if body.stream:
            events = await _begun(request, _data_proxies(request).turn(key, turn))
            return LiveResponse(response_stream(builder, events), headers)
        async with contextlib.aclosing(_data_proxies(request).turn(key, turn)) as events:
            await unless_gone(request, _drain(builder, events))
    except ClientGoneError:
        return Response(status_code=499)
    return _whole(builder.error, builder.response("completed"), headers)


async def _chat(request: Request) -> Response:
    body = await read_body(request, ChatBody)
    named = session_key_of(request, kind="chat", model=body.model, user=body.user)
    key = named or new_session_key("chat")
    turn = body.turn(once=named is None)
    options = body.stream_options
    builder = ChatBuilder(
        model=body.model or AGENT_MODEL, include_usage=bool(options and options.include_usage)
    )
    headers = {SESSION_KEY_HEADER: header_value(key)}
    events = _data_proxies(request).turn(key, turn)
    try:
        # Two events: the second one says whether the agent passes another server's answer on.
        begun = [event async for event in _first(request, events, 2)]
        if isinstance(begun[-1], RelayStarted):
            return relayed(begun[-1], events, headers)
        events = _with_first(begun, events)
        if body.stream:
            return LiveResponse(chat_stream(builder, events), headers)
        async with contextlib.aclosing(events):
            await unless_gone(request, _drain(builder, events))
    except ClientGoneError:
        return Response(status_code=499)
    return _whole(builder.error, builder.completion(), headers)


def _whole(error: ApiError | None, body: dict[str, Any], headers: dict[str, str]) -> Response:
    answer = error_response(error) if error else JSONResponse(body)
    answer.headers.update(headers)
    return answer


async def _drain(builder: ResponseBuilder | ChatBuilder, events: AsyncIterator[TurnEvent]) -> None:
    async for event in events:
        for _ in builder.add(event):
            pass


async def _begun(
    request: Request, events: AsyncGenerator[TurnEvent, None]
) -> AsyncGenerator[TurnEvent, None]:
    """Return a turn's events once the first is there, so that what is refused has a status code.

    Raises: ApiError, ClientGoneError.
    """
    first = [event async for event in _first(request, events, 1)]
    return _with_first(first, events)


async def _first(
    request: Request, events: AsyncGenerator[TurnEvent, None], count: int
) -> AsyncIterator[TurnEvent]:
    """Yield a turn's first events, or all if it has fewer. Raises: ApiError, ClientGoneError."""
    for _ in range(count):
        event = await unless_gone(request, anext(events, None))
        if event is not None:
            yield event


async def _with_first(
    first: Sequence[TurnEvent], events: AsyncGenerator[TurnEvent, None]
) -> AsyncGenerator[TurnEvent, None]:
    async with contextlib.aclosing(events):
        for event in first:
            yield event
        async for event in events:
            yield event


def _data_proxies(request: Request) -> DataProxies:
    data_proxies: DataProxies = request.app.state.data_proxies
    return data_proxies


async def _ws(socket: WebSocket) -> None:
    await FrameSocket(socket, socket.app.state.data_proxies).serve()


async def _sessions(request: Request) -> Response:
    return _list(await _data_proxies(request).sessions())


def _list(rows: Sequence[BaseModel]) -> Response:
    return JSONResponse({"object": "list", "data": [row.model_dump() for row in rows]})


async def _close(request: Request) -> Response:
    body = await read_body(request, SessionBody)
    await _data_proxies(request).close(check_session_key(body.session_key))
    return JSONResponse(ClosedSession(session_key=body.session_key).model_dump())


async def _history(request: Request) -> Response:
    return JSONResponse(
        await _data_proxies(request).call("GET", request.path_params["key"], "history")
    )


async def _fork(request: Request) -> Response:
    body = await read_body(request, ForkBody)
    check_session_key(body.session_key)
    key = request.path_params["key"]
    return JSONResponse(await _data_proxies(request).call("POST", key, "fork", body.model_dump()))


async def _events(request: Request) -> Response:
    key = request.path_params["key"]
    try:
        events = await _begun(request, _data_proxies(request).join(key))
    except ClientGoneError:
        return Response(status_code=499)
    headers = {SESSION_KEY_HEADER: header_value(key)}
    return LiveResponse(response_stream(ResponseBuilder(model=AGENT_MODEL), events), headers)


async def _turns(request: Request) -> Response:
    return _list(await _data_proxies(request).turns())


async def _search(request: Request) -> Response:
    query = read_query(request, SearchQuery)
    return _list(await _data_proxies(request).search(query.q, query.limit))


async def _interrupt(request: Request) -> Response:
    return JSONResponse(
        await _data_proxies(request).call("POST", request.path_params["key"], "interrupt")
    )


async def _answer(request: Request) -> Response:
    body = await read_body(request, ApprovalBody)
    key, approval_id = request.path_params["key"], request.path_params["approval_id"]
    path = f"approvals/{path_key(approval_id)}"
    return JSONResponse(await _data_proxies(request).call("POST", key, path, body.model_dump()))
