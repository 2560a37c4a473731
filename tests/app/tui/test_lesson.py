"""What did it learn? The line after a step, and its card."""

from __future__ import annotations

from pathlib import Path

from fakes.backend import make_step
from fakes.lessons import train
from fakes.screen import main, make_app, press, running, say_and_hear, until
from textual.widgets import Static

from hermes_tui.core.lessons import version_before
from hermes_tui.tui.screens.lesson import LessonScreen
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.widgets.lesson_bar import LessonBar


async def test_after_a_step_a_line_says_what_it_learned(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        bar = main(app).query_one(LessonBar)
        assert not bar.display
        train(backend)
        await until(pilot, lambda: "v10 says this more readily" in str(bar.render()))
        assert main(app).focused is main(app).query_one("#prompt")  # it takes no key
        await press(pilot, *"go on", "enter")
        await until(pilot, lambda: not bar.display, "the next message takes it away")


async def test_the_card_shows_tokens_and_answers_and_takes_it_back(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        train(backend)
        bar = main(app).query_one(LessonBar)
        await until(pilot, lambda: bar.display, "the line")
        await pilot.press("escape", "K")
        await until(pilot, lambda: isinstance(app.screen, LessonScreen), "the card")

        def text(name: str) -> str:
            return str(app.screen.query_one(name, Static).render())

        farthest = "the farthest: ▼ “ pleasure” −0.40 · ▲ “ Ada” +0.31 · ▲ “,” +0.0010"
        assert farthest in text("#lesson-moved")
        content = app.screen.query_one("#lesson-tokens", Static).content
        styles = {content.plain[s.start : s.end]: str(s.style) for s in content.spans}  # type: ignore[union-attr]
        assert styles[" Ada"] == "underline on $success 50%"
        assert styles[" pleasure"] == "strike on $error 50%"
        assert "," not in styles  # next to nothing has no tint
        await until(pilot, lambda: "answers of v0" in text("#lesson-answers"))
        assert "I am Ada." in text("#lesson-answers")
        await pilot.press("b")
        await until(pilot, lambda: ("roll_back", 0) in backend.calls, "the version before")
        assert isinstance(app.screen, MainScreen)
        assert not bar.display


def test_the_version_before_is_that_of_the_step_before() -> None:
    steps = [make_step(3), make_step(5)]
    assert version_before(steps, steps[1]) == 4
    assert version_before(steps, steps[0]) == 0
