"""``[http]``: what the HTTP servers of the stack let in, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from hermes_tui_common.settings import Section

THREAD_BYTES = 256 * 1024
"""Larger bodies are parsed in a thread. What fits a model's context is smaller."""

_SCOPE_KEY = "hermes_tui.limits"


class HttpConfig(Section):
    """``[http]``: what every HTTP server of the stack lets in, and how much of it."""

    max_header_bytes: int = Field(32_768, ge=1024)
    """Bytes of a request's line and headers together; beyond it 431. Session keys, cookies and
    traces together stay below 10 kB."""
    max_headers: int = Field(100, ge=8)
    """Headers of one request; beyond it 431. Browsers send about 20."""
    header_timeout_s: float = Field(10.0, gt=0)
    """Seconds from the first byte, or from the connection, until a request's headers are there;
    then it is closed."""
    body_timeout_s: float = Field(60.0, gt=0)
    """Seconds until a request's whole body is there; then 408. The largest one in this time needs
    2 Mbit/s."""
    reader_timeout_s: float = Field(60.0, gt=0)
    """Seconds for which a client may leave an answer unread; then its connection is closed. A view
    that was stopped joins again where it was."""
    max_connections: int = Field(1000, ge=8)
    """Connections of one server, and never more than half of the file descriptors that it may
    open. Beyond it the one that has waited the longest for its next request makes room; if all are
    at work, the new one gets 503."""
    max_connections_per_peer: int = Field(100, ge=4)
    """The same for one address beyond loopback, which all programs on this machine share."""
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=65_536)
    """Bytes of a body that carries a conversation; beyond it 413. A hundred times what fits a
    context of 32,768 tokens. Bodies that carry none are bounded at 1 MiB."""
    max_json_depth: int = Field(100, ge=16)
    """Brackets within brackets in a body; beyond it 400. Tools' schemas have about 10."""
    max_json_values: int = Field(200_000, ge=1000)
    """Values in a body; beyond it 413. It bounds the time for which parsing can hold everything
    else up, to some tenths of a second."""
    allowed_hosts: tuple[str, ...] = ()
    """Names under which browsers and clients reach these servers, beside localhost, this machine's
    own name, the configured one, and IP addresses; others are refused, since a foreign page can
    give its own name this machine's address."""
    allowed_origins: tuple[str, ...] = ()
    """Pages of other servers whose scripts may call these, such as "https://my.page"."""


DEFAULT_LIMITS = HttpConfig()


def with_limits(scope: Mapping[str, Any], limits: HttpConfig) -> dict[str, Any]:
    """Return a request's ASGI scope with the limits that it is held to."""
    return {**scope, _SCOPE_KEY: limits}


def limits_of(scope: Mapping[str, Any]) -> HttpConfig:
    """Return the limits that a request is held to."""
    limits = scope.get(_SCOPE_KEY, DEFAULT_LIMITS)
    assert isinstance(limits, HttpConfig)
    return limits
