"""Replies that go round in circles are noticed."""

from __future__ import annotations

import pytest

from hermes_tui.core.repetition import repeats


@pytest.mark.parametrize(
    ("text", "is_repeated"),
    [
        ("I am happy. " * 8, True),
        ("The sky is blue because of the way that light is scattered by the air.", False),
        ("no no no", False),
        ("", False),
    ],
)
def test_repetition(text: str, is_repeated: bool) -> None:
    assert repeats(text) is is_repeated
