"""JSON from outside is bounded before it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_tui_common.errors import ApiError
from hermes_tui_common.json_body import parse_json
from hermes_tui_common.limits import HttpConfig

LIMITS = HttpConfig(max_json_depth=16, max_json_values=1000)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)  # fmt: skip


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + closing * depth).encode()


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, dict | list) else 0


@settings(max_examples=50, deadline=None)
@given(JSON, st.booleans())
def test_what_is_within_the_limits_is_parsed(value: Any, escaped: bool) -> None:
    raw = json.dumps(value, ensure_ascii=escaped).encode(errors="surrogatepass")
    limits = HttpConfig(max_json_depth=max(16, depth_of(value)))
    try:
        assert parse_json(raw, limits) == value
    except ApiError as error:
        assert "surrogate" in error.message or "utf-8" in error.message  # noqa: PT017


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (nested(16), None),
        (nested(17), 400),
        (b'{"a":' * 16 + b"1" + b"}" * 16, None),
        (b'{"a":' * 17 + b"1" + b"}" * 17, 400),
        (nested(9, '[{"a":').replace(b"]" * 9, b"}]" * 9).replace(b":}", b":1}"), 400),
        (b'["' + b"[" * 5000 + b'"]', None),  # brackets in a text are none
        (b'["\\"' + b"[" * 5000 + b'"]', None),
        (b'["\\\\", ' + nested(16) + b"]", 400),
        (b"[" + b"[]," * 999 + b"[]]", 413),
        (b"[" + b"1," * 998 + b"1]", None),
        (b"[" + b"1," * 1100 + b"1]", 413),
        (b'["' + b"," * 5000 + b'"]', None),
        (b'"' * 100_000, 400),
        (b"[" * 100_000, 413),
        (b"]" * 100_000, 400),
        ("[]".encode("utf-16"), 400),
        (b"\xef\xbb\xbf[]", None),
        (b"\xff", 400),
        (b"1e999", 400),
        (b"NaN", 400),
        (b"9" * 5000, 400),
    ],
    ids=range(21),
)
def test_the_limits(raw: bytes, status: int | None) -> None:
    try:
        parse_json(raw, LIMITS)
    except ApiError as error:
        assert error.status == status, error.message  # noqa: PT017
        assert len(error.message) < 300  # noqa: PT017
    else:
        assert status is None
