"""Reading the log of one process into the view's state."""

from __future__ import annotations

import asyncio
import logging

from hermes_tui.core.changes import LogGrew
from hermes_tui.core.context import RETRY_S, ViewContext
from hermes_tui.core.log_buffer import LogLines
from hermes_tui_common.errors import HermesTuiError, RefusedError

logger = logging.getLogger(__name__)

TAIL_LINES = 1000
"""Lines that are read when a log is opened."""


class LogReader:
    """Follows one log at a time.

    Args:
        context: what is read, and where it goes.
    """

    def __init__(self, context: ViewContext) -> None:
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier

    async def follow(self, process: str) -> None:
        """Read a process's log, and each new line of it, until cancelled.

        Returns early when there is no such process; the person is told.
        """
        if self._state.log.process != process:
            self._state.log = LogLines(process=process)
        while True:
            try:
                await self._read(process)
            except RefusedError as error:
                self._notifier.say(str(error), "error")
                return
            except HermesTuiError as error:
                # The top bar shows that the stack is out of reach; the lines stay readable.
                logger.info("log stream broke process=%s error=%s", process, error)
            await asyncio.sleep(RETRY_S)

    async def _read(self, process: str) -> None:
        log: LogLines | None = None
        async for line in self._backend.log(process, TAIL_LINES):
            if log is None:  # each stream begins with the tail: start over
                log = self._state.log = LogLines(process=process)
            log.append(line)
            self._notifier.notify(LogGrew())
