"""The palette: keys in a column, and sessions and versions to go to."""

from __future__ import annotations

from pathlib import Path

from fakes.screen import add_past, main, make_app, press, running, until
from textual.widgets import OptionList

from hermes_tui.tui.palette import TITLE_CELLS, Palette
from hermes_tui.tui.widgets.training_pane import TrainingPane


async def test_keys_stand_in_a_column(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await press(pilot, "ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, Palette), "the palette")
        listed = app.screen.query_one(OptionList)
        await until(pilot, lambda: listed.option_count > 20, "the actions")
        rows = [str(option.prompt) for option in listed.options]
        (row,) = [row for row in rows if row.startswith("Search all conversations")]
        assert row[TITLE_CELLS:].strip() == "ctrl+f"
        assert "\n" not in row


async def test_the_palette_goes_to_sessions_and_versions(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    backend.add_session("sess-3", created_at=20)
    backend.add_episode("sess-3", "what is [b]bold[/]?", "yes", state="unscored")
    async with running(app) as pilot:
        state = app.controller.state
        await until(pilot, lambda: "bold" in state.title("sess-3"), "the titles")

        async def choose(*words: str) -> None:
            await press(pilot, "ctrl+p")
            await until(pilot, lambda: isinstance(app.screen, Palette), "the palette")
            await press(pilot, *words)
            listed = app.screen.query_one(OptionList)
            wanted = "".join(words)

            def found() -> bool:
                first = str(listed.options[0].prompt) if listed.option_count else ""
                return wanted in first

            await until(pilot, found, "what is searched")
            await pilot.press("enter")

        await choose(*"[b]bold[/]")
        await until(pilot, lambda: state.selected == "sess-3", "the session")
        await choose(*"version v5")
        pane = main(app).query_one(TrainingPane)
        await until(
            pilot, lambda: "step 4" in str(main(app).query_one("#training-numbers").render())
        )
        assert pane.has_focus
