"""The agent service's request bodies, and the names that its clients and roles share."""

from __future__ import annotations

import secrets
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from hermes_tui_common.auth import no_key
from hermes_tui_common.errors import ApiError

ChatMessage = dict[str, Any]
"""One message in OpenAI's chat shape."""

OWN_NETWORK_PORT = 8101
"""Where a worker with a network of its own finds the relay: a port in that network."""

SESSION_KEY_HEADER = "X-AReaL-Session-Key"
"""Names the conversation of a request; echoed in its answer."""

SESSION_KEY_HEADERS = (SESSION_KEY_HEADER, "X-Session-Key")
"""Where a session key is looked for, in order."""

MAX_KEY_CHARS = 1024
"""Longer session keys are refused: they travel in paths and headers."""

NO_TURN = "no_turn"
"""Error code of joining a session in which no turn runs."""

INTERRUPTED = "interrupted"
"""Error code of a turn that was stopped; its text so far is kept."""

PROXY_UNAVAILABLE = "data_proxy_unavailable"
"""Error code of a turn that never started because its data proxy is down or stops."""

WORKER_UNAVAILABLE = "worker_unavailable"
"""Error code of a turn that never started because its worker is down: it may be sent again."""


class QueueMode(StrEnum):
    """What happens to a message that arrives while its session is busy (AReaL's names)."""

    COLLECT = "collect"
    """Joined with the others that wait, into one follow-up turn."""
    FOLLOWUP = "followup"
    """A turn of its own, after the ones before it."""


class Body(BaseModel):
    """A request body: unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def new_run_id() -> str:
    """Return ``run-`` and 12 hexadecimal digits (AReaL's shape)."""
    return f"run-{secrets.token_hex(6)}"


class Upstream(BaseModel):
    """Where the model calls of a session's turns go."""

    model_config = ConfigDict(frozen=True)

    base_url: str
    """OpenAI-compatible base URL, ending in ``/v1``."""
    api_key: str
    """The session's key there."""
    model: str = ""
    """Model to ask for; empty leaves it to the agent."""
    address: str = ""
    """What to call it in messages, where ``base_url`` is a relay to it."""

    @property
    def shown(self) -> str:
        """What to call it in messages."""
        return self.address or self.base_url


class UpstreamFields(Body):
    """The fields with which a client points a turn at an upstream of its own (AReaL's names)."""

    inf_base_url: str | None = None
    """Base URL of the inference gateway; may or may not end in ``/v1``."""
    inf_model: str | None = None
    """Model to ask for there. Without the other two: where the session's turns go anyway, for
    this turn."""
    session_api_key: str | None = None
    """The session's key there."""

    def upstream(self) -> Upstream | None:
        """Return the upstream that the request names, or None.

        Raises: ApiError: 400 that names the missing one, when only one of URL and key was sent.
        """
        url, key = (self.inf_base_url or "").strip(), (self.session_api_key or "").strip()
        if not url and not key:
            return None
        if not key:
            raise ApiError(
                400,
                "inf_base_url was sent without session_api_key; send both or neither.",
                param="session_api_key",
            )
        if not url:
            raise ApiError(
                400,
                "session_api_key was sent without inf_base_url; send both or neither.",
                param="inf_base_url",
            )
        if fault := no_key(key):
            raise ApiError(400, f"session_api_key {fault}.", param="session_api_key")
        if not url.startswith(("http://", "https://")):
            raise ApiError(400, "inf_base_url must begin with http://.", param="inf_base_url")
        return Upstream(base_url=with_v1(url), api_key=key, model=self.model_name())

    def model_name(self) -> str:
        """Return the model that the request names; empty when it names none."""
        return (self.inf_model or "").strip()


class TurnRequest(Body):
    """One turn, as the gateway makes it of a client's request: ``POST /session/{key}/turn`` of a
    data proxy, which keeps it until the turn is over.
    """

    message: str
    """The user's message."""
    run_id: str = Field(default_factory=new_run_id)
    """Name of the run."""
    queue_mode: QueueMode = QueueMode.FOLLOWUP
    """What happens when the session is busy."""
    idempotency_key: str | None = None
    """A repeated one returns the first run's result."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """For the agent, and back to the caller."""
    upstream: Upstream | None = None
    """Where the model calls go; None: where the session's turns went before."""
    model: str = ""
    """Model to ask for in this turn, wherever it goes; empty leaves it as it was."""
    background: bool = False
    """Whether the turn goes on when its caller goes away."""
    history: list[ChatMessage] | None = None
    """The conversation so far, in place of the stored one; then nothing is stored."""
    once: bool = False
    """Whether the session ends with this turn."""
    stream: bool = True
    """Whether to answer with the events as they come, or with one JSON object at the end."""


class ApprovalBody(Body):
    """Answer to an approval request."""

    choice: str = Field(min_length=1, max_length=4000)
    """One of the request's choices; free text where it had none."""
    reason: str | None = Field(None, max_length=4000)
    """Told to the agent with a no."""


class RegisterBody(Body):
    """``POST /register`` of the router: a pair is there. Repeated as a heartbeat."""

    addr: str = Field(pattern="^https?://")
    """URL of the data proxy."""
    worker_addr: str = Field(pattern="^https?://")
    """URL of its worker."""
    instance: str = ""
    """Token of the data proxy's process."""
    sessions: list[str] = Field(default_factory=list)
    """Sessions that it holds: a router that lost its memory learns them."""


class AddrBody(Body):
    """``POST /unregister`` of the router."""

    addr: str
    """URL of the data proxy."""


class RouteBody(Body):
    """``POST /route`` of the router."""

    session_key: str
    """Which session."""
    create: bool = True
    """Whether a session without a pair is given one for good."""
    avoid: str | None = None
    """URL of a data proxy that just failed: looked at before the answer."""
    known: str | None = None
    """URL of the data proxy that the router named last: a router that lost its memory learns it."""


class ForkBody(Body):
    """Body of ``POST /sessions/{key}/fork``."""

    session_key: str = Field(min_length=1)
    """Key of the new session."""
    until: float | None = None
    """Unix seconds; turns that finished later are left out. None copies all."""


class SessionBody(Body):
    """A body that names a session."""

    session_key: str = Field(min_length=1)
    """Which session."""
    addr: str | None = None
    """Only when it is this data proxy's (``/remove_session`` of the router)."""


MAX_HITS = 200
"""Turns that one search returns at most."""


class SearchQuery(BaseModel):
    """Query of ``GET /search``."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    q: str = Field(min_length=1)
    """What to find."""
    limit: int = Field(MAX_HITS, ge=1, le=MAX_HITS)
    """Hits at most."""


def with_v1(url: str) -> str:
    """Return a base URL that ends in ``/v1``."""
    url = url.rstrip("/")
    return url if url.endswith("/v1") else f"{url}/v1"


def check_session_key(key: str) -> str:
    """Return the key.

    Raises: ApiError: 400, when it is blank, too long, or no valid Unicode.
    """
    if not key.strip():
        raise ApiError(400, "The session key is empty.", param="session_key")
    if len(key) > MAX_KEY_CHARS:
        raise ApiError(
            400, f"The session key has {len(key)} characters; {MAX_KEY_CHARS} are allowed."
        )
    if any("\ud800" <= char <= "\udfff" for char in key):
        raise ApiError(400, "The session key is not valid Unicode.", param="session_key")
    return key


def path_key(key: str) -> str:
    """Return a session key as one percent-encoded path segment, dots included."""
    return quote(key, safe="").replace(".", "%2E")
