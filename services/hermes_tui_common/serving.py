"""Running one role as a supervised process: configuration file, port, run file, lifeline, logs.

A role is started as ``python -P -m PACKAGE.ROLE --config FILE``. Its standard input is a lifeline:
when the other end closes, the process stops. On Linux the death of the parent stops it as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
import uvicorn
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_tui_common.auth import RedactingFilter
from hermes_tui_common.disk import wait_for_room
from hermes_tui_common.errors import ConfigError, HermesTuiError, StackError
from hermes_tui_common.heartbeat import Heartbeat
from hermes_tui_common.limits import DEFAULT_LIMITS, HttpConfig
from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_common.supervisor_link import CONFIG_ON_INPUT, Report, SupervisorLink, read_config

logger = logging.getLogger(__name__)

INSTANCE_HEADER = "x-hermes-tui-instance"
"""Answered by /health: proves that the process behind the port is the one that was started."""

STOP_DEADLINE_S = 8.0
"""After this long a stopping process ends itself hard; leaves room within the promised 15 s."""

GRACEFUL_S = 3
"""How long open requests, such as event streams, may go on once a stop was asked for."""

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than our own clients keep theirs, so that none of
them sends a request into a connection that is just being closed."""

_READ_BYTES = 256 * 1024
"""What the event loop reads at once."""

_PR_SET_PDEATHSIG = 1

_link: SupervisorLink | None = None
"""Where a role without a run file reports its start; None: standard input is no socket."""

EXIT_CONFIG = 2
EXIT_NOT_STARTED = 3


class ServeConfig(BaseModel):
    """How one role's process is reached and watched."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str
    """Process name, such as ``router`` or ``worker-0``."""
    host: str = "127.0.0.1"
    """Address to bind."""
    port: int = 0
    """Port to bind; 0 takes a free one."""
    port_key: str = ""
    """The configuration key that sets the port, for error messages."""
    descriptor: int | None = None
    """A listening socket that was inherited, in place of host and port; None binds one."""
    unix_socket: Path | None = None
    """Where to listen as well; None: nowhere."""
    run_file: Path | None = None
    """Where name, pid, address and instance token are written once the role is ready; None with a
    heartbeat: they are reported over standard input."""
    instance: str = ""
    """Token that /health answers in the ``x-hermes-tui-instance`` header."""
    lifeline: bool = False
    """Whether end-of-file on standard input stops the process."""
    heartbeat_s: float = 0.0
    """Seconds between two beats on standard input, which is a socket then; 0.0 sends none."""
    log_level: str = "INFO"
    """Level of the process's log on standard error."""
    limits: HttpConfig = DEFAULT_LIMITS
    """What the server lets in."""


