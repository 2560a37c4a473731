"""``hermes-tui web``: the screen in a browser, through textual-serve.

The stack is started first when none runs; each tab is a process of its own that attaches to it,
as ``python -P -m hermes_tui.cli.web_server --resolved FILE``.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import html
import importlib.util
import logging
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes_tui.config.paths import RunDir
from hermes_tui.config.settings import Config, is_loopback
from hermes_tui.core.control_api import ControlEvent, ProcessChanged
from hermes_tui.core.sanitize import one_line
from hermes_tui.stack_client.launch import ensure_supervisor
from hermes_tui_common.errors import ConfigError
from hermes_tui_common.serving import write_private

if TYPE_CHECKING:
    from aiohttp import web

COOKIE = "hermes-tui-key"
"""Holds the link's key once the link was opened."""

_OPEN = "/static/"
"""Paths that need no key: the scripts and fonts of the page."""


_FOCUS = """\
    <script>
      // textual-serve shows the terminal with its first bytes and leaves the keyboard to the page.
      new MutationObserver((_, observer) => {
        const keyboard = document.querySelector(".xterm-helper-textarea");
        if (keyboard && document.body.classList.contains("-first-byte")) {
          keyboard.focus();
          observer.disconnect();
        }
      }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    </script>"""
"""Gives the keyboard to the terminal once it is shown: its prompt has the focus there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Where the browser's screen is served."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    expose: bool = False
    """Whether other machines may reach it."""
    public_url: str | None = None
    """Address that browsers use; None is the one listened on."""


def serve(config: Config, settings: WebSettings) -> int:
    """Serve the screen until a signal; return the exit code. The stack runs on.

    Raises:
        ConfigError: the address is open to others, or textual-serve is not installed.
        StackError: the stack could not be started.
    """
    if not (settings.expose or is_loopback(settings.host)):
        raise ConfigError(
            f"web: {settings.host} is reachable from other machines, and whoever has the link "
            "commands the agent; add --expose if that is meant, or listen on 127.0.0.1"
        )
    if importlib.util.find_spec("textual_serve") is None:
        raise ConfigError(
            "web: textual-serve is not installed; install it with `pip install 'hermes-tui[web]'`"
        )
    port = settings.port or _free_port(settings.host)
    _require_free(settings.host, port)
    asyncio.run(_start_stack(config))
    resolved = RunDir.of(config).config_file("web")
    write_private(resolved, config.to_json())
    _serve(resolved, settings, port, title=f"Hermes TUI · {Path(config.model.path).name}")
    return 0


async def _start_stack(config: Config) -> None:
    """Start the stack when none runs, so that no two tabs have to."""

    def show(event: ControlEvent) -> None:
        if isinstance(event, ProcessChanged):
            reason = event.reason or ""
            text = event.state if reason in ("", event.state) else f"{event.state}: {reason}"
            print(one_line(f"{event.name}: {text}"), file=sys.stderr)

    await (await ensure_supervisor(config, show)).aclose()


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def _require_free(host: str, port: int) -> None:
    """Check that a port is free.

    Raises: ConfigError: it is taken, or the address is not this machine's.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"web: {host}:{port} can't be used ({error.strerror}); give another --port"
            ) from error


def _serve(resolved: Path, settings: WebSettings, port: int, *, title: str) -> None:
    from textual_serve.server import Server

    key = secrets.token_urlsafe(24)

    class ScreenServer(Server):  # type: ignore[misc]  # textual-serve is untyped
        """Serves one command to whoever has the link."""

        def initialize_logging(self) -> None:
            """Log only warnings, to standard error: standard output is for the link."""
            logging.basicConfig(level="WARNING", stream=sys.stderr)

        async def handle_index(self, request: web.Request) -> web.Response:
            """Serve textual-serve's page, with a title, and the keys going to the terminal."""
            page: web.Response = await super().handle_index(request)
            head = f"<head>\n    <title>{html.escape(self.title)}</title>"
            text = (page.text or "").replace("<head>", head, 1)
            page.text = text.replace("</body>", f"{_FOCUS}\n  </body>", 1)
            return page

        async def on_startup(self, app: web.Application) -> None:
            """Check the key on every route, and print the link."""
            app.middlewares.append(_guard(key, self.public_url))
            print(f"{self.public_url}/?key={key}", flush=True)
            print("open this link; ctrl+c ends the web server, not the stack", file=sys.stderr)

    # exec replaces the shell, so that closing a tab leaves no process behind.
    command = [sys.executable, "-P", "-m", "hermes_tui.cli.web_server", "--resolved", str(resolved)]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    server = ScreenServer(
        f"exec {shlex.join(command)}",
        host=settings.host,
        port=port,
        title=title,
        public_url=(settings.public_url or f"http://{host}:{port}").rstrip("/"),
    )
    asyncio.set_event_loop(asyncio.new_event_loop())  # textual-serve takes the current one
    server.serve()


def _guard(key: str, public_url: str) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Return the middleware that refuses requests without the key, or from another page."""
    from aiohttp import web

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path.startswith(_OPEN):
            return await handler(request)
        if hmac.compare_digest(request.query.get("key", "").encode(), key.encode()):
            # The redirect keeps the key out of the address bar and the browser's history.
            answer = web.Response(status=303, headers={"Location": f"{public_url}/"})
            answer.set_cookie(COOKIE, key, httponly=True, samesite="Strict")
            return answer
        if not hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), key.encode()):
            raise web.HTTPForbidden(text="open the link that `hermes-tui web` printed\n")
        origin = request.headers.get("Origin")
        if origin and urlsplit(origin).netloc not in (request.host, urlsplit(public_url).netloc):
            raise web.HTTPForbidden(text="this page may not talk to hermes-tui\n")
        return await handler(request)

    return guard


def main() -> None:
    """Run one tab's screen."""
    parser = argparse.ArgumentParser(description="the screen of one browser tab")
    parser.add_argument("--resolved", type=Path, required=True, help="configuration, JSON")
    text = parser.parse_args().resolved.read_text(encoding="utf-8")
    from hermes_tui.tui.app import run_app

    raise SystemExit(run_app(Config.model_validate_json(text)))


if __name__ == "__main__":
    main()
