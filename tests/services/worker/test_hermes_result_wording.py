"""How a turn of Hermes ended is read from its words: held against the installed hermes-agent."""

from __future__ import annotations

import pytest
from fakes import hermes_source

from hermes_tui_services.worker.hermes.results import (
    COMPACTION_DISABLED,
    EMPTY_REPLIES,
    MAX_TURNS_USED,
    STREAM_BROKE,
    TRUNCATED,
)


@pytest.mark.parametrize("words", [TRUNCATED, *STREAM_BROKE])
def test_hermes_still_says(words: str) -> None:
    assert any(words in text for text in hermes_source.texts()), (
        f"hermes-agent {hermes_source.version()} no longer says {words!r}: "
        "find its new words, and correct worker/hermes/results.py"
    )


@pytest.mark.parametrize("name", [MAX_TURNS_USED, EMPTY_REPLIES, COMPACTION_DISABLED])
def test_hermes_still_gives_a_result_named(name: str) -> None:
    assert any(text.partition("(")[0] == name for text in hermes_source.texts()), (
        f"hermes-agent {hermes_source.version()} has no result {name!r} any more: "
        "correct worker/hermes/results.py"
    )
