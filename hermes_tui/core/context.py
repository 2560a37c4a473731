"""What the parts of a view share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hermes_tui.core.backend import Backend
from hermes_tui.core.notifier import Notifier
from hermes_tui.core.state import ViewState

RETRY_S = 1.0
"""Pause before a service is asked again that did not answer, or a stream opened that broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewContext:
    """The stack, the state that shows it, and the notifier of its changes."""

    backend: Backend
    """The stack."""
    state: ViewState = field(default_factory=ViewState)
    """What the view knows; only the parts of the controller write it."""
    notifier: Notifier = field(default_factory=Notifier)
    """Tells the front end."""
    clock: Callable[[], float] = time.time
    """Seconds since the epoch."""
    turns_unknown: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a turn may run that this view does not follow yet."""
