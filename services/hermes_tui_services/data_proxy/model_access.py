"""What a worker gets in place of a model server's key, which it must not hold.

A worker runs the agent's tools, and a tool may look into it. The stack's own inference gateway
gives out keys that are good for completions alone: the worker calls it directly. Every other server
is reached through the relay in this file, which adds the real key; the worker's key for the relay
works while its turn runs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hermes_tui_common.auth import (
    COMPLETIONS_KEY_PATH,
    COMPLETIONS_KEY_PREFIX,
    bearer,
    mint_key,
)
from hermes_tui_common.errors import ApiError, cause_of
from hermes_tui_common.http import limited_body
from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_common.streaming import ClientGoneError, LiveResponse, unless_gone
from hermes_tui_services.api.protocol import OWN_NETWORK_PORT, Upstream, with_v1

logger = logging.getLogger(__name__)

RELAY_PATH = "/relay"
"""Where the worker finds the relay on its data proxy."""

MINT_S = 5.0
"""How long the inference gateway may take to give out a key; then the turn goes by the relay."""

CONNECT_S = 15.0
"""How long a connection to a model server may take."""

MAX_ERROR_BYTES = 65_536
"""What is passed on of a model server's error: all of it is searched for the key."""

_CALLS = {
    "POST": (
        "chat/completions",
        "completions",
        "embeddings",
        "messages",
        "messages/count_tokens",
        "responses",
    ),
    "GET": ("models",),
}
"""What the relay passes on; a server of our kind has rewards behind the same key."""

_KEY_HEADER = "x-api-key"
"""Where Anthropic's clients send their key."""

_HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_NOT_FORWARDED = _HOP_BY_HOP | {"authorization", "content-length", "cookie", "host", _KEY_HEADER}
_NOT_RETURNED = _HOP_BY_HOP | {"date", "server", "set-cookie"}


def relay_client() -> httpx.AsyncClient:
    """Return the client for model servers: by the user's proxies, this machine directly."""
    direct = dict.fromkeys(("all://127.0.0.1", "all://localhost", "all://[::1]"))
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=CONNECT_S),
        # A server may close an idle connection just as a call goes into it: many do so after 5 s.
        limits=httpx.Limits(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0
        ),
        mounts=direct,
    )


