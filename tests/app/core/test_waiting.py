"""What a scored episode waits for, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hermes_tui.core.models import EpisodeRow, GroupRow, SessionRow, TrainerRow
from hermes_tui.core.state import ViewState
from hermes_tui.core.waiting import when_trained
from hermes_tui.tui.widgets.sessions_pane import explain_row

NOW = 1000.0


def group_of_three(*, scored: int) -> tuple[ViewState, EpisodeRow]:
    """Return three siblings of which the first few are scored, and the first one's episode."""
    view = ViewState(trainer=TrainerRow(state="waiting"))
    for i in range(3):
        name = f"s{i}"
        view.sessions[name] = SessionRow(session_id=name, task_id="compare", group_id="g")
        state, reward = ("scored", 1.0) if i < scored else ("open", None)
        row = EpisodeRow(episode_id=f"e{i}", session_id=name, state=state, reward=reward)
        view.put_episodes([row])
    return view, view.episodes["s0"]["e0"]


def waiting(num_missing: int, seconds: float) -> tuple[GroupRow, ...]:
    """Return the groups that the trainer tells of."""
    return (GroupRow(group_id="g", num_missing=num_missing, ready_at=NOW + seconds),)


@pytest.mark.parametrize(
    ("scored", "trainer", "said"),
    [
        (1, {"groups": waiting(2, 47.2)}, "waits for 2 siblings, at most 48 s more"),
        (2, {"groups": waiting(1, 3.0)}, "waits for 1 sibling, at most 3 s more"),
        (1, {"groups": waiting(2, -1.0)}, "trains next"),
        (1, {}, "waits for the rest of its group"),
        (1, {"num_scored": 1}, "trains next"),
        (3, {}, "trains next"),
        (3, {"batch_size": 4, "num_scored": 1}, "trains with 3 more"),
        (1, {"state": "paused", "groups": waiting(2, 9.0)}, "training is held"),
        (1, {"learner_lost": True, "groups": waiting(2, 9.0)}, "the learner is not there"),
    ],
)
def test_a_scored_sibling_says_what_it_waits_for(
    scored: int, trainer: dict[str, object], said: str
) -> None:
    view, episode = group_of_three(scored=scored)
    view.trainer = replace(view.trainer, **trainer)  # type: ignore[arg-type]
    assert when_trained(view, episode, NOW) == said
    assert explain_row(view, "s0\ne0", NOW) == f"judged, {said}"


def test_a_lone_episode_waits_for_no_siblings() -> None:
    view, _ = group_of_three(scored=1)
    view.sessions["lone"] = SessionRow(session_id="lone", task_id="chat", group_id="g-lone")
    lone = EpisodeRow(episode_id="e", session_id="lone", state="scored", reward=1.0)
    view.put_episodes([lone])
    view.trainer = replace(view.trainer, groups=waiting(2, 48.0))
    assert when_trained(view, lone, NOW) == "trains next"


def test_what_another_model_sampled_waits_for_that_one() -> None:
    view, episode = group_of_three(scored=1)
    view.sessions["s0"] = replace(view.sessions["s0"], sampled_by="one")
    assert when_trained(view, episode, NOW) == "waits until one is served again"
