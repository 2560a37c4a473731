"""What the screen looks like: pictures at 120x40 and 80x24.

After a wanted change: ``pytest tests/app/tui/test_snapshots.py --snapshot-update``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.backend import FakeBackend
from fakes.screen import (
    NARROW,
    WIDE,
    add_past,
    app_of,
    badges,
    main,
    make_app,
    say_and_hear,
    stack,
    tokens,
    until,
)
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from hermes_tui.core.models import CanaryRow, StartStage, Token
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.screens.start import StartScreen
from hermes_tui.tui.screens.stopping import StoppingScreen
from hermes_tui.tui.widgets.logs_pane import LogView
from hermes_tui.tui.widgets.system_pane import SystemPane

LOG_LINES = 40


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the machine once only, however long the picture takes."""
    monkeypatch.setattr("hermes_tui.tui.screens.layout.SAMPLE_S", 1e6)


Run = Callable[[Pilot[None]], Awaitable[None]]


async def ready(pilot: Pilot[None]) -> None:
    """Wait for the main screen, and hold the cursor still."""
    app = app_of(pilot)
    await until(pilot, lambda: isinstance(app.screen, MainScreen))
    await until(pilot, lambda: bool(app.screen.query(SystemPane)))
    await until(pilot, lambda: bool(stack(app).rows))
    state = app.controller.state
    await until(pilot, lambda: all(state.turns.get(name) for name in state.sessions), "names")
    app.screen.query_one("#prompt").cursor_blink = False


async def welcome(pilot: Pilot[None]) -> None:
    """Show the empty conversation."""
    await ready(pilot)


async def talked(pilot: Pilot[None]) -> None:
    """Show a conversation with trained episodes and one that was scored just now."""
    await ready(pilot)
    app = app_of(pilot)
    await app.controller.open_session("sess-1")
    await until(pilot, lambda: len(badges(app)) == 2)
    await say_and_hear(pilot, "Hello!")
    await pilot.press("f3")
    await until(pilot, lambda: "◆ scored" in badges(app)[-1])
    app.clear_notifications()
    await pilot.pause()


async def looked(pilot: Pilot[None]) -> None:
    """Show a token with all that is known of it."""
    await talked(pilot)
    app = app_of(pilot)
    await pilot.press("escape", "t", "left", "left", "left", "left")
    view = tokens(app)
    item = view.content.items[view.cursor]
    assert isinstance(item, Token)
    view.content.items[view.cursor] = replace(
        item,
        advantage=0.63,
        logprob_before=-1.92,
        logprob_after=-1.71,
        alternatives=((" great", -2.2), (" joy", -2.8), (" long", -3.2)),
    )
    view.move_cursor(view.cursor)
    await pilot.pause()


def pressed(*keys: str) -> Run:
    """Return a run that presses keys after the conversation."""

    async def run(pilot: Pilot[None]) -> None:
        await talked(pilot)
        await pilot.press(*keys)
        await pilot.pause()

    return run


def still_field(*keys: str) -> Run:
    """Return a run that presses keys after the conversation, and holds the field's cursor still."""

    async def run(pilot: Pilot[None]) -> None:
        await pressed(*keys)(pilot)
        app = app_of(pilot)
        await until(pilot, lambda: isinstance(app.focused, Input), "the field")
        assert isinstance(app.focused, Input)
        app.focused.cursor_blink = False
        await pilot.pause()

    return run


async def palette(pilot: Pilot[None]) -> None:
    """Show what the palette offers for a word."""
    await still_field("escape", "ctrl+p", *"roll")(pilot)
    app = app_of(pilot)
    found = app.screen.query_one(OptionList)
    await until(pilot, lambda: found.highlighted == 0, "what was found")


async def stopping(pilot: Pilot[None]) -> None:
    """Stop a stack that takes its time."""
    await pressed("ctrl+q", "ctrl+x")(pilot)
    await until(pilot, lambda: isinstance(app_of(pilot).screen, StoppingScreen))


