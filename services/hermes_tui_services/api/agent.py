"""The agent protocol, for authors of agents: AReaL's, under AReaL's names.

A class written for AReaL's ``AgentRunnable`` runs unchanged. Our additions are optional.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import ConfigDict

from hermes_tui_common.errors import HermesTuiError
from hermes_tui_services.api.events import TurnEvent
from hermes_tui_services.api.protocol import ChatMessage, QueueMode, Upstream

CHAT_REQUEST_KEY = "chat_request"
"""Name in a request's metadata under which AReaL's agents find a chat completion's own body."""

UPSTREAM_KEY = "areal_inference"
"""Name in a request's metadata under which AReaL's agents find their upstream."""


@dataclass
class AgentRequest:
    """One turn, as the agent gets it; also the body of a worker's ``POST /run``."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    message: str
    """The user's message."""
    session_key: str
    """Which conversation it belongs to."""
    run_id: str
    """``run-`` and 12 hexadecimal digits; names this turn."""
    history: list[ChatMessage] = field(default_factory=list)
    """The turns before, as OpenAI chat messages, oldest first."""
    queue_mode: QueueMode = QueueMode.COLLECT
    """How messages that waited behind a running turn were queued."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The caller's metadata. ``areal_inference`` is {base_url, api_key, model} when the session has
    an upstream of its own; ``inf_model`` is the model of this turn when it has none;
    ``instructions``, ``tools`` and ``sampling`` are there when they were sent; ``chat_request`` is
    the body of a ``/v1/chat/completions`` request, without the fields that name an upstream."""

    @property
    def upstream(self) -> Upstream | None:
        """The session's own upstream; None: the configured one."""
        named = self.metadata.get(UPSTREAM_KEY)
        return Upstream.model_validate(named) if named else None


@dataclass
class AgentResponse:
    """The result of a turn."""

    summary: str = ""
    """The reply's text."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Sent to the caller; ``usage`` and ``incomplete_details`` become fields of the response."""
    messages: list[ChatMessage] | None = None
    """What the turn added to the conversation after the user's message, as OpenAI chat messages;
    None: it is put together from the emitted events."""


@dataclass
class StreamResponse:
    """Another server's answer to a ``/v1/chat/completions`` request, in place of a response of the
    agent's own: it reaches the client byte for byte. AReaL's class of this name works as well.
    """

    status_code: int
    """HTTP status."""
    headers: dict[str, str]
    """HTTP headers; those that frame a message are left out."""
    body: AsyncIterator[bytes]
    """The answer's parts."""


class TurnInterrupted(HermesTuiError):
    """Raised by an agent's ``run`` when it was interrupted; what it emitted so far is kept."""


class EventEmitter(Protocol):
    """Where an agent reports what it does while a turn runs."""

    async def emit_delta(self, text: str) -> None:
        """Report the next part of the reply."""

    async def emit_tool_call(self, name: str, args: str, *, call_id: str | None = None) -> None:
        """Report that a tool is about to run; ``args`` is JSON."""

    async def emit_tool_result(self, name: str, result: str, *, call_id: str | None = None) -> None:
        """Report a tool's result; without an id it answers the oldest open call of that name."""

    def push(self, event: TurnEvent) -> None:
        """Report any turn event; may be called from any thread."""


@runtime_checkable
class AgentRunnable(Protocol):
    """A class that a worker can load.

    Optional methods, found by name: ``async close_session(session_key)``, ``async
    close_all_sessions()``, ``interrupt(session_key)`` (may be async; without it the turn's task is
    cancelled), ``answer(session_key, approval_id, choice, reason)``, and the class method
    ``from_role(WorkerRole)`` in place of a constructor without arguments. An agent with
    ``takes_instructions = True`` reads ``metadata["instructions"]`` itself; for the others they
    are put before the message.
    """

    async def run(self, request: AgentRequest, *, emitter: EventEmitter) -> AgentResponse:
        """Answer one message. Raises what went wrong; its text reaches the caller."""
        ...
