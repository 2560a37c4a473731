"""Keys that arrive faster than the screen takes them, as over a slow line."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.screen import app_of, make_app, prompt, running, until
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from hermes_tui.screens.compare import CompareScreen, SizeScreen


def burst(pilot: Pilot[None], *keys: str) -> None:
    """Send keys all at once, before any of them is taken."""
    for key in keys:
        app_of(pilot).post_message(events.Key(key, key if len(key) == 1 else None))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (("a", "b", "x", "backspace", "c"), "abc"),
        (("a", "c", "left", "b", "end", "d"), "abcd"),
        (("o", "l", "d", "ctrl+u", "n", "e", "w"), "new"),
    ],
)
async def test_a_typed_correction_takes_what_was_typed_before_it(
    tmp_path: Path, keys: tuple[str, ...], text: str
) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        burst(pilot, *keys)
        await until(pilot, lambda: prompt(app).text == text)


async def test_earlier_messages_come_back_in_order(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        for text in ("one", "two"):
            prompt(app).sent(text)
        burst(pilot, "up", "up", "down", "!")
        await until(pilot, lambda: prompt(app).text == "two!")


async def test_a_dialog_takes_the_corrected_number(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("escape", "g")
        await until(pilot, lambda: isinstance(app.screen, SizeScreen), "the question")
        await until(pilot, lambda: isinstance(app.focused, Input), "its field")
        burst(pilot, "backspace", "4", "enter")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen), "the comparison")
        assert app.screen.comparison.size == 4  # type: ignore[attr-defined]
