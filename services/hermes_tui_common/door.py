"""The first look at each request: how long its headers are, under which name it came, and whose
page sent it.

A page of a foreign server may make a browser call this machine. It can't hide where it comes from:
the browser sends its ``Origin``. And it can give its own name this machine's address, but then it
calls under that name, which is in ``Host``.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import error_response
from hermes_tui_common.limits import HttpConfig, with_limits

_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")


class Door:
    """Middleware: refuses what no client of this server sends.

    Args:
        app: gets the rest.
        limits: what is let in.
        host: the configured name or address.
    """

    def __init__(self, app: ASGIApp, limits: HttpConfig, host: str) -> None:
        origins = limits.allowed_origins
        if origins:  # a listed page may also read the answers
            app = CORSMiddleware(
                app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
            )
        self._app = app
        self._limits = limits
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        names = ("localhost", socket.gethostname(), host, *limits.allowed_hosts)
        self._hosts = frozenset(name.lower().rstrip(".") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif error := self._fault(scope):
            await refuse(scope, receive, send, error)
        else:
            await self._app(with_limits(scope, self._limits), receive, send)

    def _fault(self, scope: Scope) -> ApiError | None:
        """Return why a request is refused; None lets it in."""
        raw = scope["headers"]
        num_bytes = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        num_bytes += sum(len(name) + len(value) + 4 for name, value in raw)
        most = self._limits.max_header_bytes
        if num_bytes > most:
            return ApiError(
                431, f"The headers have more than {most} bytes (http.max_header_bytes)."
            )
        if len(raw) > self._limits.max_headers:
            most = self._limits.max_headers
            return ApiError(431, f"There are more than {most} headers (http.max_headers).")
        headers = Headers(raw=raw)
        if not all(self._is_ours(host) for host in headers.getlist("host")):
            return ApiError(
                421,
                "This server does not go by the name in 'Host'; add it to http.allowed_hosts.",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is not None and not self._may_call(origin, headers.get("host", "")):
            return ApiError(
                403,
                "Pages of this origin may not call this server; add it to http.allowed_origins.",
                code="origin_not_allowed",
            )
        return None

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        return name in self._hosts or _is_address(name)

    def _may_call(self, origin: str, host: str) -> bool:
        """Return whether a page is one of this server's own, or one that is listed."""
        origin = origin.lower().rstrip("/")
        return origin in self._origins or origin in (f"http://{host}", f"https://{host}")


def _is_address(name: str) -> bool:
    # No page can pretend to be at an address: its own is the one that the browser connected to.
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def refuse(scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
    """Answer a request or a web socket's handshake with an error."""
    if scope["type"] == "websocket":
        connection = WebSocket(scope, receive, send)
        await connection.receive()
        await connection.send_denial_response(error_response(error))
    else:
        await error_response(error)(scope, receive, send)