class RoleConfig(BaseModel):
    """What every role's resolved configuration has; the roles add their own fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    serve: ServeConfig
    """Address, run file and lifeline."""


Role = TypeVar("Role", bound=RoleConfig)


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def stage_file(run_file: Path) -> Path:
    """Return where a starting role says what it is doing: beside its run file."""
    return run_file.with_suffix(".stage")


def report_stage(config: ServeConfig, text: str) -> None:
    """Say in a few words what a starting role is doing; logged, and shown by the supervisor."""
    logger.info("stage %s", text)
    if config.run_file:
        with contextlib.suppress(OSError):  # a full disk; what it says is in the log
            write_private(stage_file(config.run_file), text)
    elif _link:
        _link.report(Report(report="stage", text=text))


def notice_file(run_file: Path) -> Path:
    """Return where a role keeps what a person should know of it: beside its run file."""
    return run_file.with_suffix(".notice")


def report_notices(config: ServeConfig, notices: Sequence[str]) -> None:
    """Say all that a person should know of this process; the status of the stack shows it.

    Args:
        config: the process.
        notices: sentences, a line each; they take the place of those that were said before.
    """
    text = "\n".join(" ".join(notice.split()) for notice in notices)
    if not text:
        return
    if config.run_file:
        with contextlib.suppress(OSError):  # a full disk; whoever found it has logged it
            write_private(notice_file(config.run_file), text)
    elif _link:
        _link.report(Report(report="notice", text=text))


def configure_logging(level: str, secrets_: Iterable[str] = ()) -> None:
    """Log to standard error, one line a record, with every key masked."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    )
    handler.addFilter(RedactingFilter(tuple(secrets_)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("httpx").setLevel("WARNING")


def run_role(
    model: type[Role],
    build: Callable[[Role], ASGIApp],
    *,
    secrets_of: Callable[[Role], Iterable[str]] = lambda _: (),
) -> None:
    """Be one role until told to stop; the body of every ``__main__``.

    Args:
        model: the role's resolved configuration, read from ``--config FILE`` (JSON, mode 0600).
        build: makes the ASGI app; slow work belongs into its lifespan.
        secrets_of: keys that must never be logged.

    Exits with 2 when the configuration is wrong and 3 when the role cannot start, after one
    readable line on standard error.
    """
    parser = argparse.ArgumentParser(description=f"{model.__name__}: one process of the stack")
    parser.add_argument("--config", type=Path, required=True, help="resolved configuration, JSON")
    path = parser.parse_args().config
    try:
        on_input = str(path) == CONFIG_ON_INPUT
        text = read_config() if on_input else path.read_text(encoding="utf-8")
        config = model.model_validate_json(text)
    except (OSError, ValidationError) as error:
        _die(EXIT_CONFIG, f"{path}: {error}")
    configure_logging(config.serve.log_level, secrets_of(config))
    heartbeat = _join_supervisor(config.serve)
    if config.serve.run_file:  # a start that fails for want of room would only be tried again
        wait_for_room(config.serve.run_file.parent, lambda text: report_stage(config.serve, text))
    try:
        serve(build(config), config.serve, heartbeat)
    except ConfigError as error:
        _die(EXIT_CONFIG, f"{config.serve.name}: {error}")
    except HermesTuiError as error:
        _die(EXIT_NOT_STARTED, f"{config.serve.name}: {error}")


def _die(code: int, line: str) -> None:
    print(f"error: {line}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def _join_supervisor(config: ServeConfig) -> Heartbeat | None:
    """Arrange that this process stops when its supervisor does, and start its heartbeat."""
    global _link
    if not config.lifeline:
        return None
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    link = SupervisorLink()
    link.follow()
    if not config.heartbeat_s:
        return None
    _link = link
    heartbeat = Heartbeat(link.descriptor, config.heartbeat_s)
    heartbeat.start()
    return heartbeat


def bind(config: ServeConfig) -> socket.socket:
    """Return a bound, listening socket.

    Raises: StackError: the address is taken or not ours; says which setting to change.
    """
    if config.descriptor is not None:
        inherited = socket.socket(fileno=config.descriptor)
        inherited.set_inheritable(False)
        return inherited
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only on sockets that say that they are TCP; with it,
    # every second small write of a stream waits 40 ms for the other side's acknowledgement.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((config.host, config.port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        hint = f"; set {config.port_key} to another port, or 0 for a free one"
        raise StackError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror}"
            f"{_holder(config.port)}{hint if config.port_key else ''}"
        ) from error
    sock.set_inheritable(False)
    return sock


def _bind_unix(path: Path) -> socket.socket:
    """Return a listening Unix socket in a directory, however long that one's name is."""
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")  # a name has room for 107 bytes
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise StackError(f"cannot listen on {path}: {error.strerror}") from error
    finally:
        os.close(folder)
    return sock


def _holder(port: int) -> str:
    """Return who listens on a port, as far as the system tells."""
    try:
        connections = psutil.net_connections("inet")
    except psutil.Error:
        return ""
    pids = (
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr[1:] == (port,)
        and connection.pid
    )
    return next((f" (in use by pid {pid})" for pid in pids), "")


def server_config(
    app: ASGIApp, limits: HttpConfig, *, host: str = "127.0.0.1", **settings: Any
) -> uvicorn.Config:
    """Return uvicorn's configuration of a server of ours: every one is held to the same limits.

    Args:
        app: what is served.
        limits: what is let in.
        host: the configured name or address.
        settings: more of uvicorn's.
    """
    # Late: the settings of every process import this module, and most of them serve nothing.
    from hermes_tui_common.connections import Connections, guarded_http, guarded_websocket
    from hermes_tui_common.door import Door

    connections = Connections(limits)
    return uvicorn.Config(
        Door(app, limits, host),
        host=host,
        http=guarded_http(connections),
        ws=guarded_websocket(connections) or "none",
        ws_max_size=limits.max_body_bytes,
        # Longer headers are refused by then, with an answer that says so.
        h11_max_incomplete_event_size=limits.max_header_bytes + _READ_BYTES,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        **settings,
    )


def serve(app: ASGIApp, config: ServeConfig, heartbeat: Heartbeat | None = None) -> None:
    """Serve an app until SIGTERM or SIGINT; write the run file when it is ready.

    Args:
        app: what is served.
        config: where.
        heartbeat: reports from then on when the event loop does not run.
    Raises: StackError: the port cannot be bound, or the app's start-up failed.
    """
    sockets = [bind(config)]
    if config.unix_socket:
        sockets.append(_bind_unix(config.unix_socket))
    role_app = _RoleApp(app, config.instance)
    settings = server_config(
        role_app,
        config.limits,
        host=config.host,
        lifespan="on",
        timeout_graceful_shutdown=GRACEFUL_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = _Server(settings, config, heartbeat)
    try:
        # get_loop_factory takes uvloop where it is installed.
        with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
            runner.run(server.serve(sockets=sockets))
    except SystemExit as error:  # how uvicorn 0.54 says that the app's start-up failed
        raise role_app.failure or StackError("start-up failed; the log says why") from error
    finally:
        for sock in sockets:
            sock.close()


class _Server(uvicorn.Server):
    """Writes the run file after start-up and bounds the time that a stop may take.

    Overrides two methods that uvicorn does not document (checked in 0.54.0): ``startup`` returns
    once the sockets accept connections, and ``handle_exit`` is the signal handler.
    """

    def __init__(
        self, config: uvicorn.Config, serve_config: ServeConfig, heartbeat: Heartbeat | None
    ) -> None:
        super().__init__(config)
        self._serve_config = serve_config
        self._heartbeat = heartbeat

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and self._heartbeat:
            # Not before: a start-up may compute in the event loop for as long as it has to.
            self._heartbeat.watch(asyncio.get_running_loop())
        if self.started and sockets:
            _announce(self._serve_config, sockets[0])

    def handle_exit(self, sig: int, frame: Any) -> None:
        if not self.should_exit:
            timer = threading.Timer(STOP_DEADLINE_S, os._exit, args=(128 + sig,))
            timer.daemon = True
            timer.start()
        super().handle_exit(sig, frame)


def _announce(config: ServeConfig, sock: socket.socket) -> None:
    host, port = sock.getsockname()[:2]
    logger.info("ready role=%s address=%s:%s pid=%s", config.name, host, port, os.getpid())
    shown = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host  # noqa: S104
    ready = RoleRunFile(
        name=config.name,
        pid=os.getpid(),
        host=host,
        port=port,
        url=f"http://{shown}:{port}",
        instance=config.instance,
        started_at=time.time(),
    )
    if config.run_file:
        stage_file(config.run_file).unlink(missing_ok=True)
        write_private(config.run_file, ready.model_dump_json())
    elif _link:
        _link.report(Report(report="ready", ready=ready))


class _RoleApp:
    """Adds the instance token to /health, and keeps the error that ended the app's start-up."""

    def __init__(self, app: ASGIApp, instance: str) -> None:
        self._app = app
        self._instance = instance
        self.failure: HermesTuiError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/health" and self._instance:
            await self._app(scope, receive, self._with_instance(send))
        else:
            await self._app(scope, receive, send)

    def _with_instance(self, send: Send) -> Send:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = (INSTANCE_HEADER.encode(), self._instance.encode())
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        return send_with_header

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        held: list[Message] = []

        async def hold_failure(message: Message) -> None:
            # Starlette 1.10 sends the traceback of a failed start-up just before it raises; uvicorn
            # logs it. For an error of ours one line is enough.
            if message["type"] == "lifespan.startup.failed":
                held.append(message)
            else:
                await send(message)

        try:
            await self._app(scope, receive, hold_failure)
        except HermesTuiError as error:
            self.failure = error
            held = [{**message, "message": ""} for message in held]
        finally:
            for message in held:
                await send(message)
