"""What is said while the agent speaks waits for the end of the turn, and is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fakes.backend import FakeBackend, FakeClock
from fakes.roles import eventually

from hermes_tui.core.controller import Controller
from hermes_tui.core.models import ViewMemory


@pytest.fixture
def backend() -> FakeBackend:
    made = FakeBackend(FakeClock())
    made.add_session("s", created_at=1)
    return made


@asynccontextmanager
async def opened(backend: FakeBackend) -> AsyncIterator[Controller]:
    controller = Controller(backend, clock=backend.clock)
    await controller.start(lambda _: None)
    watching = asyncio.create_task(controller.watch())
    try:
        yield controller
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def said(backend: FakeBackend) -> list[object]:
    return [call[2] for call in backend.calls if call[0] == "turn"]


def waiting(controller: Controller) -> list[str]:
    return [message.text for message in controller.outbox.of(controller.state.selected)]


async def test_row_6_a_message_waits_and_goes_when_the_turn_has_ended(
    backend: FakeBackend,
) -> None:
    backend.hold = 1
    async with opened(backend) as controller:
        await controller.open_session("s")
        sending = asyncio.create_task(controller.send("one"))
        await eventually(lambda: backend.flights)
        assert await controller.send("two")
        assert await controller.send("three")
        assert waiting(controller) == ["two", "three"]
        two, three = controller.outbox.of("s")
        assert controller.outbox.edit(two.message_id, "two, rather")
        assert controller.outbox.remove(three.message_id) == "three"
        assert not controller.outbox.edit(three.message_id, "gone")
        backend.gate.set()
        await sending
        await eventually(lambda: said(backend) == ["one", "two, rather"])
        assert waiting(controller) == []


async def test_row_6_a_message_goes_after_an_interrupt(backend: FakeBackend) -> None:
    backend.hold = 1
    async with opened(backend) as controller:
        await controller.open_session("s")
        sending = asyncio.create_task(controller.send("one"))
        await eventually(lambda: backend.flights)
        await controller.send("two")
        await controller.interrupt()
        await sending
        await eventually(lambda: said(backend) == ["one", "two"])


async def test_row_6_a_failed_turn_keeps_what_waits(backend: FakeBackend) -> None:
    async with opened(backend) as controller:
        await controller.open_session("s")
        controller.turns.begin("s", "one")
        await controller.send("two")
        (turn,) = controller.state.turns["s"]
        backend.refuse = "the agent is gone"
        await controller.turns.run(turn)
        assert turn.state == "failed"
        assert (waiting(controller), controller.outbox.is_held("s")) == (["two"], True)
        await controller.send("three")
        await eventually(lambda: said(backend)[-2:] == ["two", "three"])


async def test_row_17_what_was_open_and_queued_is_found_again(backend: FakeBackend) -> None:
    backend.hold = 1
    async with opened(backend) as controller:
        await controller.open_session("s")
        sending = asyncio.create_task(controller.send("one"))
        await eventually(lambda: backend.flights)
        await controller.send("two")
        controller.remember(draft="half a sen")
        sending.cancel()
    assert backend.memory == ViewMemory(session_id="s", queued=("two",), draft="half a sen")
    async with opened(backend) as controller:
        assert await controller.reopen() == "half a sen"
        assert controller.state.selected == "s"
        assert (waiting(controller), controller.outbox.is_held("s")) == (["two"], True)


async def test_row_17_an_ended_session_is_not_opened_again(backend: FakeBackend) -> None:
    backend.add_session("t", created_at=2, ended=True)
    backend.memory = ViewMemory(session_id="t")
    async with opened(backend) as controller:
        await controller.reopen()
        assert controller.state.selected == ""
