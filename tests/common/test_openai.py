"""The text of an OpenAI message: strict where a client sends it, lenient where it was validated."""

from __future__ import annotations

import pytest

from hermes_tui_common.errors import ApiError
from hermes_tui_common.openai import content_text, message_text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "image_url"}, "x", {"type": "text", "text": None}], ""),
    ],
)
def test_the_text_of_a_message(content: object, text: str) -> None:
    assert message_text({"content": content}) == text


def test_parts_of_the_kinds_that_are_taken_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert content_text(parts, "input", kinds=("text", "input_text"), separator="\n") == "a\nb"


@pytest.mark.parametrize(
    ("content", "param", "words"),
    [
        (None, "input", "must be a text or a list"),
        ({"type": "text", "text": "a"}, "input", "must be a text or a list"),
        ([{"type": "text", "text": "a"}, {"type": "image"}], "input[1]", "'image'; only text"),
        (["a"], "input[0]", "'str'; only text"),
        ([{"type": "text", "text": 1}], "input[0].text", "must be a text"),
        ([{"type": "text"}], "input[0].text", "must be a text"),
    ],
)
def test_what_is_not_text_is_refused_by_its_place(content: object, param: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as refused:
        content_text(content, "input")
    assert (refused.value.status, refused.value.param) == (400, param)