class ModelAccess:
    """Gives a turn's worker access to its model server, and is the relay.

    Args:
        peers: the client for other roles.
        servers: the client for model servers.
        gateway_run_file: run file of the stack's own inference gateway; None: it has none.
        own_network: whether the worker has one, and reaches nothing but the relay.
    """

    def __init__(
        self,
        peers: httpx.AsyncClient,
        servers: httpx.AsyncClient,
        gateway_run_file: Path | None = None,
        *,
        own_network: bool = False,
    ) -> None:
        self._peers = peers
        self._servers = servers
        self._own_network = own_network
        self._own_url = f"http://127.0.0.1:{OWN_NETWORK_PORT}"
        self._gateway_run_file = gateway_run_file
        self._relayed: dict[str, Upstream] = {}

    def note_address(self, request: Request) -> None:
        """Learn from a request where this process answers."""
        if self._own_network:
            return
        host, port = request.scope["server"]
        self._own_url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @contextlib.asynccontextmanager
    async def granted(self, upstream: Upstream) -> AsyncIterator[Upstream]:
        """Yield what the worker is given in place of an upstream; the relay's key ends with it."""
        if key := await self._completions_key(upstream):
            upstream = upstream.model_copy(update={"api_key": key})
            if not self._own_network:
                yield upstream
                return
        with self._relaying(upstream) as relayed:
            yield relayed

    @contextlib.contextmanager
    def _relaying(self, upstream: Upstream) -> Iterator[Upstream]:
        key = mint_key(COMPLETIONS_KEY_PREFIX)
        self._relayed[key] = upstream
        try:
            yield Upstream(
                base_url=with_v1(self._own_url + RELAY_PATH),
                api_key=key,
                model=upstream.model,
                address=upstream.base_url,
            )
        finally:
            del self._relayed[key]

    async def _completions_key(self, upstream: Upstream) -> str | None:
        """Return a key for completions alone; None when the server is not the stack's own, or does
        not give one: the relay's call then finds out why.
        """
        gateway = self._own_gateway()
        if gateway is None or with_v1(gateway) != _with_address(upstream.base_url):
            return None
        try:
            answer = await self._peers.post(
                gateway + COMPLETIONS_KEY_PATH,
                headers={"Authorization": f"Bearer {upstream.api_key}"},
                timeout=MINT_S,
            )
            return str(answer.json()["api_key"]) if answer.is_success else None
        except (httpx.TransportError, ValueError, KeyError) as error:
            logger.warning("no completions key gateway=%s cause=%s", gateway, cause_of(error))
            return None

    def _own_gateway(self) -> str | None:
        try:
            return RoleRunFile.read(self._gateway_run_file).url if self._gateway_run_file else None
        except (OSError, ValueError):
            return None  # it is starting, or being restarted

    async def relay(self, request: Request) -> Response:
        """Pass a model call on, with the key of the turn's upstream."""
        upstream = self._relayed.get(request.headers.get(_KEY_HEADER) or bearer(request))
        if upstream is None:
            raise ApiError(401, "This key is not known here.", code="invalid_api_key")
        path = request.path_params["path"].strip("/")
        if path not in _CALLS.get(request.method, ()):
            raise ApiError(403, f"The agent's key is for model calls, not for /{path}.")
        headers = [(n, v) for n, v in request.headers.items() if n not in _NOT_FORWARDED]
        if upstream.api_key:
            if _KEY_HEADER in request.headers:
                headers.append((_KEY_HEADER, upstream.api_key))
            else:
                headers.append(("authorization", f"Bearer {upstream.api_key}"))
        sent = self._servers.build_request(
            request.method,
            f"{upstream.base_url}/{path}",
            params=request.url.query or None,
            headers=headers,
            content=await limited_body(request),
        )
        try:
            answer = await unless_gone(request, self._servers.send(sent, stream=True))
        except ClientGoneError:
            return Response(status_code=499)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ApiError(
                502, f"The model server does not answer: {cause_of(error)}", code="upstream_down"
            ) from error
        if answer.is_success:
            return _Relayed(answer)
        return await _masked_error(answer, upstream.api_key)


class _Relayed(LiveResponse):
    """An answer that is passed on as it comes, with its own status and headers."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(_chunks(answer))
        self._answer = answer
        self.status_code = answer.status_code
        self.raw_headers = [
            (name.lower(), value)
            for name, value in answer.headers.raw
            if name.decode("latin-1").lower() not in _NOT_RETURNED
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except httpx.TransportError as error:
            # Returning without an end breaks the connection off, as the server's was.
            logger.warning("model server broke off cause=%s", cause_of(error))
        finally:
            await self._answer.aclose()


async def _chunks(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in answer.aiter_raw():
        yield chunk


async def _masked_error(answer: httpx.Response, key: str) -> Response:
    """Return a server's error without the key, which some quote."""
    body = b""
    try:
        async for chunk in answer.aiter_bytes():
            body = (body + chunk)[:MAX_ERROR_BYTES]
            if len(body) == MAX_ERROR_BYTES:
                break
    except httpx.HTTPError as error:
        logger.warning("model server broke off cause=%s", cause_of(error))
    finally:
        await answer.aclose()
    if key:
        body = body.replace(key.encode(), b"***")
    kept = ("content-type", "retry-after")
    headers = {name: answer.headers[name] for name in kept if name in answer.headers}
    return Response(body, status_code=answer.status_code, headers=headers)


def _with_address(base_url: str) -> str:
    """Return a URL with this machine's usual name in it replaced by its address."""
    return base_url.replace("://localhost:", "://127.0.0.1:", 1)
