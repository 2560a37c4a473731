"""What a heartbeat says of its process; the test decides when one is due."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from fakes.beats import heartbeat_of_the_test

from hermes_tui_common.heartbeat import MAX_TASKS, Heartbeat, TaskBeat, advance, working

DEADLINE_S = 20.0


@pytest.fixture
def heartbeat() -> Iterator[Heartbeat]:
    with heartbeat_of_the_test() as made:
        yield made


def test_a_blocked_event_loop_is_counted_in_beats(heartbeat: Heartbeat) -> None:
    blocked, go_on, ticked = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(DEADLINE_S)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        heartbeat.watch(loop)
        assert heartbeat.beat().loop_silent_s == 0.0  # asks the loop for a sign
        loop.call_soon(block)
        await asyncio.sleep(0)
        while not ticked.is_set():  # noqa: ASYNC110  # from another thread
            await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert blocked.wait(DEADLINE_S)
    heartbeat.beat()  # the sign that came before the block; asks again
    assert [heartbeat.beat().loop_silent_s for _ in range(3)] == [1.0, 2.0, 3.0]
    go_on.set()
    for _ in range(int(DEADLINE_S / 0.01)):
        if heartbeat.beat().loop_silent_s == 0.0:
            break
        threading.Event().wait(0.01)
    assert heartbeat.beat().loop_silent_s <= 1.0
    ticked.set()
    thread.join(DEADLINE_S)


def test_work_is_silent_from_the_beat_at_which_it_stopped_getting_on(heartbeat: Heartbeat) -> None:
    with working("training version 5"):
        assert heartbeat.beat().tasks == ()  # it has only just begun
        advance("batch 1 of 8")
        (task,) = heartbeat.beat().tasks
        assert task == TaskBeat(
            task="training version 5", progress="batch 1 of 8", busy_s=2.0, silent_s=0.0
        )
        assert [heartbeat.beat().tasks[0].silent_s for _ in range(3)] == [1.0, 2.0, 3.0]
        advance()
        (task,) = heartbeat.beat().tasks
        assert (task.progress, task.busy_s, task.silent_s) == ("batch 1 of 8", 6.0, 0.0)
    assert heartbeat.beat().tasks == ()


def test_short_work_over_and_over_is_never_named(heartbeat: Heartbeat) -> None:
    for _ in range(5):
        with working("one step of the engine"):
            assert heartbeat.beat().tasks == ()


def test_the_most_silent_are_named_first_and_not_too_many(heartbeat: Heartbeat) -> None:
    def work(number: int) -> Iterator[None]:
        with working(f"task {number}"):
            yield

    running = [work(number) for number in range(MAX_TASKS + 3)]
    for one in running:
        next(one)
        heartbeat.beat()
    named = heartbeat.beat().tasks
    assert [task.task for task in named] == [f"task {number}" for number in range(MAX_TASKS)]
    for one in running:
        assert next(one, None) is None


def test_advance_without_a_task_does_nothing() -> None:
    advance("nowhere")
    with heartbeat_of_the_test() as heartbeat:
        heartbeat.beat()
        assert heartbeat.beat().tasks == ()
