"""Bearer keys: reading them from a request, comparing them, keeping them out of logs."""

from __future__ import annotations

import hmac
import logging
import re
import secrets

from starlette.requests import HTTPConnection

from hermes_tui_common.errors import ApiError

SESSION_KEY_PREFIX = "sk-sess-"
"""What every session key begins with (AReaL's shape); 43 url-safe characters follow."""

COMPLETIONS_KEY_PREFIX = "sk-comp-"
"""What the keys begin with that an inference gateway gives out for a session's completions alone:
they read and judge nothing."""

COMPLETIONS_KEY_PATH = "/rl/completions_key"
"""Where an inference gateway gives them out: ``POST`` with the session's own key."""

_SESSION_KEY = re.compile(r"(sk-sess-|sk-comp-)[A-Za-z0-9_-]{8,}")


def mint_key(prefix: str) -> str:
    """Return a new key: the prefix and 43 url-safe characters (256 bits)."""
    return prefix + secrets.token_urlsafe(32)


def bearer(connection: HTTPConnection) -> str:
    """Return the bearer key of a request.

    Raises: ApiError: 401, when the header is missing, is no bearer, or is empty.
    """
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        raise ApiError(401, "No key: send the header 'Authorization: Bearer <key>'.")
    return key


def same_key(given: str, expected: str) -> bool:
    """Compare two keys in constant time; an empty expected key matches nothing."""
    return bool(expected) and hmac.compare_digest(given.encode(), expected.encode())


def require_key(connection: HTTPConnection, expected: str) -> None:
    """Check that a request carries the expected key.

    Raises: ApiError: 401, when there is no key or another one.
    """
    if not same_key(bearer(connection), expected):
        raise ApiError(401, "This key is not known here.", code="invalid_api_key")


class RedactingFilter(logging.Filter):
    """Replaces keys in log records: every key of a session, and the secrets it was given."""

    def __init__(self, secrets_: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._secrets = tuple(s for s in secrets_ if s)

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record's message in place; never drops a record."""
        record.msg, record.args = self.redact(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self.redact(record.exc_text)
        return True

    def redact(self, text: str) -> str:
        """Return the text with every known secret and every session key masked."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _SESSION_KEY.sub(r"\1***", text)
