"""The HTTP client of a role for calls to other roles."""

from __future__ import annotations

import httpx

CONNECT_TIMEOUT_S = 5.0
"""How long a connection to another role may take."""

CALL_TIMEOUT_S = 30.0
"""How long another role may take over a call that is no turn."""

PEER_KEEP_ALIVE_S = 60.0
"""How long a client keeps an idle connection to another role; the roles keep them longer."""


def peer_client(key: str | None) -> httpx.AsyncClient:
    """Return a client for calls to other roles: keeps connections open, sends the key.

    Reading has no deadline by itself: a turn takes as long as it takes. Calls that are no turn pass
    ``timeout=CALL_TIMEOUT_S``.

    Args:
        key: sent with each call, so no call may go to a role that must not know it; None: none.
    """
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else None,
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=PEER_KEEP_ALIVE_S
        ),
        trust_env=False,
    )
