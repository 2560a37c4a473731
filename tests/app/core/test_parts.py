"""The controller's parts, each made alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from fakes.backend import FakeBackend, FakeClock

from hermes_tui.core.approvals import Approvals
from hermes_tui.core.changes import Change, Notice, PendingApproval
from hermes_tui.core.context import ViewContext
from hermes_tui.core.log_reader import LogReader
from hermes_tui.core.rewards import Rewards
from hermes_tui.core.row_reader import RowReader
from hermes_tui.core.turn_history import TurnHistory
from hermes_tui_common.errors import ApiError, HermesTuiError, RefusedError
from hermes_tui_services.api.events import ApprovalRequested
from hermes_tui_training.api.config import RewardConfig, TrainingConfig


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backend(clock: FakeClock) -> FakeBackend:
    return FakeBackend(clock)


@pytest.fixture
def context(backend: FakeBackend, clock: FakeClock) -> ViewContext:
    return ViewContext(backend=backend, clock=clock)


def heard(context: ViewContext) -> list[Change]:
    changes: list[Change] = []
    context.notifier.listen(changes.append)
    return changes


def notices(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.text, change.severity) for change in changes if isinstance(change, Notice)]


async def test_an_error_of_the_stack_becomes_a_notice(context: ViewContext) -> None:
    async def fail() -> None:
        raise HermesTuiError("the trainer is gone")

    changes = heard(context)
    assert not await context.notifier.attempt(fail())
    assert notices(changes) == [("the trainer is gone", "error")]
    context.notifier.unlisten(changes.append)
    context.notifier.say("nobody hears this")
    assert len(changes) == 1


async def test_rewards_can_be_undone_until_the_grace_is_over(
    context: ViewContext, backend: FakeBackend, clock: FakeClock
) -> None:
    backend.add_session("s", created_at=1)
    episode_id = backend.add_episode("s", "hi", "Hello.")
    rows = RowReader(context)
    await rows.read_all()
    context.state.selected = "s"
    context.notifier.action_label = {"score_undo": "u"}.__getitem__
    rewards = Rewards(context, rows, TrainingConfig(reward=RewardConfig(grace_s=3.0)))
    changes = heard(context)
    await rewards.score(0.5)
    scored = context.state.episode(episode_id)
    assert scored is not None
    assert (scored.state, scored.reward) == ("scored", 0.5)
    assert [text for text, _ in notices(changes)] == [
        "episode 1 of “chat”: scored +0.5 · trains in 3 s · u takes it back"
    ]
    clock.now += 1
    assert rewards.seconds_to_undo(scored) == 2.0
    clock.now += 5
    assert rewards.seconds_to_undo(scored) == 0.0
    await rewards.undo()
    assert backend.details[episode_id].row.reward is None


async def test_a_reward_outside_the_range_is_refused(
    context: ViewContext, backend: FakeBackend
) -> None:
    backend.add_session("s", created_at=1)
    backend.add_episode("s", "hi", "Hello.")
    rows = RowReader(context)
    await rows.read_all()
    context.state.selected = "s"
    changes = heard(context)
    training = TrainingConfig(reward=RewardConfig(range=(0.0, 1.0)))
    await Rewards(context, rows, training).score(-1.0)
    assert notices(changes) == [("a reward lies between +0.0 and +1.0; -1.0 does not", "warning")]
    assert not [call for call in backend.calls if call[0] == "set_reward"]


async def test_an_answer_that_did_not_arrive_is_an_error(
    context: ViewContext, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(session_id: str, approval_id: str, choice: str) -> None:
        raise HermesTuiError("the agent gateway is gone")

    approvals = Approvals(context)
    changes = heard(context)
    event = ApprovalRequested(approval_id="a", description="rm x", choices=("once", "deny"))
    approvals.add("s", event)
    (approval,) = context.state.approval_queue
    monkeypatch.setattr(backend, "approve", unreachable)
    await approvals.answer(approval, "once")
    assert context.state.approval_queue == []  # no turn runs that could wait for it
    assert [change for change in changes if isinstance(change, PendingApproval)] == [approval]
    assert notices(changes) == [("the agent gateway is gone", "error")]


async def test_an_approval_expires(context: ViewContext, clock: FakeClock) -> None:
    approvals = Approvals(context)
    event = ApprovalRequested(
        approval_id="a", description="rm x", choices=("deny",), expires_at=clock.now + 10
    )
    approvals.add("s", event)
    approvals.drop_expired()
    assert len(context.state.approval_queue) == 1
    clock.now += 10
    approvals.drop_expired()
    assert context.state.approval_queue == []


async def test_history_reads_an_episode_once(context: ViewContext, backend: FakeBackend) -> None:
    backend.add_session("s", created_at=1)
    backend.add_episode("s", "hi", "Hello.")
    await RowReader(context).read_all()
    history = TurnHistory(context)
    (turn,) = await history.read_session("s")
    assert (turn.user_text, turn.text, turn.state) == ("hi", "Hello.", "completed")
    assert await history.read_session("s") == []


async def test_the_log_reader_stops_at_an_unknown_process(
    context: ViewContext, backend: FakeBackend
) -> None:
    backend.log_error = RefusedError(ApiError(404, "There is no process 'x'."))
    changes = heard(context)
    await LogReader(context).follow("x")
    assert [severity for _, severity in notices(changes)] == ["error"]
    assert context.state.log.process == "x"


async def test_the_log_reader_takes_each_new_line(
    context: ViewContext, backend: FakeBackend
) -> None:
    backend.write_log("router", "one")
    grew = asyncio.Event()
    context.notifier.listen(lambda _: grew.set())
    following = asyncio.create_task(LogReader(context).follow("router"))
    async with asyncio.timeout(5):
        await grew.wait()
        grew.clear()
        backend.write_log("router", "two")
        await grew.wait()
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    assert [line for _, line in context.state.log.since(0)] == ["one", "two"]
