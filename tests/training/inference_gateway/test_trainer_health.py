"""What the inference gateway says of itself to anybody, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_tui_training.api.wire import LearnerPresence
from hermes_tui_training.inference_gateway.routes.status import problem_of

FULL = "the disk is full: 12 MB free, 59 MB needed in /home/ada/run"


@pytest.mark.parametrize(
    ("trainer", "learner_pid", "said"),
    [
        ({}, 7, None),
        ({"paused": True, "reason": "paused by hand"}, 7, None),
        ({}, None, "the learner is not there: scores are kept, and trained once it is back"),
        ({"reason": FULL}, 7, "training waits: the disk is full"),
        (
            {"policy_version": 3, "publish_error": "shapes differ"},
            7,
            "version 3 is not served: shapes differ",
        ),
        ({"paused": True, "failed_attempts": 5}, 7, "training is paused after 5 failed steps"),
    ],
)
def test_one_sentence_names_the_part(
    trainer: dict[str, Any], learner_pid: int | None, said: str | None
) -> None:
    learner = LearnerPresence(reachable=learner_pid is not None, pid=learner_pid)
    assert problem_of(trainer, learner) == said
