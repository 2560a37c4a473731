"""A heartbeat whose beats a test makes itself: each counts as a second."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from hermes_tui_common.heartbeat import Heartbeat


@contextlib.contextmanager
def heartbeat_of_the_test() -> Iterator[Heartbeat]:
    """Yield one that nobody listens to."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        made = Heartbeat(theirs.fileno(), every_s=1.0)
        with made._socket:
            yield made
