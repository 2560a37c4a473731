"""JSON from outside: bounded before it is parsed, and no looser than the standard."""

from __future__ import annotations

import json
import math
from typing import Any

from hermes_tui_common.errors import ApiError
from hermes_tui_common.limits import DEFAULT_LIMITS, HttpConfig

_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def parse_json(raw: bytes, limits: HttpConfig = DEFAULT_LIMITS) -> Any:
    """Return the value of a JSON text, an empty object for an empty one.

    Raises: ApiError: 400: it is no JSON, or nested too deeply. "No JSON" includes what Python would
        take: other encodings than UTF-8, NaN, infinities, numbers beyond a float, halves of
        surrogate pairs. 413: it has too many values.
    """
    require_shape(raw, limits)
    try:
        text = raw.decode("utf-8-sig") or "{}"
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if b"\\ud" in raw.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not JSON: {error}.") from error


def require_shape(raw: bytes, limits: HttpConfig) -> None:
    """Refuse a JSON text with too many values or too deep a nesting, before it is parsed.

    Python's parser holds every other thread up until it is done, and 60 MB of empty lists take it
    20 s and 1.6 GB. Here only whole-text searches are made: about a millisecond for each MB.

    Raises: ApiError: 413 too many values; 400 nested too deeply.
    """
    most = limits.max_json_values
    # Each value but the first of a list follows a comma, and the first a bracket.
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") <= limits.max_json_depth:
        return
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * most:  # a value and its name are two strings, each in two quotes
        raise _too_many(most)
    outside = b"".join(plain.split(b'"')[::2])
    brackets = outside.translate(_SQUARE, _NO_BRACKETS)
    if outside.count(b",") + len(brackets) // 2 > most:
        raise _too_many(most)
    for _ in range(limits.max_json_depth):
        brackets = brackets.replace(b"[]", b"")  # takes the innermost level away
    if len(brackets) > 2 * limits.max_json_depth or b"[]" in brackets:
        raise ApiError(
            400,
            f"The body is nested more than {limits.max_json_depth} deep (http.max_json_depth).",
        )


def _too_many(most: int) -> ApiError:
    return ApiError(413, f"The body has more than {most} values (http.max_json_values).")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.20} is too large")
    return value
