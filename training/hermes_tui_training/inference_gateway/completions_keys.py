"""Keys for a session's completions alone: what a program gets that must not judge itself."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from hermes_tui_common.auth import COMPLETIONS_KEY_PREFIX
from hermes_tui_training.store.store import Store

_SECRET = "completions_key_secret"  # noqa: S105  # the name of a value
"""Name of the signing secret among the store's values."""


class CompletionsKeys:
    """Gives out keys and checks them. Nothing is stored of a key: it names a session and carries a
    signature. It is good for whatever session runs under that session's key.
    """

    def __init__(self, store: Store) -> None:
        known = store.meta.get(_SECRET)
        if known is None:
            known = secrets.token_hex(32)
            store.meta.set(_SECRET, known)
        self._secret = bytes.fromhex(known)

    def key_of(self, session_id: str) -> str:
        """Return the key for a session's completions; always the same one."""
        return f"{COMPLETIONS_KEY_PREFIX}{session_id}-{self._signature(session_id)}"

    def session_id_of(self, key: str) -> str | None:
        """Return the session that a key names; None when it is no such key."""
        session_id, _, signature = key.removeprefix(COMPLETIONS_KEY_PREFIX).rpartition("-")
        if not key.startswith(COMPLETIONS_KEY_PREFIX):
            return None
        expected = self._signature(session_id)
        return session_id if hmac.compare_digest(signature.encode(), expected.encode()) else None

    def _signature(self, session_id: str) -> str:
        return hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest()
