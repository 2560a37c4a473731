"""Several views on one stack: each tells the same, whoever sent the turn and whoever answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fakes.backend import FakeBackend, FakeClock, make_tokens
from fakes.roles import eventually

from hermes_tui.core.changes import Change, ChatTurn, Notice
from hermes_tui.core.controller import Controller
from hermes_tui.core.models import StepRow, TrainerRow
from hermes_tui_common.errors import ServiceError
from hermes_tui_services.api.events import ApprovalRequested, TurnEvent

REPLY = "Hello Ada, it's a pleasure to meet you!"
QUESTION = ApprovalRequested(
    approval_id="a1", description="deletes", command="rm x", choices=("once", "deny")
)


class View:
    """One controller, and what it said."""

    def __init__(self, backend: FakeBackend) -> None:
        self.controller = Controller(backend, clock=backend.clock)
        self.state = self.controller.state
        self.notices: list[str] = []
        self.controller.notifier.listen(self._hear)

    def _hear(self, change: Change) -> None:
        if isinstance(change, Notice):
            self.notices.append(change.text)

    def turns(self, session_id: str = "s") -> list[ChatTurn]:
        return self.state.turns.get(session_id, [])

    def last(self, session_id: str = "s") -> ChatTurn:
        return self.turns(session_id)[-1]


@pytest.fixture
def backend() -> FakeBackend:
    return make_backend()


def make_backend(*, training: bool = True) -> FakeBackend:
    backend = FakeBackend(FakeClock(), training=training)
    backend.add_session("s", created_at=1)
    return backend


@asynccontextmanager
async def view(backend: FakeBackend) -> AsyncIterator[View]:
    """Attach a view; it leaves at the end, as one whose terminal is closed."""
    one = View(backend)
    num_before = backend.num_listening
    await one.controller.start(lambda stage: None)
    watching = asyncio.create_task(one.controller.watch())
    if backend.training:
        await eventually(lambda: backend.num_listening > num_before)
    try:
        yield one
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_turn_of_one_view_streams_in_another(backend: FakeBackend) -> None:
    backend.hold = 3
    async with view(backend) as sender, view(backend) as other:
        await other.controller.open_session("s")
        sender.state.selected = "s"
        sending = asyncio.create_task(sender.controller.send("hi there"))
        await eventually(lambda: other.turns() and other.last().text == "Hello Ada,")
        turn = other.last()
        assert (turn.user_text, turn.state, turn.source) == ("hi there", "running", "joined")
        assert (other.controller.refusal(), other.controller.queues) == ("", True)
        backend.gate.set()
        await sending
        await eventually(lambda: turn.state == "completed" and turn.episode_id)
        assert (turn.text, turn.num_tokens) == (REPLY, 11)
        assert [len(one.turns()) for one in (sender, other)] == [1, 1]
        await other.controller.rewards.score(1.0)
        assert ("set_reward", turn.episode_id, 1.0) in backend.calls
    # Nobody joined a turn of its own.
    assert [call[0] for call in backend.calls].count("join") == 1


async def test_who_attaches_finds_the_turn_that_runs_and_its_question(
    backend: FakeBackend,
) -> None:
    backend.turn_events, backend.hold = [QUESTION], 0
    backend.take_off("s", "delete it")
    async with view(backend) as late:
        await eventually(lambda: late.state.approval_queue)
        assert late.last().user_text == "delete it"
        assert late.state.approval_queue[0].question == "deletes\n\nrm x"
        await late.controller.approvals.answer(late.state.approval_queue[0], "once")
        backend.gate.set()
        await eventually(lambda: late.last().state == "completed")
    assert ("approve", "s", "a1", "once") in backend.calls


async def test_a_question_that_was_answered_elsewhere_is_dropped(backend: FakeBackend) -> None:
    backend.turn_events, backend.hold = [QUESTION], 0
    backend.take_off("s", "delete it")
    async with view(backend) as one, view(backend) as other:
        await eventually(lambda: one.state.pending_approvals and other.state.pending_approvals)
        mine, theirs = one.state.approval_queue[0], other.state.approval_queue[0]
        await one.controller.approvals.answer(mine, "deny")
        await eventually(lambda: not other.state.pending_approvals)
        assert other.notices == ["answered in another view: deny"]
        assert one.notices == []
        await other.controller.approvals.answer(theirs, "once")  # its dialog was open still
        assert other.notices[-1].startswith("The question was answered already")
        assert not other.state.pending_approvals
        async with view(backend) as late:
            await eventually(lambda: late.turns())
            await eventually(lambda: late.last().run_id)
            assert not late.state.pending_approvals
        backend.gate.set()


async def test_an_answer_that_does_not_arrive_leaves_the_question_open(
    backend: FakeBackend,
) -> None:
    backend.turn_events, backend.hold = [QUESTION], 0
    backend.take_off("s", "delete it")
    async with view(backend) as one:
        await eventually(lambda: one.state.pending_approvals)
        backend.refuse = "the worker is down"
        await one.controller.approvals.answer(one.state.approval_queue[0], "once")
        assert one.notices == ["the worker is down"]
        assert [ask.approval_id for ask in one.state.approval_queue] == ["a1"]
        backend.gate.set()


async def test_a_view_that_leaves_ends_no_turn_that_it_joined(backend: FakeBackend) -> None:
    backend.hold = 2
    flight = backend.take_off("s", "hi")
    async with view(backend) as one:
        await eventually(lambda: one.turns() and one.last().text == "Hello Ada")
    assert not flight.interrupted
    assert "s" in backend.flights
    backend.gate.set()
    assert flight.task
    await flight.task


async def test_a_joined_turn_can_be_interrupted(backend: FakeBackend) -> None:
    backend.hold = 2
    backend.take_off("s", "hi")
    async with view(backend) as one:
        await one.controller.open_session("s")
        await eventually(lambda: one.turns() and one.last().parts)
        await one.controller.interrupt()
        await eventually(lambda: one.last().state == "interrupted")
        assert one.last().text == "Hello Ada"


class Breaking(FakeBackend):
    """Its first streams break off after some updates; the turn itself goes on."""

    breaks = 1

    async def turn(self, session_id: str, text: str) -> AsyncIterator[TurnEvent]:
        seen = 0
        async for update in super().turn(session_id, text):
            yield update
            seen += 1
            if self.breaks and seen == 3:
                self.breaks -= 1
                raise ServiceError("the gateway is gone")


async def test_a_turn_whose_stream_broke_off_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hermes_tui.core.turns.RETRY_S", 0.01)
    backend = Breaking(FakeClock())
    backend.add_session("s", created_at=1)
    backend.hold = 5
    async with view(backend) as one:
        one.state.selected = "s"
        sending = asyncio.create_task(one.controller.send("hi"))
        await eventually(lambda: ("join", "s") in backend.calls)
        await eventually(lambda: one.last().text == "Hello Ada, it's")
        assert one.last().state == "running"
        backend.gate.set()
        await sending
        assert (one.last().state, one.last().text) == ("completed", REPLY)
        assert len(one.turns()) == 1


async def test_a_turn_that_ended_while_it_was_out_of_reach_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hermes_tui.core.turns.RETRY_S", 0.01)
    backend = Breaking(FakeClock())
    backend.add_session("s", created_at=1)
    async with view(backend) as one:  # its end, too, was told to nobody
        one.state.selected = "s"
        await one.controller.send("hi")
        assert one.last().error == "the connection to the turn broke, and it has ended since"


async def test_what_was_read_of_a_turn_goes_when_it_is_joined(backend: FakeBackend) -> None:
    backend.add_episode("s", "before", "Yes.")
    backend.hold = 4
    backend.take_off("s", "now")
    async with view(backend) as one:
        await one.controller.open_session("s")
        await eventually(lambda: len(one.turns()) == 2)
        assert [turn.user_text for turn in one.turns()] == ["before", "now"]
        backend.gate.set()
        await eventually(lambda: one.last().state == "completed" and one.last().num_tokens == 11)
        assert [turn.source for turn in one.turns()] == ["read", "joined"]


async def test_words_of_programs_that_no_view_sent_are_read_when_they_are_recorded(
    backend: FakeBackend,
) -> None:
    async with view(backend) as one:
        await one.controller.open_session("s")
        episode_id, completion_id = backend._open_episode("s", "by another program")
        await eventually(lambda: one.state.latest("s"))
        assert one.turns() == []  # it speaks still, and not to the agent service
        backend._record(episode_id, completion_id, "by another program", make_tokens())
        await eventually(lambda: one.turns())
        assert (one.last().user_text, one.last().text) == ("by another program", REPLY)
        assert one.last().source == "read"


async def test_what_one_view_ends_or_the_trainer_forgets_goes_in_all(backend: FakeBackend) -> None:
    backend.add_session("old", created_at=0)
    async with view(backend) as one, view(backend) as other:
        await one.controller.open_session("s")
        await one.controller.end_session(one.controller.state.selected)
        await eventually(lambda: other.state.sessions["s"].ended)
        del backend.session_rows["old"]
        backend.emit("session.forgotten", session_id="old")
        await eventually(lambda: "old" not in other.state.sessions)


async def test_without_a_trainer_turns_and_histories_come_from_the_agent_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hermes_tui.core.turn_discovery.LOOK_S", 0.02)
    backend = make_backend(training=False)
    flight = backend.take_off("s", "before")
    assert flight.task
    await flight.task
    async with view(backend) as one:
        await eventually(lambda: one.state.title("s") == "before")
        await one.controller.open_session("s")
        assert [(turn.user_text, turn.text) for turn in one.turns()] == [("before", REPLY)]
        backend.hold = 2
        backend.take_off("s", "elsewhere")
        await eventually(lambda: one.last().text == "Hello Ada")
        assert (one.last().user_text, one.last().state) == ("elsewhere", "running")
        backend.gate.set()
        await eventually(lambda: one.last().state == "completed")
        # One that nobody noticed while it ran is read afterwards.
        missed = backend.take_off("s", "short")
        assert missed.task
        await missed.task
        await eventually(lambda: one.last().user_text == "short")
        assert len(one.turns()) == 3
        del backend.session_rows["s"]  # closed by another view
        await eventually(lambda: one.state.sessions["s"].ended)
        assert one.controller.refusal() == "this session has ended: start a new one"


async def test_sessions_of_others_that_the_trainer_does_not_know_are_left_alone(
    backend: FakeBackend,
) -> None:
    backend.hold = 0
    backend.training = False
    backend.take_off("agent:m:u", "hi")
    backend.training = True
    backend.take_off("s", "known")
    async with view(backend) as one:
        await eventually(lambda: one.turns())
        assert ("join", "agent:m:u") not in backend.calls
        assert "agent:m:u" not in one.state.sessions
        backend.flights["agent:m:u"].task.cancel()  # type: ignore[union-attr]
        backend.gate.set()


async def test_what_happens_between_reading_and_following_is_not_missed(
    backend: FakeBackend,
) -> None:
    episode_id = backend.add_episode("s", "hi", "Hello.")
    one = View(backend)
    await one.controller.start(lambda stage: None)
    backend._left_at.clear()  # what is told from here on is told to those who listen already
    backend.set_state(episode_id, "scored", reward=1.0)
    watching = asyncio.create_task(one.controller.watch())
    await eventually(lambda: [row.reward for row in one.state.episodes_of("s")] == [1.0])
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_trainer_that_is_away_is_told_once(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_tui.core.sync.RETRY_S", 0.005)
    tries = 0

    async def steps(after: int) -> list[StepRow]:
        nonlocal tries
        tries += 1
        raise ServiceError("the trainer does not answer")

    async with view(backend) as one:
        monkeypatch.setattr(backend, "steps", steps)
        backend.emit("step.started")
        await eventually(lambda: tries >= 3)
        assert one.notices == ["the trainer does not answer"]


async def test_a_step_that_came_to_nothing_is_over_once_the_trainer_waits(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_tui.core.sync.BUSY_S", 0.005)
    async with view(backend) as one:
        backend.trainer_row = replace(backend.trainer_row, state="training")
        backend.emit("step.started")
        await eventually(lambda: one.state.trainer.busy)
        assert one.state.step_started_at is not None
        backend.trainer_row = replace(backend.trainer_row, state="waiting")  # no event says so
        await eventually(lambda: not one.state.trainer.busy)
        assert one.state.step_started_at is None


async def test_a_step_that_began_while_the_trainer_was_read_is_not_taken_for_one_that_ended(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_before = asyncio.Event()

    async def trainer() -> TrainerRow:
        row = backend.trainer_row
        await read_before.wait()
        return row

    async with view(backend) as one:
        monkeypatch.setattr(backend, "trainer", trainer)
        reading = asyncio.create_task(one.controller.rows.read_trainer())
        await asyncio.sleep(0)  # it has its answer, from before the step
        backend.trainer_row = replace(backend.trainer_row, state="training")
        backend.emit("step.started")
        await eventually(lambda: one.state.step_started_at is not None)
        read_before.set()
        await reading
        assert one.state.step_started_at is not None
