"""Hermes' own calls are known by their wording: held against the installed hermes-agent's source.

A sentence that Hermes words anew would make us train a call that is not the agent's turn.
"""

from __future__ import annotations

import pytest
from fakes import hermes_source

from hermes_tui_training.chat_template.prefix_match import AUX_OPENINGS, completion_kind


@pytest.mark.parametrize("opening", AUX_OPENINGS)
def test_hermes_still_opens_a_message_of_its_own_with(opening: str) -> None:
    # A list of openings, as Hermes has one too, is not the message itself.
    messages = [text for text in hermes_source.texts() if text != opening]
    assert any(text.startswith(opening) for text in messages), (
        f"hermes-agent {hermes_source.version()} no longer writes {opening!r}: "
        "find its new words, and correct AUX_OPENINGS"
    )


def test_every_message_that_hermes_marks_as_its_own_is_known() -> None:
    marked = {text for text in hermes_source.texts() if text.startswith("[System: ")}
    unknown = [
        text for text in marked if completion_kind([{"role": "user", "content": text}]) != "aux"
    ]
    assert len(marked) >= 7
    assert not unknown, f"hermes-agent {hermes_source.version()}: add these to AUX_OPENINGS"
