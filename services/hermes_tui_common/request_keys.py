"""Keys in requests: the admin key is checked, a session key in a path is decoded."""

from __future__ import annotations

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_tui_common.auth import require_key, same_key
from hermes_tui_common.door import refuse
from hermes_tui_common.errors import ApiError


class _SessionKeyConvertor(Convertor[str]):
    """A session key in a path: percent-decoded, any character, slashes and newlines included."""

    regex = r"(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("session_key", _SessionKeyConvertor())


class RequireKey:
    """Middleware: every request but GET /health needs the admin key; web sockets may send it as
    ``?token=``.

    Args:
        app: what is behind it.
        key: the admin key.
        except_under: beginning of the paths that check keys of their own; None: there are none.
    """

    def __init__(self, app: ASGIApp, key: str, except_under: str | None = None) -> None:
        self._app = app
        self._key = key
        self._except_under = except_under

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http" and not self._is_open(scope["path"]):
                require_key(HTTPConnection(scope), self._key)
            elif scope["type"] == "websocket":
                connection = HTTPConnection(scope)
                if not same_key(connection.query_params.get("token", ""), self._key):
                    require_key(connection, self._key)
        except ApiError as error:
            await refuse(scope, receive, send, error)
            return
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path == "/health" or bool(
            self._except_under and path.startswith(self._except_under + "/")
        )