async def starting(pilot: Pilot[None]) -> None:
    """Show processes that start."""
    app = app_of(pilot)
    await until(pilot, lambda: isinstance(app.screen, StartScreen))
    stages = app.screen.query_one("#start-stages", Static)
    await until(pilot, lambda: "loading weights" in str(stages.content))


async def start_failed(pilot: Pilot[None]) -> None:
    """Show a start that came to nothing."""
    await starting(pilot)
    app = app_of(pilot)
    assert isinstance(app.screen, StartScreen)
    app.screen.report(StartStage(process="trainer", state="failed", text="no model in [/models]"))
    app.screen.report(StartStage(process="router", state="stopped"))
    app.screen.fail("trainer: no model in [/models]; run `hermes-tui setup`")
    await pilot.pause()


def settled(*keys: str) -> Run:
    """Return a run that presses keys, and waits for the machine or the log."""

    async def run(pilot: Pilot[None]) -> None:
        await pressed(*keys)(pilot)
        app = app_of(pilot)
        state, machine = app.controller.state, main(app).query_one("#machine", Static)
        log = main(app).query_one(LogView)
        if "L" not in keys:
            await until(pilot, lambda: bool(state.samples) and bool(str(machine.content)))
        else:
            await until(pilot, lambda: len(state.log) == LOG_LINES)
            await until(pilot, lambda: 0 < log.max_scroll_y == log.vertical_scrollbar.position)

    return run


CASES: dict[str, Run] = {
    "welcome": welcome,
    "talked": talked,
    "looked": looked,
    "system": settled("escape", "p"),
    "logs": settled("escape", "L"),
    "rollback": pressed("escape", "l", "b"),
    "restart": settled("escape", "p", "down", "R"),
    "sessions": pressed("escape", "s", "down"),
    "training": pressed("escape", "l"),
    "help": pressed("f1"),
    "quit": pressed("ctrl+q"),
    "reward": still_field("f2"),
    "find": still_field("escape", "/", *"Ada"),
    "palette": palette,
    "stopping": stopping,
    "starting": starting,
    "start-failed": start_failed,
}


def past(backend: FakeBackend) -> None:
    """Give the stack a past."""
    add_past(backend)
    backend.trainer_row = replace(
        backend.trainer_row, kept_versions=(0, 3, 6, 7), untrained={"aux_call": 5, "truncated": 1}
    )
    backend.canary_rows = [
        CanaryRow(policy_version=version, prompt="Who are you?", text=text)
        for version, text in ((6, "I am Hermes, an agent that learns."), (7, "Hermes."))
    ]
    backend.write_log(
        "supervisor",
        *(
            f"2026-11-29T12:00:{i:02} {'WARNING' if i % 9 == 4 else 'INFO'} ready name=worker-{i}"
            for i in range(LOG_LINES)
        ),
    )


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["120x40", "80x24"])
@pytest.mark.parametrize("case", CASES)
def test_picture(snap_compare: Any, tmp_path: Path, case: str, size: tuple[int, int]) -> None:
    app, backend = make_app(tmp_path)
    if case != "welcome":
        past(backend)
    backend.stop_gate = asyncio.Event()
    if case.startswith("start"):
        backend.start_gate = asyncio.Event()
    assert snap_compare(app, terminal_size=size, run_before=CASES[case])


LIT = ("looked", "training", "system", "quit", "reward", "restart", "help", "palette")


@pytest.mark.parametrize("case", LIT)
@pytest.mark.parametrize("look", ["light", "no_color"])
def test_picture_in_other_lights(
    snap_compare: Any, tmp_path: Path, look: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if look == "no_color":
        monkeypatch.setenv("NO_COLOR", "1")
    app, backend = make_app(tmp_path, theme="textual-light" if look == "light" else "textual-dark")
    past(backend)
    assert snap_compare(app, terminal_size=WIDE, run_before=CASES[case])
