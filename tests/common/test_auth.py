"""Keys: what can be none, what is easily guessed, and what is never shown."""

from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError
from starlette.requests import HTTPConnection

from hermes_tui_common.auth import no_key, redact, require_key, same_key, weakness
from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import error_response
from hermes_tui_services.api.config import GatewayConfig

NOTHINGS = ["", " ", "\t", "None", "none", "NULL", "undefined", " null "]


@pytest.mark.parametrize("nothing", NOTHINGS)
def test_what_stands_for_no_key_opens_nothing(nothing: str) -> None:
    assert no_key(nothing)
    assert not same_key(nothing, nothing)
    headers = [(b"authorization", f"Bearer {nothing}".encode())]
    with pytest.raises(ApiError) as refused:
        require_key(HTTPConnection({"type": "http", "headers": headers}), nothing)
    assert refused.value.status == 401
    if nothing:
        with pytest.raises(ValidationError):
            GatewayConfig(admin_api_key=SecretStr(nothing))


def test_a_key_opens_its_own_door() -> None:
    assert same_key("areal-admin-key", "areal-admin-key")
    assert not same_key("areal-admin-key", "areal-admin-kez")
    assert not no_key("areal-admin-key")


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("short", "too short"),
        ("a" * 40, "guessable"),
        ("areal-admin-key", "too short"),
        ("areal-agent-admin", "well-known"),
        ("abcabcabcabcabcabc", "guessable"),
        ("vG7rXW2mQ9bLk3Tz", ""),
    ],
)
def test_which_keys_are_weak(key: str, fault: str) -> None:
    assert fault in weakness(key)
    assert bool(weakness(key)) == bool(fault)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no session 'sk-sess-abcdefgh12'", "no session 'sk-sess-***'"),
        ("sk-inference-abcdefgh12", "sk-inference-***"),
        ("sk-comp-sess-12-abcdef", "sk-comp-***"),
        ("http://user:pw@host/x and https://k@h", "http://***@host/x and https://***@h"),
        ("mail@host, sk-sess-", "mail@host, sk-sess-"),
    ],
)
def test_an_error_does_not_repeat_a_key(text: str, shown: str) -> None:
    assert redact(text) == shown
    answer = error_response(ApiError(404, text, param=text))
    assert text not in bytes(answer.body).decode() or text == shown
