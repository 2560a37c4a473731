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

_KEY = re.compile(r"(sk-(?:sess|comp|agent|inference|control|worker)-)[A-Za-z0-9_-]{8,}")
_USER_OF_URL = re.compile(r"(?<=://)[^/\s@]+@")

MIN_STRONG_CHARS = 16
"""Shortest key that may guard an address beyond loopback."""

_MIN_DISTINCT_CHARS = 6
"""A key of fewer different characters, such as ``aaaaaaaaaaaaaaaa``, is guessed at once."""

_NO_KEYS = frozenset({"none", "null", "nil", "undefined"})
"""What programs write where they have no key."""

_WELL_KNOWN = frozenset(
    {
        "0123456789abcdef",
        "1234567890123456",
        "areal-admin-key",
        "areal-agent-admin",
        "changemechangeme",
        "sk-1234567890abcdef",
    }
)
"""Keys from examples and manuals: known to everyone."""


def mint_key(prefix: str) -> str:
    """Return a new key: the prefix and 43 url-safe characters (256 bits)."""
    return prefix + secrets.token_urlsafe(32)


def no_key(key: str) -> str:
    """Return why a text can be no key, such as ``is blank``; empty when it can."""
    if not key.strip():
        return "is blank"
    if key.strip().lower() in _NO_KEYS:
        return f"is the word “{key.strip():.9}”, which programs write where they have no key"
    return ""


def admin_key_fault(key: str) -> str:
    """Return why a text can be no admin key: no key at all, or none that can be sent."""
    if not (key.isascii() and key.isprintable() and " " not in key):
        return no_key(key) or "has spaces or characters that no HTTP header may have"
    return no_key(key)


def weakness(key: str) -> str:
    """Return why a key is easily guessed, such as ``too short``; empty when it is not."""
    if len(key) < MIN_STRONG_CHARS:
        return f"too short ({len(key)} characters)"
    if key.lower() in _WELL_KNOWN or len(set(key)) < _MIN_DISTINCT_CHARS:
        return "a well-known or guessable one"
    return ""


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
    """Compare two keys in constant time; what can be no key matches nothing."""
    return hmac.compare_digest(given.encode(), expected.encode()) and not no_key(expected)


def require_key(connection: HTTPConnection, expected: str) -> None:
    """Check that a request carries the expected key.

    Raises: ApiError: 401, when there is no key or another one.
    """
    if not same_key(bearer(connection), expected):
        raise ApiError(401, "This key is not known here.", code="invalid_api_key")


def redact(text: str) -> str:
    """Return a text with every key that this program mints masked, and the user part of URLs."""
    return _USER_OF_URL.sub("***@", _KEY.sub(r"\1***", text))


class RedactingFilter(logging.Filter):
    """Replaces keys in log records: those that this program mints, and the secrets it was given."""

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
        """Return the text with every known secret and every minted key masked."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return redact(text)
