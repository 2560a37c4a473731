"""What there is room for, and what is said when there is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakes.screen import (
    NARROW,
    WIDE,
    add_past,
    app_of,
    main,
    make_app,
    notices,
    running,
    say_and_hear,
    stack,
    until,
)
from textual.pilot import Pilot

from hermes_tui.core.compare_replies import Comparison
from hermes_tui.core.models import CanaryRow, StartStage, Token
from hermes_tui.tui.screens.compare_replies import CompareScreen
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.screens.start import StartScreen
from hermes_tui.tui.widgets.chat_pane import FIRST_KEYS
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.token_view import TokenDetail
from hermes_tui.tui.widgets.training_pane import TrainingPane

VAST = (200, 60)


def screen_lines(pilot: Pilot[None]) -> list[str]:
    """Return the screen as text."""
    strips = app_of(pilot).screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


async def test_the_sides_grow_with_the_terminal(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, WIDE) as pilot:
        body = main(app).query_one("#body")

        def widths() -> list[int]:
            return [child.outer_size.width for child in body.children]

        assert widths() == [27, 47, 46]
        await pilot.resize_terminal(*VAST)
        await until(pilot, lambda: sum(widths()) == VAST[0], "the new layout")
        assert widths() == [36, 94, 70]


async def test_the_first_words_fit_their_lines_and_name_the_keys_in_force(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, keymap={"score_good": "f7", "pane_tokens": "t"})
    async with running(app, WIDE) as pilot:
        shown = screen_lines(pilot)
        for action, word in FIRST_KEYS:
            label = app.keys.label(action)
            assert any(f"  {label:<8} {word}" in row for row in shown), word
        assert any("  F7       good" in row for row in shown)


async def test_a_pane_says_how_much_of_it_is_out_of_sight(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    backend.canary_rows = [
        CanaryRow(policy_version=version, prompt="Who are you?", text="Hermes.")
        for version in (6, 7)
    ]
    async with running(app, NARROW) as pilot:
        await pilot.press("escape", "l")
        pane = main(app).query_one(TrainingPane)
        await until(pilot, lambda: pane.max_scroll_y > 0, "more than fits")
        num_hidden = int(pane.max_scroll_y)
        assert any(f"▼ {num_hidden} more lines" in row for row in screen_lines(pilot))
        await pilot.press("end")
        await until(pilot, lambda: pane.scroll_y == num_hidden, "the end")
        assert not any("more line" in row for row in screen_lines(pilot))
        await pilot.resize_terminal(*VAST)
        await until(pilot, lambda: pane.max_scroll_y == 0, "the room")
        assert not any("more line" in row for row in screen_lines(pilot))


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (WIDE, "“ pleasures” 0.15  “ great” 0.11"),
        (VAST, "“ pleasures” 0.15  “ great” 0.11  “ joy” 0.061"),
    ],
    ids=["120", "200"],
)
async def test_alternatives_are_shown_whole_or_not_at_all(
    tmp_path: Path, size: tuple[int, int], shown: str
) -> None:
    token = Token(
        token_id=7,
        text=" pleasure",
        logprob=-1.9,
        alternatives=((" pleasures", -1.9), (" great", -2.2), (" joy", -2.8), (" honor", -3.0)),
    )
    app, _ = make_app(tmp_path)
    async with running(app, size):
        detail = main(app).query_one(TokenDetail)
        detail.show(token)
        assert str(detail.content).splitlines()[-1] == f"others  {shown}"


async def test_a_token_of_a_dropped_episode_says_why_it_is_not_trained(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        detail = main(app).query_one(TokenDetail)
        assert "step    not trained yet" in str(detail.content)
        backend.set_state("ep-1", "dropped", dropped_reason="stale")
        why = "step    not trained: sampled by weights that are too old"
        await until(pilot, lambda: why in str(detail.content))


async def test_the_title_names_the_episode_first(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, NARROW) as pilot:
        await pilot.press("escape", "s")
        await app.controller.open_session("sess-1")
        await pilot.press("c")
        title = "Chat · episode 2 · Greet Ada in one sentence."
        await until(pilot, lambda: any(title in row for row in screen_lines(pilot)))


async def test_what_failed_at_the_start_is_said_while_the_others_stop(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.start_gate = asyncio.Event()
    async with app.run_test(size=NARROW) as pilot:
        await until(pilot, lambda: isinstance(app.screen, StartScreen), "the start")
        assert isinstance(app.screen, StartScreen)
        await until(pilot, lambda: any("loading" in row for row in screen_lines(pilot)))
        for state, text in (("failed", "port 8080 is taken"), ("stopped", "")):
            app.screen.report(StartStage(process="gateway", state=state, text=text))
        app.screen.report(StartStage(process="router", state="stopped"))
        await pilot.pause()
        shown = screen_lines(pilot)
        assert any("✗ failed" in row and "port 8080 is taken" in row for row in shown)
        assert any("○ stopped  router" in row for row in shown)
        assert any("that did not work: what was started stops again" in row for row in shown)
        assert not any("q leaves" in row for row in shown)


async def test_a_hint_names_a_range_of_keys_whole(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, NARROW) as pilot:
        await app.push_screen(
            CompareScreen(app.controller, app.context, Comparison(app.controller, 3))
        )
        await pilot.press(*"Hi", "enter")
        await until(pilot, lambda: "1…9 pick  enter score" in screen_lines(pilot)[-1], "the hints")


async def test_keys_are_hinted_at_before_the_terminal_has_the_focus(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.start_gate = asyncio.Event()
    async with app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: isinstance(app.screen, StartScreen), "the start")
        app.app_focus = False
        backend.start_gate.set()
        await until(pilot, lambda: isinstance(app.screen, MainScreen), "the main screen")
        await until(pilot, lambda: "F1 help" in screen_lines(pilot)[-1], "the hints")
        assert isinstance(app.focused, Prompt)  # for what was typed already
        assert not app.app_focus


async def test_without_training_nothing_promises_a_training_step(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, training=False)
    async with running(app, WIDE) as pilot:
        shown = "\n".join(screen_lines(pilot))
        assert "Talk to your agent.  " in shown
        assert "say it" in shown
        assert "good: likelier" not in shown
        for keys, word in (("t", "no tokens are recorded"), ("l", "nothing is learned")):
            await pilot.press("escape", *keys)
            await until(pilot, lambda word=word: any(word in text for text in notices(app)))
            assert "training.enabled = true turns it on" in notices(app)[-1]
            shown = "\n".join(screen_lines(pilot))
            assert "score an episode" not in shown
            assert "questions are asked" not in shown


@pytest.mark.parametrize(
    ("size", "hidden"), [((120, 30), 0), (WIDE, 0), (VAST, 0), ((120, 24), 0), (NARROW, 0)]
)
async def test_the_processes_have_the_room_that_they_need(
    tmp_path: Path, size: tuple[int, int], hidden: int
) -> None:
    app, _ = make_app(tmp_path)
    async with running(app, size) as pilot:
        main(app).go("system")
        rows = stack(app)
        await until(pilot, lambda: rows.max_scroll_y == hidden)
        await pilot.press("end")
        await until(pilot, lambda: rows.scroll_y == hidden)  # the last one can be seen
        assert any("└ learner" in row for row in screen_lines(pilot))


async def test_nothing_stands_beside_the_notice_that_there_is_no_room(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app, (50, 8)) as pilot:
        await until(pilot, lambda: "needs 60 columns and 20 rows" in screen_lines(pilot)[0])
        assert not any(row.strip() for row in screen_lines(pilot)[1:])
