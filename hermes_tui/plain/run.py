"""Running ``hermes-tui --plain``: standard input and output, and the signals."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from hermes_tui.core.controller import Controller
from hermes_tui.core.errors import EXIT_BY_SIGNAL, EXIT_FAILED, EXIT_INTERRUPTED
from hermes_tui.plain.app import Plain

if TYPE_CHECKING:
    from hermes_tui.config.settings import Config


def run_plain(config: Config, stop_command: str = "hermes-tui stop") -> int:
    """Talk line by line on standard input and output; return the exit code.

    Args:
        config: the resolved configuration.
        stop_command: the command line that ends the stack, for the last words.
    """
    from hermes_tui.stack_client.remote import make_controller

    try:
        return asyncio.run(_run(make_controller(config), stop_command))
    except BaseExceptionGroup as errors:
        if errors.split(BrokenPipeError)[1] is not None:
            raise
    except BrokenPipeError:
        pass
    # Whoever read our lines has gone; nothing more may be written, not even at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILED


async def _run(controller: Controller, stop_command: str) -> int:
    plain = Plain(controller, sys.stdout, interactive=sys.stdin.isatty(), stop_command=stop_command)
    loop = asyncio.get_running_loop()
    talking = asyncio.create_task(plain.run())
    exit_codes: list[int] = []

    def leave(code: int) -> None:
        exit_codes.append(code)
        talking.cancel()

    def interrupt() -> None:
        if exit_codes or not plain.interrupted():
            leave(EXIT_INTERRUPTED)

    for number, code in EXIT_BY_SIGNAL.items():
        loop.add_signal_handler(number, leave, code)
    loop.add_signal_handler(signal.SIGINT, interrupt)  # replaces the one above
    reader = threading.Thread(target=_read, args=(sys.stdin.fileno(), plain, loop), daemon=True)
    reader.start()
    try:
        return await talking
    except asyncio.CancelledError:
        if not exit_codes:
            raise
        return exit_codes[0]


def _read(fd: int, plain: Plain, loop: asyncio.AbstractEventLoop) -> None:
    """Hand on the lines of a file until its end.

    A thread with plain reads: an event loop can't wait for a file, and would make a terminal
    non-blocking for everyone who writes to it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""

    def put(line: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are leaving
            loop.call_soon_threadsafe(plain.put, line)

    with contextlib.suppress(OSError):  # a terminal that hung up has no more lines
        while chunk := os.read(fd, 65_536):
            *whole, rest = (rest + decoder.decode(chunk)).split("\n")
            for line in whole:
                put(line)
    if rest:
        put(rest)
    put(None)
