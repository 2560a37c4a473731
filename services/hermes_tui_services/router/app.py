"""The router: says which pair serves which session, and moves the sessions of dead pairs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui_common.http import EXCEPTION_HANDLERS, health_response, read_body
from hermes_tui_common.openapi import described
from hermes_tui_common.peer_client import peer_client
from hermes_tui_common.request_keys import RequireKey
from hermes_tui_common.routes import ApiRoute, BodySize, Rows
from hermes_tui_services.api.config import RouterRole
from hermes_tui_services.api.protocol import AddrBody, RegisterBody, RouteBody, SessionBody
from hermes_tui_services.api.wire import PairState, Registered, Routed, RouterHealth, StatusAnswer
from hermes_tui_services.router.pairs import Pairs


def create_app(config: RouterRole) -> Starlette:
    """Return the router's app."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # Without a key: it asks workers for their health, and their tools might hear it.
        async with peer_client(None) as client:
            app.state.pairs = Pairs(client)
            watch = asyncio.create_task(app.state.pairs.watch(config.poll_s))
            try:
                yield
            finally:
                watch.cancel()
                await asyncio.wait((watch,))

    return Starlette(
        lifespan=lifespan,
        exception_handlers=EXCEPTION_HANDLERS,
        middleware=[Middleware(RequireKey, key=config.admin_key.get_secret_value())],
        routes=described("Hermes TUI: the router", _routes()),
    )


def _routes() -> list[ApiRoute]:
    return [
        ApiRoute("/health", _health, answer=RouterHealth),
        ApiRoute("/pairs", _pairs, answer=Rows[PairState]),
        ApiRoute(
            "/register",
            _register,
            method="POST",
            body=RegisterBody,
            size=BodySize.CONVERSATION,  # a pair names all of its sessions
            answer=Registered,
        ),
        ApiRoute("/unregister", _unregister, method="POST", body=AddrBody, answer=StatusAnswer),
        ApiRoute("/route", _route, method="POST", body=RouteBody, answer=Routed),
        ApiRoute(
            "/remove_session",
            _remove_session,
            method="POST",
            body=SessionBody,
            answer=StatusAnswer,
        ),
    ]


async def _health(request: Request) -> Response:
    pairs: Pairs = request.app.state.pairs
    return health_response(
        pairs.problem,
        registered_proxies=len(pairs.all()),
        active_sessions=pairs.num_sessions,
    )


async def _pairs(request: Request) -> Response:
    pairs: Pairs = request.app.state.pairs
    rows = [
        PairState(
            addr=pair.addr, worker_addr=pair.worker_addr, cause=pair.cause or None
        ).model_dump()
        for pair in pairs.all()
    ]
    return JSONResponse({"data": rows})


async def _register(request: Request) -> Response:
    body = await read_body(request, RegisterBody)
    known = request.app.state.pairs.register(body)
    return JSONResponse(Registered(known=known).model_dump())


async def _unregister(request: Request) -> Response:
    body = await read_body(request, AddrBody)
    request.app.state.pairs.unregister(body.addr)
    return JSONResponse(StatusAnswer().model_dump())


async def _route(request: Request) -> Response:
    body = await read_body(request, RouteBody)
    addr = await request.app.state.pairs.route(
        body.session_key, create=body.create, avoid=body.avoid, known=body.known
    )
    return JSONResponse(Routed(data_proxy_addr=addr).model_dump())


async def _remove_session(request: Request) -> Response:
    body = await read_body(request, SessionBody)
    request.app.state.pairs.remove_session(body.session_key, body.addr)
    return JSONResponse(StatusAnswer().model_dump())
