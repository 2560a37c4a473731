"""Two views on one real stack without a trainer: turns, questions and histories are shared."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fakes.roles import eventually
from fakes.served import Served
from fakes.upstream import Upstream, call, running, say

from hermes_tui.config.settings import Config, load_config
from hermes_tui.core.changes import Change, Notice
from hermes_tui.core.controller import Controller
from hermes_tui.stack_client.remote import make_controller

TURN_S = 20.0


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with running() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def config(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    run_dir = tmp_path_factory.mktemp("views")
    words = [
        f'run.dir="{run_dir}"',
        f'upstream.base_url="{upstream.url}"',
        "training.enabled=false",
        'services.agent.enabled_toolsets=["terminal"]',
    ]
    program = [sys.executable, "-P", "-m", "hermes_tui.cli.main", "--serve"]
    with Served([*program, *words], run_dir) as served:
        served.wait_for("ready")
        yield load_config(words, environ={}, cwd=Path(run_dir))


@asynccontextmanager
async def view(config: Config) -> AsyncIterator[Controller]:
    """Attach a view; it leaves at the end, as one whose terminal is closed."""
    controller = make_controller(config)
    await controller.start(lambda stage: None)
    watching = asyncio.create_task(controller.watch())
    try:
        yield controller
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await controller.close()


async def test_a_question_survives_the_view_that_caused_it(
    config: Config, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_tui.core.turn_discovery.LOOK_S", 0.1)
    replies = iter([call("terminal", {"command": "rm -rf nothing"}), say("Gone.")])
    upstream.script = lambda asked: next(replies)
    notices: list[str] = []

    def hear(change: Change) -> None:
        if isinstance(change, Notice):
            notices.append(change.text)

    async with view(config) as lost:
        sending = asyncio.create_task(lost.send("clean up"))
        await eventually(lambda: lost.state.pending_approvals, TURN_S)
        sending.cancel()  # its line was cut
    async with view(config) as one, view(config) as two:
        two.notifier.listen(hear)
        await eventually(lambda: all(view.state.pending_approvals for view in (one, two)), TURN_S)
        question = one.state.approval_queue[0]
        assert "rm -rf nothing" in question.question
        session_id = question.session_id
        assert one.state.title(session_id) == "clean up"
        theirs = two.state.approval_queue[0]
        await one.approvals.answer(question, "once")
        await eventually(lambda: not two.state.pending_approvals)
        await two.approvals.answer(theirs, "deny")
        assert notices == [
            "answered in another view: once",
            "The question was answered already: once.",
        ]
        for controller in (one, two):
            turn = controller.state.turns[session_id][-1]
            await eventually(lambda turn=turn: turn.state == "completed", TURN_S)
            assert turn.text.strip() == "Gone."
    async with view(config) as late:
        await eventually(lambda: late.state.title(session_id) == "clean up")
        await late.open_session(session_id)
        (turn,) = late.state.turns[session_id]
        assert (turn.user_text, turn.text, turn.state) == ("clean up", "Gone.", "completed")
        assert [type(part).__name__ for part in turn.parts] == ["ToolPart", "TextPart"]


async def test_any_view_may_interrupt_and_go_on(
    config: Config, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_tui.core.turn_discovery.LOOK_S", 0.1)
    upstream.script = lambda asked: say("So ", "far.", hang=True)
    async with view(config) as one, view(config) as two:
        sending = asyncio.create_task(one.send("go on"))
        await eventually(lambda: one.state.running_turn(one.state.selected), TURN_S)
        session_id = one.state.selected
        await eventually(lambda: two.state.running_turn(session_id), TURN_S)
        await two.open_session(session_id)
        turn = two.state.turns[session_id][-1]
        await eventually(lambda: turn.text == "So far.", TURN_S)
        await two.interrupt()
        await sending
        await eventually(lambda: turn.state == "interrupted", TURN_S)
        assert one.state.turns[session_id][-1].state == "interrupted"
        upstream.script = lambda asked: say("Again.")
        await two.send("and again")
        await eventually(lambda: len(one.state.turns[session_id]) == 2, TURN_S)
        await eventually(lambda: one.state.turns[session_id][-1].text == "Again.", TURN_S)
        assert [turn.user_text for turn in one.state.turns[session_id]] == ["go on", "and again"]
