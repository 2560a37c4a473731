"""What the agent service's routes answer: the roles to each other, the gateway to its clients."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from hermes_tui_common.routes import Health
from hermes_tui_services.api.protocol import ChatMessage


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class ConversationInfo(_Answer):
    """One row of ``GET /sessions``."""

    session_key: str
    """Names the session."""
    created_at: float
    """Unix seconds."""
    last_active_at: float
    """When its last turn ended or, while its first one runs, began; Unix seconds."""
    num_turns: int
    """Stored turns."""
    inf_base_url: str | None
    """Upstream of its turns; None for the configured one."""
    running: bool = False
    """Whether a turn is in flight."""


class RunningTurn(_Answer):
    """One row of ``GET /turns``: a turn in flight."""

    session_key: str
    """Its session."""
    run_id: str
    """Its run."""
    started_at: float
    """When it left the queue, Unix seconds."""


class StoredTurn(_Answer):
    """One turn of a history."""

    run_id: str
    """Its run."""
    num_messages: int
    """How many of the history's messages are its own."""
    interrupted: bool
    """Whether it was stopped before its end."""
    metadata: dict[str, Any]
    """What the agent reports about it; ``usage`` is OpenAI's."""
    started_at: float
    """When it was sent, Unix seconds."""
    finished_at: float
    """Unix seconds."""


class History(_Answer):
    """``GET /sessions/{key}/history``: a conversation."""

    session_key: str
    """Its session."""
    running: bool
    """Whether a turn is in flight; its messages are not here yet."""
    messages: list[ChatMessage]
    """All messages, oldest first; marks of ours: ``interrupted``, ``synthetic``."""
    turns: list[StoredTurn]
    """The turns that the messages belong to, oldest first."""


class SearchHit(_Answer):
    """One row of ``GET /search``: a turn that contains the text."""

    session_key: str
    """Its session."""
    run_id: str
    """Its run."""
    started_at: float
    """When it was sent, Unix seconds."""
    finished_at: float
    """Unix seconds."""
    before: str
    """Up to 80 characters of text before the first place."""
    match: str
    """The text, in the case in which it was said."""
    after: str
    """Up to 80 characters after it."""


class PairState(_Answer):
    """One row of ``GET /pairs`` of the router."""

    addr: str
    """URL of the data proxy."""
    worker_addr: str
    """URL of its worker."""
    cause: str | None
    """Why it gets no sessions; None while it lives."""


class StatusAnswer(_Answer):
    """Answer of a call that only does something."""

    status: str = "ok"
    """Always ``ok``."""


class ForkAnswer(StatusAnswer):
    """``POST /sessions/{key}/fork``."""

    num_turns: int
    """Turns that were copied."""


class InterruptAnswer(StatusAnswer):
    """``POST /sessions/{key}/interrupt``."""

    interrupted: bool
    """Whether a turn was in flight."""


class RouterHealth(Health):
    """``GET /health`` of the router."""

    registered_proxies: int
    """Pairs that have registered."""
    active_sessions: int
    """Sessions that have a pair."""


class WorkerHealth(Health):
    """``GET /health`` of a worker."""

    running: int
    """Sessions with a turn."""


class Registered(StatusAnswer):
    """``POST /register`` of the router."""

    known: bool
    """Whether this same process had registered before."""


class Routed(_Answer):
    """``POST /route`` of the router."""

    data_proxy_addr: str
    """URL of the session's data proxy."""


class JoinedTurn(_Answer):
    """``POST /session/{key}/turn`` without a stream: a whole turn, in AReaL's shape."""

    run_id: str
    """Its run."""
    summary: str
    """The reply."""
    metadata: dict[str, Any]
    """What the agent reports about it."""
    events: list[dict[str, Any]]
    """What happened between its beginning and its end."""


class ClosedSession(StatusAnswer):
    """``POST /sessions/close``."""

    session_key: str
    """The session."""


class AgentModel(_Answer):
    """The agent as a model, for clients that list models."""

    id: str
    """Its name."""
    object: str = "model"
    """OpenAI's name of the kind."""
    created: int = 0
    """Not known."""
    owned_by: str = "hermes-tui"
    """This program."""


class AgentModels(_Answer):
    """``GET /v1/models`` of the agent gateway."""

    object: str = "list"
    """OpenAI's name of the kind."""
    data: list[AgentModel]
    """One."""
