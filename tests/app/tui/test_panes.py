"""Training, System and Logs: what they say, and what their keys do."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.backend import FakeBackend, make_step
from fakes.screen import (
    NARROW,
    WIDE,
    add_past,
    app_of,
    main,
    make_app,
    notices,
    running,
    stack,
    until,
)
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from hermes_tui.core.log_buffer import MAX_LINES, LogLines
from hermes_tui.core.models import HELD_BY_PERSON, CanaryRow, StepRow
from hermes_tui.core.stack_status import ProcessState, ProcessStatus
from hermes_tui.core.state import ViewState
from hermes_tui.tui.screens.confirm import ConfirmScreen, VersionScreen
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.widgets.canary_text import canaries
from hermes_tui.tui.widgets.logs_pane import LogsPane, LogView, brief
from hermes_tui.tui.widgets.plot import TrendPlot
from hermes_tui.tui.widgets.system_pane import branches
from hermes_tui.tui.widgets.training_text import describe, next_step, waits_for
from hermes_tui.tui.widgets.unread_bar import UnreadBar
from hermes_tui_common.errors import ApiError, HermesTuiError, RefusedError


def text_of(pilot: Pilot[None], place: str) -> str:
    """Return what a Static of the main screen says."""
    return str(main(app_of(pilot)).query_one(place, Static).content)


def log_view(pilot: Pilot[None]) -> LogView:
    """Return the log."""
    return main(app_of(pilot)).query_one(LogView)


def screen_lines(pilot: Pilot[None]) -> list[str]:
    """Return the screen as text."""
    strips = app_of(pilot).screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


# Training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_training_is_whole_in_its_tab(tmp_path: Path, size: tuple[int, int]) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    backend.canary_rows = [
        CanaryRow(policy_version=6, prompt="Who are you?", text="I am Hermes."),
        CanaryRow(policy_version=7, prompt="Who are you?", text="Hermes."),
    ]
    async with running(app, size) as pilot:
        await pilot.press("escape", "l")
        await pilot.pause()
        shown = "\n".join(screen_lines(pilot))
        for word in (
            "reward   +0.50",
            "baseline +0.20",
            "loss     −0.63",
            "kl       0.0031",
            "entropy  2.99",
            "gap      1e−5",
            "stale    0",
        ):
            assert word in shown
        assert "0 of 1 scored" in shown
        assert "−1.92 → −1.71  ▲ +0.21" in shown
        pane = main(app).query_one("#training")
        assert pane.max_scroll_x == 0
        pane.scroll_end(animate=False)
        await pilot.pause()
        assert "I am Hermes." in "\n".join(screen_lines(pilot))


async def test_plots_draw_what_the_steps_say(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app) as pilot:
        await pilot.press("escape", "l")
        await pilot.pause()
        reward = main(app).query(TrendPlot).first()
        points, baseline = reward._points
        assert list(points) == [(i, (1.0, -1.0, 0.5)[i % 3]) for i in range(1, 9)]
        assert [value for _, value in baseline] == [0.2] * 8
        backend.step_rows.append(make_step(9, 0.25))
        backend.emit("step.finished", step=9, episode_ids=[])
        await until(pilot, lambda: reward._points[0][-1] == (9, 0.25))


def test_next_step_in_words() -> None:
    view = ViewState()
    view.trainer = replace(view.trainer, batch_size=4, num_scored=1, untrained={"aux_call": 2})
    backend = FakeBackend(lambda: 0.0)  # type: ignore[arg-type]
    backend.add_episode("s", "a", "b", state="scored", reward=1.0, version=5)
    backend.add_episode("s", "a", "b", state="open")
    backend.add_episode("s", "a", "b", state="dropped")
    dropped = backend.details["ep-3"].row
    rows = [detail.row for detail in backend.details.values()]
    view.put_episodes([*rows, replace(dropped, dropped_reason="stale")])
    assert [str(text) for _, text in next_step(view)] == [
        "next    1 of 4 scored; the oldest is 2 versions old; 1 without a score",
        "skipped ✗ 2× a call that the agent made beside its answer"
        " · 1× sampled by weights that are too old",
    ]


def test_a_rollback_and_a_warning_are_said() -> None:
    view = ViewState()
    made = [make_step(1), replace(make_step(8), warnings=("replies shrink",))]
    view.put_steps([*made, StepRow(step=9, policy_version=9, values={"rolled_back_to": 2.0})])
    text = "\n".join(str(line) for _, line in next_step(view))
    assert "v9 serves: it is v2 again" in text
    assert "careful ▲ replies shrink" in text


def test_what_was_lost_is_said() -> None:
    view = ViewState()
    lost = "the checkpoint of version 12 cannot be used; version 11 serves"
    view.trainer = replace(view.trainer, notices=(lost,))
    assert str(next_step(view)[1][1]) == f"lost    ▲ {lost}"
    assert f"lost    ▲ {lost}" in str(describe(view))


async def test_each_notice_of_a_process_has_a_line(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    (trainer,) = (row for row in backend.process_rows if row.name == "trainer")
    index = backend.process_rows.index(trainer)
    told = {"state": ProcessState.READY, "reason": "first is lost\nsecond, too"}
    backend.process_rows[index] = trainer.model_copy(update=told)
    async with running(app, WIDE) as pilot:
        await pilot.press("escape", "p")
        await until(pilot, lambda: "second, too" in "\n".join(screen_lines(pilot)))
        assert "first is lost" in "\n".join(screen_lines(pilot))


def test_canaries_stand_side_by_side() -> None:
    rows = [
        CanaryRow(policy_version=6, prompt="Sky?", text="Blue, of course."),
        CanaryRow(policy_version=7, prompt="Sky?", text="so blue " * 20),
        CanaryRow(policy_version=6, prompt="Sea?", text=" "),
        CanaryRow(policy_version=7, prompt="Sea?", reason="the engine was busy"),
    ]
    lines = str(canaries(rows, 63)).splitlines()
    assert lines[0].split("│")[0].strip() == "answers of v6"
    assert lines[0].split("│")[1].strip() == "answers of v7"
    assert lines[1] == "Sky?"
    assert [part.strip()[:16] for part in lines[2].split("│")] == [
        "Blue, of course.",
        "so blue so blue ",
    ]
    assert "▲ v7 repeats itself here" in lines
    assert [part.strip() for part in lines[-1].split("│")] == [
        "(an empty reply)",
        "✗ the engine was busy",
    ]
    assert "no answers yet" in str(canaries([], 60))


async def test_rolling_back_lists_the_kept_versions(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    backend.trainer_row = replace(backend.trainer_row, kept_versions=(0, 3, 6, 7))
    async with running(app) as pilot:
        await pilot.press("escape", "l", "b")
        await until(pilot, lambda: isinstance(app.screen, VersionScreen))
        listed = app.screen.query_one(OptionList)
        assert [str(option.prompt).split()[0] for option in listed.options] == ["v6", "v3", "v0"]
        assert "as training found it" in str(listed.options[-1].prompt)
        assert "step 5 · reward" in str(listed.options[0].prompt)
        await pilot.press("down", "enter")
        await until(pilot, lambda: ("roll_back", 3) in backend.calls)
        await until(pilot, lambda: "version 3 serve again" in "".join(notices(app)))
        await pilot.press("b", "escape")
        assert isinstance(app.screen, MainScreen)
    assert [call for call in backend.calls if call[0] == "roll_back"] == [("roll_back", 3)]


async def test_a_refused_rollback_says_why(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        backend.refuse = "Version 3 has no checkpoint."
        await app.controller.roll_back(3)
        await until(pilot, lambda: any("no checkpoint" in text for text in notices(app)))


def test_held_says_so() -> None:
    view = ViewState()
    held = replace(view.trainer, state="paused", reason="mean KL 9 > 1")
    assert waits_for(held) == "held: mean KL 9 > 1"
    assert waits_for(held, "h") == "held: mean KL 9 > 1; h goes on"
    assert waits_for(replace(held, reason=""), "h") == "held; h goes on"


async def test_who_holds_training_is_not_warned_of_it(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        backend.emit("trainer.paused", reason=HELD_BY_PERSON)
        backend.emit("trainer.paused", reason="the update was too large")
        await until(pilot, lambda: bool(notices(app)), "the warning")
        assert notices(app) == ["training is held: the update was too large"]


# System ------------------------------------------------------------------------------------------


def test_the_time_of_a_line_is_short() -> None:
    newest = "2026-11-30T00:00:02+0000 INFO b done"
    assert brief(newest, newest) == "00:00:02 INFO b done"
    assert brief("2026-11-29T23:59:58,123 INFO a go", newest) == "11-29 23:59:58 INFO a go"
    assert brief("  File at 2026-11-30T00:00:02", newest) == "  File at 2026-11-30T00:00:02"


def test_processes_are_a_tree() -> None:
    names = ["router", "worker-10", "worker-2", "learner", "trainer", "extra", "data-proxy-2"]
    names += ["agent-gateway", "data-proxy-10"]
    tree = branches([ProcessStatus(name=name, state=ProcessState.READY) for name in names])
    assert [branch.stem + branch.label for branch in tree] == [
        "├ agent-gateway",
        "├ router",
        "├ pair 2",
        "│ ├ data-proxy-2",
        "│ └ worker-2",
        "├ pair 10",
        "│ ├ data-proxy-10",
        "│ └ worker-10",
        "├ trainer",
        "├ learner",
        "└ extra",
    ]


async def test_a_restart_is_asked_about_first(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("escape", "p", "down", "R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("escape")
        assert not [call for call in backend.calls if call[0] == "restart"]
        await pilot.press("R", "y")
        await until(pilot, lambda: ("restart", "agent-gateway") in backend.calls)
        await pilot.press("home", "R")
        await until(pilot, lambda: any("supervisor owns" in text for text in notices(app)))
        assert isinstance(app.screen, MainScreen)


async def test_of_two_logs_opened_at_once_the_last_is_followed(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        main(app)._follow_log("router")
        main(app)._follow_log("trainer")
        gc.collect()  # says if the first was left behind
        await until(pilot, lambda: app.controller.state.log.process == "trainer")


async def test_the_machine_is_looked_at_only_while_it_is_shown(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await main(app)._look_at_system()
        assert not app.controller.state.samples
        await pilot.press("escape", "p")
        await until(pilot, lambda: "there is none" in text_of(pilot, "#machine"))
        assert any("└ learner" in str(row.left) for row in stack(app).rows)


# Logs --------------------------------------------------------------------------------------------


async def test_log_of_the_chosen_process(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.write_log("agent-gateway", "gateway is up")
    async with running(app) as pilot:
        await pilot.press("escape", "p", "down", "enter")
        await until(pilot, lambda: log_view(pilot).num_shown == 1)
        assert "gateway is up" in "\n".join(screen_lines(pilot))
        backend.write_log("agent-gateway", "one more")
        await until(pilot, lambda: log_view(pilot).num_shown == 2)
        await pilot.press("c")
        await until(
            pilot, lambda: not [w for w in main(app).workers if w.group == "log" and w.is_running]
        )


async def opened(pilot: Pilot[None], backend: FakeBackend, count: int = 200) -> LogView:
    """Open a log of numbered lines; every tenth is a warning."""
    words = ("WARNING", "INFO")
    backend.write_log("supervisor", *(f"12:00 {words[i % 10 > 0]} line {i}" for i in range(count)))
    await pilot.press("escape", "L")
    view = log_view(pilot)
    await until(pilot, lambda: view.num_shown == count)
    return view


async def test_what_is_read_stays_where_it_is(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        view = await opened(pilot, backend)
        unread = main(app).query_one(LogsPane).query_one(UnreadBar)
        assert view.following
        await pilot.press("pageup")
        await until(pilot, lambda: not view.following)
        top = view.log_lines[view._shown[view.scroll_offset.y]]
        backend.write_log("supervisor", *(f"12:01 INFO more {i}" for i in range(12)))
        await until(pilot, lambda: view.num_shown == 212)
        assert view.log_lines[view._shown[view.scroll_offset.y]] == top
        assert "12 new lines below" in str(unread.content)
        await pilot.press("end")
        await until(pilot, lambda: view.following and not unread.display)
        assert view.scroll_offset.y == view.max_scroll_y


async def test_the_newest_line_stays_in_sight_when_there_is_less_room(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        view = await opened(pilot, backend)
        backend.write_log("supervisor", "wide " * 50 + "and newest")  # brings a scrollbar along
        await until(pilot, lambda: view.show_horizontal_scrollbar)
        await until(pilot, lambda: view.scroll_offset.y == view.max_scroll_y)
        await pilot.resize_terminal(120, 30)
        await until(pilot, lambda: view.scroll_offset.y == view.max_scroll_y)
        assert any("wide wide" in text for text in screen_lines(pilot))
        assert view.following


async def test_what_is_read_stays_even_when_old_lines_fall_out(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        view = await opened(pilot, backend)
        await pilot.press("home", "pagedown")
        await until(pilot, lambda: not view.following)
        read = view._shown[view.scroll_offset.y]
        lines = app.controller.state.log
        for number in range(MAX_LINES - 195):
            lines.append(f"late {number}")
        main(app).query_one(LogsPane).sync(lines)
        await pilot.pause()
        assert lines.num_dropped == 5
        assert view._shown[view.scroll_offset.y] == read
        assert "5 older left out" in str(main(app).query_one("#logs").border_title)


async def test_find_goes_from_the_newest_to_older_lines(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        view = await opened(pilot, backend)
        await pilot.press("slash")
        await until(pilot, lambda: isinstance(app.screen.focused, Input))
        await pilot.press(*"warn", "enter")
        await until(pilot, lambda: view.current == 190)
        await pilot.press("slash", "enter")
        await until(pilot, lambda: view.current == 180)
        assert view.scroll_offset.y <= 180 < view.scroll_offset.y + view.size.height
        assert view.find("WARN") is True  # another word begins anew
        assert not view.find("nothing like it")


async def test_filter_shows_only_lines_with_a_text(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app, NARROW) as pilot:
        view = await opened(pilot, backend)
        await pilot.press("f", *"warning", "enter")
        await until(pilot, lambda: view.num_shown == 20)
        backend.write_log("supervisor", "12:02 INFO quiet", "12:02 WARNING loud")
        await until(pilot, lambda: view.num_shown == 21)
        assert "21 with “warning”" in str(main(app).query_one("#logs").border_title)
        await pilot.press("f", "ctrl+u", "enter")
        await until(pilot, lambda: view.num_shown == 202)


async def test_a_log_that_is_gone_is_said_once(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        view = await opened(pilot, backend, 3)
        backend.log_error = RefusedError(ApiError(404, "There is no process 'worker-9'."))
        await pilot.press("p", "down", "enter")
        await until(pilot, lambda: any("no process" in text for text in notices(app)))
        backend.log_error = HermesTuiError("the supervisor does not answer")
        await pilot.press("p", "home", "enter")
        await until(pilot, lambda: view.log_lines.process == "supervisor")
        assert not [text for text in notices(app) if "does not answer" in text]
        backend.log_error = None
        backend.write_log("supervisor", "back again")
        await until(pilot, lambda: view.num_shown == 4)


async def test_drawing_between_two_paintings(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        view = await opened(pilot, backend, 3)
        app.controller.state.log = LogLines(process="router")  # another log, not drawn yet
        for _ in range(MAX_LINES + 3):
            view.log_lines.append("x")  # and what is shown has fallen out
        view.refresh()
        await pilot.pause()
        assert [view.render_line(y).text.strip() for y in range(3)] == ["", "", ""]
