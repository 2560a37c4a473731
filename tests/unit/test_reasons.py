"""Every reason that the trainer gives has words."""

from __future__ import annotations

from typing import get_args

import pytest

from hermes_tui.core.reasons import in_words
from hermes_tui_training.types import UntrainableReason

OF_EPISODES = ("incomplete", "non_finite")
"""Why an episode is dropped, beside what its completions say."""


@pytest.mark.parametrize("reason", [*get_args(UntrainableReason), *OF_EPISODES])
def test_a_reason_has_words(reason: str) -> None:
    assert " " in in_words(reason) or in_words(reason) == "interrupted"


def test_an_unknown_reason_is_shown_as_it_is() -> None:
    assert in_words("sunspots") == "sunspots"
