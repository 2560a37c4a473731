"""A role's way to its supervisor: the pipe or socket on its standard input.

Its end means that the supervisor has gone. Over a socket the role reports how it is: beats, and
where it sees no run directory also its start. A role in a cage gets its configuration this way too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from typing import Literal

from pydantic import BaseModel, ConfigDict

from hermes_tui_common.run_file import RoleRunFile

CONFIG_ON_INPUT = "-"
"""In place of a configuration's file name: it is the first line on standard input."""

_READ_BYTES = 65_536


class Report(BaseModel):
    """What a role says of its start, one JSON line."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    report: Literal["stage", "notice", "ready"]
    """What it is doing; what a person should know; that it answers."""
    text: str = ""
    """Of a stage or a notice."""
    ready: RoleRunFile | None = None
    """Where it answers; its pid is the one that the role knows itself by."""


def read_config() -> str:
    """Return the first line on standard input."""
    data = b""
    while not data.endswith(b"\n"):
        chunk = os.read(0, _READ_BYTES)
        if not chunk:
            break
        data += chunk
    return data.decode()


class SupervisorLink:
    """Takes standard input over: what the role starts inherits an empty one, not this."""

    def __init__(self) -> None:
        self.descriptor = os.dup(0)
        """A copy that no child inherits."""
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)

    def follow(self) -> None:
        """End this process by SIGTERM once the other end has closed; in a thread of its own."""
        threading.Thread(target=self._follow, name="lifeline", daemon=True).start()

    def report(self, report: Report) -> None:
        """Report something of the start; a supervisor that has gone does not matter."""
        # A beat before it may have been cut short: the empty line sets them apart.
        line = b"\n" + report.model_dump_json(exclude_defaults=True).encode() + b"\n"
        with (
            contextlib.suppress(OSError),
            socket.fromfd(self.descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as link,
        ):
            link.sendall(line)

    def _follow(self) -> None:
        # A socket whose other end closes before it has read every beat is reset, not at its end.
        with contextlib.suppress(ConnectionResetError):
            while os.read(self.descriptor, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
