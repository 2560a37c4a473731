"""Every reason that the trainer gives has words, and they are shown."""

from __future__ import annotations

from typing import get_args

import pytest

from hermes_tui.core.changes import ChatTurn
from hermes_tui.core.models import EpisodeRow
from hermes_tui.core.reasons import reason_text, reasons_text
from hermes_tui.plain.formatting import turn_text
from hermes_tui.tui.widgets.turn_view import TurnStatus, badge
from hermes_tui_training.api.learner import StillReason
from hermes_tui_training.api.types import UntrainableReason

OF_EPISODES = ("incomplete", "non_finite", "other_model")
"""Why an episode is dropped, beside what its completions say."""


@pytest.mark.parametrize(
    "reason", [*get_args(UntrainableReason), *get_args(StillReason), *OF_EPISODES]
)
def test_a_reason_has_words(reason: str) -> None:
    assert " " in reason_text(reason)


def test_an_unknown_reason_is_shown_as_it_is() -> None:
    assert reason_text("sunspots") == "sunspots"


@pytest.mark.parametrize(
    ("num_trainable", "state", "shown", "said"),
    [
        (
            0,
            "trained",
            "✗ not trained: cut off at services.agent.max_tokens",
            "will not be trained",
        ),
        (0, "scored", "✗ not trained: cut off at services.agent.max_tokens", "will not be trained"),
        (
            1,
            "trained",
            "trained at step 3 · +1.0 · not all of it: cut off at services.agent.max_tokens",
            "not all of it will be trained",
        ),
        (
            1,
            "open",
            "○ not judged yet · not all of it: cut off at services.agent.max_tokens",
            "not all of it will be trained",
        ),
    ],
)
def test_what_is_not_trained_says_why_and_whether_it_is_all(
    num_trainable: int, state: str, shown: str, said: str
) -> None:
    turn = ChatTurn(
        turn_id="t",
        session_id="sess-1",
        user_text="x",
        state="completed",
        untrainable=("truncated", "truncated"),
        num_trainable=num_trainable,
    )
    row = EpisodeRow(episode_id="ep-1", session_id="sess-1", state=state, reward=1.0, step=3)
    assert shown in badge(turn, TurnStatus(episode=row)).plain
    assert f"{said}: cut off at services.agent.max_tokens" in turn_text(turn)


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (("aux_call",), "a call that the agent made beside its answer"),
        (
            ("truncated", "aux_call", "aux_call"),
            "cut off at services.agent.max_tokens, a continuation that the agent asked for",
        ),
        (
            ("client_left", "aux_call"),
            "broken off before its end, a continuation that the agent asked for",
        ),
        (("aux_call", "stale"), f"{reason_text('aux_call')}, {reason_text('stale')}"),
    ],
)
def test_a_call_of_the_agent_after_a_cut_is_a_continuation(
    reasons: tuple[str, ...], said: str
) -> None:
    assert reasons_text(reasons) == said
