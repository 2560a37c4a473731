"""What a score is for, what takes it back, and what goes with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fakes.backend import FakeBackend, FakeClock
from fakes.roles import eventually

from hermes_tui.core.controller import Controller
from hermes_tui.core.reward_text import parse_reward, reward_text
from hermes_tui_training.api.config import TrainingConfig


@pytest.fixture
def backend() -> FakeBackend:
    made = FakeBackend(FakeClock())
    made.add_session("s", created_at=1)
    return made


async def opened(backend: FakeBackend, episode_id: str = "") -> Controller:
    controller = Controller(backend, clock=backend.clock, training=TrainingConfig(max_staleness=4))
    labels = {"score_good": "F3", "score_undo": "u"}
    controller.notifier.action_label = lambda action_id: labels.get(action_id, action_id)
    await controller.start(lambda _: None)
    await controller.open_session("s", episode_id)
    return controller


def scores(backend: FakeBackend) -> list[tuple[object, ...]]:
    return [call for call in backend.calls if str(call[0]).endswith("set_reward")]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [("0.35", "+0.35"), ("1", "+1.0"), ("-0,3", "-0.3"), ("−0.25", "-0.25"), ("0", "+0.0")],
)
def test_row_3_a_number_reads_as_typed(typed: str, shown: str) -> None:
    assert reward_text(parse_reward(typed)) == shown


@pytest.mark.parametrize("typed", ["nan", "inf", "", "x"])
def test_row_3_what_is_no_number_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_reward(typed)


async def test_row_1_the_same_key_takes_it_back_until_it_is_claimed(backend: FakeBackend) -> None:
    backend.add_episode("s", "hi", "Hello.")
    controller = await opened(backend)
    assert await controller.rewards.toggle(1.0, "score_good")
    row = controller.state.episode("ep-1")
    assert row
    line = "scored +1.0 · trains in 6 s · F3 again or u takes it back"
    assert controller.rewards.countdown(row) == line
    assert isinstance(backend.clock, FakeClock)
    backend.clock.now += 60
    assert controller.rewards.countdown(row).startswith("scored +1.0 · trains next · F3")
    assert await controller.rewards.toggle(1.0, "score_good")
    assert scores(backend) == [("set_reward", "ep-1", 1.0), ("unset_reward", "ep-1")]


async def test_row_1_two_quick_presses_are_a_score_and_its_end(backend: FakeBackend) -> None:
    backend.add_episode("s", "hi", "Hello.")
    controller = await opened(backend)
    await asyncio.gather(*(controller.rewards.toggle(1.0, "score_good") for _ in range(2)))
    assert [call[0] for call in scores(backend)] == ["set_reward", "unset_reward"]


async def test_row_4_the_open_episode_is_scored_even_when_another_opens(
    backend: FakeBackend,
) -> None:
    backend.add_episode("s", "hi", "Hello.", state="unscored")
    backend.add_episode("s", "more", "Yes.")
    controller = await opened(backend, "ep-1")
    assert controller.rewards.target.episode == controller.state.episode("ep-1")
    pressed = controller.rewards.toggle(-1.0, "score_bad")
    await controller.open_session("s", "ep-2")
    await pressed
    assert scores(backend) == [("set_reward", "ep-1", -1.0)]


async def test_row_5_what_is_too_old_says_so_before_and_takes_no_score(
    backend: FakeBackend,
) -> None:
    backend.add_episode("s", "hi", "Hello.", version=2)
    controller = await opened(backend)
    target = controller.rewards.target
    assert "sampled by weights that are too old" in target.untrainable
    assert not await controller.rewards.toggle(1.0, "score_good")
    assert scores(backend) == []


async def test_row_5_what_was_lost_says_so(backend: FakeBackend) -> None:
    backend.add_episode("s", "hi", "Hello.")
    detail = backend.details["ep-1"]
    backend.details["ep-1"] = replace(detail, row=replace(detail.row, incomplete=True))
    controller = await opened(backend)
    assert controller.rewards.target.untrainable == "a part of it was lost"


async def test_a_score_is_held_while_its_sentence_is_typed(backend: FakeBackend) -> None:
    backend.add_episode("s", "hi", "Hello.")
    controller = await opened(backend)
    controller.rewards.grace_s = 0.1
    await controller.rewards.score(0.35)
    holding = asyncio.create_task(controller.rewards.hold("ep-1"))
    await eventually(lambda: len(scores(backend)) > 2)
    holding.cancel()
    assert scores(backend)[1] == ("set_reward", "ep-1", None, "")
    assert await controller.rewards.explain("too long")
    row = backend.details["ep-1"].row
    assert (row.reward, row.feedback) == (0.35, "too long")


async def test_a_sentence_that_is_too_long_is_not_sent(backend: FakeBackend) -> None:
    backend.add_episode("s", "hi", "Hello.")
    controller = await opened(backend)
    assert not await controller.rewards.score(1.0, "x" * 1001)
    assert scores(backend) == []
