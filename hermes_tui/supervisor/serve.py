"""``hermes-tui --serve``: the stack without a screen.

JSON lines on standard output tell the story, the log goes to standard error and to
``logs/supervisor.log``. The screen starts the same thing in the background, as
``python -P -m hermes_tui.supervisor.serve --resolved FILE``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hermes_tui.config.paths import RunDir
from hermes_tui.config.secrets import ensure_keys, weak_keys
from hermes_tui.config.settings import Config
from hermes_tui.core.control_api import (
    StackFailed,
    StackReady,
    StackStarting,
    StackStopped,
    StackStopping,
    event_to_json,
)
from hermes_tui.core.errors import EXIT_BY_SIGNAL, EXIT_OK, exit_code
from hermes_tui.core.stack_status import SUPERVISOR
from hermes_tui.supervisor.cage import Confinement
from hermes_tui.supervisor.control import ControlApi, ControlServer
from hermes_tui.supervisor.events import EventLog
from hermes_tui.supervisor.lock import hold_lock
from hermes_tui.supervisor.logs import configure_supervisor_logging
from hermes_tui.supervisor.specs import StackPlan
from hermes_tui.supervisor.stack import Stack
from hermes_tui.supervisor.watchdog import STACK_MARK, end_orphans, watchdog
from hermes_tui_common.errors import HermesTuiError, StackError
from hermes_tui_common.run_file import RunFile
from hermes_tui_common.serving import ServeConfig, bind, write_private

logger = logging.getLogger(__name__)

_UNPRINTED_FIELDS = frozenset({"id", "at"})
"""Positions in the event log mean nothing on standard output."""


def serve(config: Config, make_plan: Callable[..., StackPlan] = StackPlan) -> int:
    """Run the stack until a signal or the control API ends it.

    Args:
        config: the resolved configuration.
        make_plan: makes the plan of the stack, such as one without the agent service.

    Returns: the exit code. An error is one line on standard error.
    """
    try:
        run_dir = RunDir.of(config)
        run_dir.create()
        with hold_lock(run_dir, lambda text: print(text, file=sys.stderr, flush=True)):
            keys = ensure_keys(run_dir, config)
            upstream_key = config.upstream.api_key.get_secret_value()
            configure_supervisor_logging(
                run_dir.log(SUPERVISOR),
                level=config.run.log_level,
                max_bytes=config.run.log_max_bytes,
                secrets=(*keys.values(), upstream_key),
            )
            for weak in weak_keys(keys):
                logger.warning("%s", weak)
            confinement = Confinement.of(config.services.agent)
            plan = make_plan(config=config, run_dir=run_dir, keys=keys, confinement=confinement)
            end_orphans(run_dir.root)
            mark = f"{secrets.token_hex(8)}:{run_dir.root}"
            with watchdog(mark):
                return asyncio.run(_Supervisor(plan, mark).run())
    except HermesTuiError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return exit_code(error)


class _Supervisor:
    """One run: the control API, the stack, and the lines on standard output."""

    def __init__(self, plan: StackPlan, mark: str) -> None:
        self._plan = plan
        self._environ = {**os.environ, STACK_MARK: mark}
        self._events = EventLog()
        self._end = asyncio.Event()
        self._exit_code = EXIT_OK

    async def run(self) -> int:
        """Return the exit code once everything has been stopped.

        Raises: StackError: a process could not be started; by then nothing is left running.
        """
        with _control_socket() as (sock, url), self._signals():
            async with asyncio.TaskGroup() as group:
                group.create_task(self._print_events(), name="stdout")
                async with Stack(self._plan, self._events, self._environ) as stack:
                    api = ControlApi(
                        stack,
                        self._events,
                        key=self._plan.keys.control_key,
                        url=url,
                        shut_down=self._end.set,
                    )
                    server = ControlServer(api.app(), self._plan.config.http)
                    group.create_task(server.run_on(sock), name="control")
                    self._write_run_file(url)
                    try:
                        failure = await self._live(stack, url)
                        await self._stop(stack)
                    finally:
                        self._plan.run_dir.supervisor.unlink(missing_ok=True)
                        self._events.close()
                        server.should_exit = True
        if failure:
            raise failure
        return self._exit_code

    async def _live(self, stack: Stack, url: str) -> StackError | None:
        """Start the stack and wait for the end; returns what kept it from starting."""
        logger.info("starting run_dir=%s control=%s", self._plan.run_dir.root, url)
        self._events.emit(StackStarting(run_dir=str(self._plan.run_dir.root), control=url))
        starting = asyncio.create_task(stack.start())
        ended = asyncio.create_task(self._end.wait())
        try:
            await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return None
            if error := starting.exception():
                if not isinstance(error, StackError):
                    raise error
                self._events.emit(StackFailed(error=str(error)))
                return error
            self._announce(stack, url)
            await ended
            return None
        finally:
            for task in (starting, ended):
                task.cancel()
            await asyncio.gather(starting, ended, return_exceptions=True)

    def _announce(self, stack: Stack, url: str) -> None:
        status = stack.status(url)
        if status.inference_gateway:
            # AReaL's own line: its users look for it in the log.
            logger.info("Proxy gateway available at %s", status.inference_gateway)
        logger.info("ready agent_gateway=%s", status.agent_gateway)
        self._events.emit(
            StackReady(
                agent_gateway=status.agent_gateway,
                inference_gateway=status.inference_gateway,
                control=url,
                run_dir=status.run_dir,
                pid=status.pid,
            )
        )

    async def _stop(self, stack: Stack) -> None:
        logger.info("stopping")
        self._events.emit(StackStopping())
        await stack.stop()
        self._events.emit(StackStopped())
        logger.info("stopped")

    async def _print_events(self) -> None:
        async for event in self._events.follow():
            row = {k: v for k, v in event_to_json(event).items() if k not in _UNPRINTED_FIELDS}
            try:
                print(json.dumps(row, ensure_ascii=False), flush=True)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    continue  # a file on a full disk: it is written with the next line
                # Whoever read the lines has gone; the stack goes on without them.
                logger.warning("standard output is closed: %s", error)
                return

    def _write_run_file(self, url: str) -> None:
        row = RunFile(name=SUPERVISOR, pid=os.getpid(), url=url, started_at=time.time())
        write_private(self._plan.run_dir.supervisor, row.model_dump_json())

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in EXIT_BY_SIGNAL:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in EXIT_BY_SIGNAL:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        logger.info("signal %s", number.name)
        self._exit_code = EXIT_BY_SIGNAL[number]
        self._end.set()


@contextlib.contextmanager
def _control_socket() -> Iterator[tuple[socket.socket, str]]:
    with bind(ServeConfig(name=SUPERVISOR)) as sock:
        host, port = sock.getsockname()[:2]
        yield sock, f"http://{host}:{port}"


def main() -> None:
    """Serve the resolved configuration that another of our programs wrote."""
    parser = argparse.ArgumentParser(description="the stack in the background")
    parser.add_argument("--resolved", type=Path, required=True, help="configuration, JSON")
    text = parser.parse_args().resolved.read_text(encoding="utf-8")
    # The reader of a JSON line may not know this terminal's encoding.
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    raise SystemExit(serve(Config.model_validate_json(text)))


if __name__ == "__main__":
    main()
