"""Two screens on one stack: what one sends and answers, the other shows."""

from __future__ import annotations

from pathlib import Path

from fakes.backend import FakeBackend
from fakes.screen import (
    badges,
    main,
    make_app,
    notices,
    prompt,
    running,
    say,
    sessions,
    until,
)
from textual.pilot import Pilot

from hermes_tui.core.controller import Controller
from hermes_tui.tui.app import HermesTui, ScreenSettings
from hermes_tui.tui.screens.approval import ApprovalScreen
from hermes_tui.tui.widgets.approval_bar import ApprovalBar
from hermes_tui.tui.widgets.queue_bar import QueueBar
from hermes_tui.tui.widgets.turn_view import TurnView
from hermes_tui_services.api.events import ApprovalRequested

COMMAND = ApprovalRequested(
    approval_id="a1", description="deletes files", command="rm x", choices=("once", "deny")
)


def second(backend: FakeBackend, folder: Path) -> HermesTui:
    """Return another app on the same stack."""
    controller = Controller(backend, clock=backend.clock)
    return HermesTui(controller, ScreenSettings(folder=folder))


def said(app: HermesTui) -> list[str]:
    """Return what the person said in each turn that is drawn."""
    return [str(view.query_one(".said").render()) for view in main(app).query(TurnView)]


async def open_first(pilot: Pilot[None], app: HermesTui) -> None:
    """Open the session that there is."""
    session_id = next(iter(app.controller.state.sessions))
    await app.controller.open_session(session_id)
    await until(pilot, lambda: app.controller.state.selected == session_id)


async def test_a_message_sent_on_one_screen_streams_on_the_other(tmp_path: Path) -> None:
    one, backend = make_app(tmp_path)
    backend.add_session("sess-1", created_at=1)
    backend.hold = 3
    two = second(backend, tmp_path)
    async with running(one) as first, running(two) as other:
        await open_first(first, one)
        await open_first(other, two)
        await say(first, "hi there")
        await until(other, lambda: badges(two) == ["◌ speaking"])
        assert said(two) == ["hi there"]
        await until(other, lambda: "speaks" in str(sessions(two).rows[0].right))
        await say(other, "me too")
        waiting = main(two).query_one(QueueBar)
        await until(other, lambda: waiting.lines == ("◌ queued: me too",))
        await other.press("up", "escape")  # taken back to be edited, and the turn interrupted
        await until(other, lambda: prompt(two).text == "me too")
        await until(first, lambda: "interrupted" in badges(one)[0])
        await until(other, lambda: "interrupted" in badges(two)[0])
        await other.press("f3")
        await until(first, lambda: "scored +1.0" in badges(one)[0])


async def test_a_question_is_answered_on_either_screen(tmp_path: Path) -> None:
    one, backend = make_app(tmp_path)
    backend.add_session("sess-1", created_at=1)
    backend.turn_events, backend.hold = [COMMAND], 0
    backend.take_off("sess-1", "clean up")  # its view was lost before the question was answered
    two = second(backend, tmp_path)
    async with running(one) as first, running(two) as other:
        for pilot, app in ((first, one), (other, two)):
            bar = main(app).query_one(ApprovalBar)
            await until(pilot, lambda bar=bar: bar.display)
            assert "the agent asks: deletes files" in str(bar.render())
            assert "ctrl+o answers · in “clean up”" in str(bar.render())
            assert "asks" in str(sessions(app).rows[0].right)
        await other.press("ctrl+o")
        await until(other, lambda: isinstance(two.screen, ApprovalScreen))
        await first.press("ctrl+o")
        await until(first, lambda: isinstance(one.screen, ApprovalScreen))
        await first.press("o")
        await until(other, lambda: not isinstance(two.screen, ApprovalScreen))
        await until(other, lambda: "answered in another view: once" in notices(two))
        assert not main(two).query_one(ApprovalBar).display
        assert [call for call in backend.calls if call[0] == "approve"] == [
            ("approve", "sess-1", "a1", "once")
        ]
        backend.gate.set()
        await until(first, lambda: not backend.flights)


async def test_siblings_say_which_they_are(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.session_rows.clear()
    await backend.start_siblings("compare", 3)
    backend.add_session("alone", created_at=1)
    async with running(app) as pilot:

        def shown() -> list[str]:
            return sorted(str(row.right) for row in sessions(app).rows)

        assert shown() == ["16m", "×3 0 judged now"]  # siblings are one row
        await pilot.press("escape", "s", "home", "enter")
        await until(pilot, lambda: shown() == ["1/3 now", "16m", "2/3 now", "3/3 now"])


async def test_a_roomy_list_has_ages_and_says_how_far_behind(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.add_session("old", created_at=1, ended=True)
    backend.add_episode("old", "Hello?", "Hi", state="unscored", version=4)
    backend.clock.now += 7_300
    async with running(app, (200, 60)):
        assert [str(row.right).split() for row in sessions(app).rows[-2:]] == [
            ["ended", "2h"],
            ["v4", "3", "behind"],
        ]


async def test_a_restart_is_reported_when_it_begins_and_when_it_is_done(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await app.controller.restart("worker-0")
        await until(pilot, lambda: "worker-0 is ready again" in notices(app))
        assert notices(app) == ["restarting worker-0 …", "worker-0 is ready again"]
