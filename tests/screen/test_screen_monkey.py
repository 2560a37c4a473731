"""Every key, in its own pane and in others, in no order: nothing may end the app."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fakes.screen import NARROW, WIDE, add_past, main, make_app, running, say_and_hear, until

from hermes_tui.actions import ACTIONS, PANES
from hermes_tui.screens.dialogs import QuitScreen
from hermes_tui.screens.main import MainScreen

MOVES = ("up", "down", "left", "right", "home", "end", "pageup", "pagedown", "escape", "space", "a")


@pytest.mark.parametrize(
    ("size", "training"), [(WIDE, True), (NARROW, False)], ids=["wide", "narrow, plain chat"]
)
async def test_every_binding(
    tmp_path: Path, size: tuple[int, int], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_tui.clipboard.TOOLS", ())
    app, backend = make_app(tmp_path, training=training)
    if training:
        add_past(backend)
    chance = random.Random(7)
    keys = [key for action in ACTIONS for key in action.keys]
    own = [
        (action.scope, key) for action in ACTIONS if action.scope in PANES for key in action.keys
    ]
    presses = own + [(chance.choice(list(PANES)), key) for key in (*keys, *MOVES)]
    chance.shuffle(presses)
    async with running(app, size) as pilot:
        if training:
            await say_and_hear(pilot)
        for pane, key in presses:
            if isinstance(app.screen, MainScreen):
                main(app).go(pane)
            await pilot.press(key)
            if isinstance(app.screen, QuitScreen) or len(app.screen_stack) > 3:
                await pilot.press("escape", "escape")
        while not isinstance(app.screen, MainScreen):
            await pilot.press("escape")
        await until(pilot, lambda: app.is_running)
    assert app.return_code is None or app.return_code == 0
    assert ("shutdown",) not in backend.calls
