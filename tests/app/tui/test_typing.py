"""Keys and clicks that arrive faster than the screen takes them, as over a slow line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.screen import (
    NARROW,
    app_of,
    click,
    main,
    make_app,
    notices,
    prompt,
    running,
    say_and_hear,
    until,
)
from textual import events
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Button, Input, OptionList

from hermes_tui.core.actions import PANES, Scope
from hermes_tui.core.changes import PendingApproval
from hermes_tui.core.compare_replies import Comparison
from hermes_tui.tui.app import HermesTui
from hermes_tui.tui.screens.approval import ApprovalScreen
from hermes_tui.tui.screens.compare_replies import CompareScreen, GroupSizeScreen
from hermes_tui.tui.screens.confirm import ConfirmScreen, VersionScreen
from hermes_tui.tui.screens.dialogs import AskScreen, Dialog, QuitScreen
from hermes_tui.tui.screens.help import HelpScreen
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.queue_bar import QueueBar
from hermes_tui.tui.widgets.token_view import TokenView

ASKED = PendingApproval(
    session_id="sess-1", approval_id="a", question="?", choices=("once", "session", "deny")
)

DIALOGS: dict[str, Callable[[HermesTui], Dialog[Any]]] = {
    "help": lambda app: HelpScreen(app.keys, "chat"),
    "ask": lambda _: AskScreen("What?"),
    "versions": lambda app: VersionScreen(app.controller.state),
    "quit": lambda _: QuitScreen(),
    "confirm": lambda _: ConfirmScreen("Sure?", "It restarts.", "Yes"),
    "approval": lambda app: ApprovalScreen(app.controller, ASKED),
}
WITH_BUTTONS = ("quit", "confirm", "approval")


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
        await until(pilot, lambda: isinstance(app.screen, GroupSizeScreen), "the question")
        await until(pilot, lambda: isinstance(app.focused, Input), "its field")
        burst(pilot, "backspace", "4", "enter")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen), "the comparison")
        assert app.screen.comparison.size == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("pane", [pane for pane in PANES if pane != "prompt"])
async def test_a_message_typed_right_after_the_key_to_the_prompt_is_in_the_prompt(
    tmp_path: Path, pane: Scope
) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        main(app).go(pane)
        burst(pilot, "down", "i", *"next")  # among them keys of panes, and of the screen
        await until(pilot, lambda: prompt(app).text == "next")


@pytest.mark.parametrize("compare", [False, True])
async def test_keys_right_after_leaving_the_prompt_are_the_panes(
    tmp_path: Path, compare: bool
) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        if compare:
            await app.push_screen(
                CompareScreen(app.controller, app.context, Comparison(app.controller, 2))
            )
            await until(pilot, lambda: isinstance(app.focused, Prompt))
            burst(pilot, "escape")
        burst(pilot, *"so far", "escape", "t")
        await until(pilot, lambda: isinstance(app.focused, TokenView))
        assert app.screen is main(app)
        assert prompt(app).text == "so far"


async def test_what_is_typed_right_after_a_message_is_the_next_one(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 2
    async with running(app) as pilot:
        burst(pilot, *"hi", "enter", "enter", *"and you", "enter", "?")
        await until(pilot, lambda: prompt(app).text == "?")
        waiting = main(app).query_one(QueueBar)
        await until(pilot, lambda: waiting.lines == ("◌ queued: and you",))
        assert [call for call in backend.calls if call[0] == "turn"] == [("turn", "sess-1", "hi")]
        assert not notices(app)
        backend.gate.set()


async def test_a_key_that_asks_asks_once(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        main(app).go("chat")
        burst(pilot, "slash", "slash")
        await until(pilot, lambda: isinstance(app.focused, Input), "the field of the question")
        burst(pilot, "escape")
        await until(pilot, lambda: app.screen is main(app))


async def test_enter_thrice_does_what_was_chosen_in_the_palette_once(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await pilot.press(*"hold training")
        await until(pilot, lambda: would_choose(app, "Hold training"), "the one that matches")
        burst(pilot, "enter", "enter", "enter")
        await until(pilot, lambda: app.screen is main(app))
        burst(pilot, "ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        assert [call for call in backend.calls if call[0] == "pause_training"] == [
            ("pause_training", True)
        ]


async def test_what_is_typed_as_the_palette_is_clicked_away_is_looked_for_nowhere(
    tmp_path: Path,
) -> None:
    app, _ = make_app(tmp_path)
    async with running(app, NARROW) as pilot:
        for _ in range(20):
            app.action_press("palette")
            burst(pilot, *"pan")
            for _ in range(3):
                await click(pilot, (0, 0))
            await until(pilot, lambda: app.screen is main(app))


async def test_what_is_left_can_be_opened_again_at_once(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        for key in ("ctrl+p", "f1", "f2", "ctrl+q"):
            await pilot.press(key)
            await until(pilot, lambda: app.focused is not prompt(app))
            burst(pilot, *["escape", key] * 3, "escape")
            await until(pilot, lambda: app.screen is main(app))


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
async def test_lines_are_pasted_whatever_ends_them(tmp_path: Path, end: str) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        app.post_message(events.Paste(f"one{end}two{end}{end}three"))
        await until(pilot, lambda: prompt(app).text == "one\ntwo\n\nthree")


async def test_several_lines_are_undone_and_done_again(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    lines = "\n".join(map(str, range(12)))
    async with running(app) as pilot:
        app.post_message(events.Paste(lines))
        await until(pilot, lambda: prompt(app).text == lines)
        burst(pilot, "ctrl+z")
        await until(pilot, lambda: not prompt(app).text)
        burst(pilot, "ctrl+y")
        await until(pilot, lambda: prompt(app).text == lines)
        assert prompt(app).cursor_location == (11, 2)


@pytest.mark.parametrize("name", ["versions", "palette", "theme"])
async def test_a_page_key_in_a_list_without_room_is_none(tmp_path: Path, name: str) -> None:
    app, backend = make_app(tmp_path)
    backend.trainer_row = replace(backend.trainer_row, kept_versions=(5, 6, 7))
    async with running(app, (2, 2)) as pilot:
        await until(pilot, lambda: bool(app.controller.state.trainer.kept_versions))
        if name in DIALOGS:
            app.push_screen(DIALOGS[name](app))
        else:
            app.action_press(name)
        await until(pilot, lambda: bool(app.screen.query(OptionList)), "the list")
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: options.option_count > 0, "something to choose from")
        burst(pilot, "down", "down", "pagedown", "pageup", "escape")
        await until(pilot, lambda: app.screen is main(app))


@pytest.mark.parametrize("name", ["ask", "palette", "prompt"])
async def test_what_was_copied_is_pasted_as_text_from_outside_is(tmp_path: Path, name: str) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        app.copy_to_clipboard("one\x1b[2J\ntwo")
        if name in DIALOGS:
            app.push_screen(DIALOGS[name](app))
        elif name == "palette":
            app.action_press("palette")
        await until(pilot, lambda: isinstance(app.focused, (Input, Prompt)), "a field")
        burst(pilot, "a", "ctrl+v", "b")
        field = app.focused
        if isinstance(field, Prompt):
            await until(pilot, lambda: field.text == "aone\ntwob")
        else:
            assert isinstance(field, Input)
            await until(pilot, lambda: field.value == "aoneb")


def would_choose(app: HermesTui, title: str) -> bool:
    """Whether enter in the palette would choose an action."""
    options = app.screen.query_one(OptionList)
    at = options.highlighted
    return at is not None and title in str(options.get_option_at_index(at).prompt)


@pytest.mark.parametrize("name", [*DIALOGS, "palette", "theme"])
async def test_a_double_click_beside_a_dialog_leaves_only_the_dialog(
    tmp_path: Path, name: str
) -> None:
    app, _ = make_app(tmp_path)
    app.controller.state.pending_approvals["a"] = ASKED
    async with running(app) as pilot:
        if name in DIALOGS:
            app.push_screen(DIALOGS[name](app))
        else:
            app.action_press(name)
        await until(pilot, lambda: app.screen is not main(app))
        await click(pilot, (0, 0), times=2)
        await until(pilot, lambda: app.screen is main(app))


@pytest.mark.parametrize("name", WITH_BUTTONS)
async def test_a_double_click_on_an_answer_is_one_answer(tmp_path: Path, name: str) -> None:
    app, _ = make_app(tmp_path)
    app.controller.state.pending_approvals["a"] = ASKED
    async with running(app) as pilot:
        for place in range(2):
            answers: list[Any] = []
            dialog = DIALOGS[name](app)
            app.push_screen(dialog, answers.append)
            await until(pilot, lambda d=dialog: app.screen is d)
            x, y = dialog.query(Button)[place].region.center
            await click(pilot, (int(x), int(y)), times=2)
            await until(pilot, lambda: app.screen is main(app))
            await until(pilot, lambda a=answers: bool(a))
            assert len(answers) == 1
