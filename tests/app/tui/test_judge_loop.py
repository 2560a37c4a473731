"""Judging what one sees, talking on meanwhile, leaving and coming back, as a new user does it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.backend import FakeBackend
from fakes.hostile import drawn
from fakes.screen import (
    NARROW,
    WIDE,
    add_past,
    badges,
    main,
    make_app,
    notices,
    press,
    prompt,
    running,
    say,
    say_and_hear,
    sessions,
    until,
)
from textual import events
from textual.pilot import Pilot
from textual.widgets import Button, Input, Static

from hermes_tui.core.changes import PendingApproval
from hermes_tui.core.program import typed_program
from hermes_tui.tui.app import ON_TOP_POLL_S, HermesTui
from hermes_tui.tui.screens.approval import ApprovalScreen
from hermes_tui.tui.screens.dialogs import AskScreen, QuitScreen, RewardScreen
from hermes_tui.tui.screens.layout import REFUSAL_S
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.screens.start import StartScreen
from hermes_tui.tui.widgets.chrome import Hints, TopBar
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.queue_bar import QueueBar
from hermes_tui.tui.widgets.score_bar import ScoreBar

SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["120x40", "80x24"])


def bar(app: HermesTui) -> str:
    """Return the whole line above the prompt; empty while it is hidden."""
    return main(app).query_one(ScoreBar).text


def drawn_bar(app: HermesTui) -> str:
    """Return what there is room for of the line above the prompt."""
    return main(app).query_one(ScoreBar).render().plain


def footer(app: HermesTui) -> str:
    """Return the footer as drawn."""
    return main(app).query_one(Hints).render().plain


def queued(app: HermesTui) -> tuple[str, ...]:
    """Return the lines of the queued messages."""
    return main(app).query_one(QueueBar).lines


def rewards(backend: FakeBackend) -> list[tuple[object, ...]]:
    """Return the scores that were given and taken back, in order."""
    return [call[:3] for call in backend.calls if call[0] in ("set_reward", "unset_reward")]


# Judging -------------------------------------------------------------------------------------


@SIZES
async def test_row_1_the_same_key_takes_a_score_back_from_the_prompt(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app, backend = make_app(tmp_path)
    async with running(app, size) as pilot:
        await say_and_hear(pilot)
        assert app.focused is prompt(app)
        await pilot.press("f3")
        await until(pilot, lambda: "trains in 6 s" in bar(app), "the countdown")
        assert "scored +1.0" in bar(app)
        assert "F3 again" in bar(app)
        for needed in ("+1.0", "trains in 6 s", "F3", "takes it back"):
            assert needed in drawn_bar(app)
        assert main(app).query_one(ScoreBar).region.height == 1
        assert not [text for text in notices(app) if "scored" in text]
        await until(pilot, lambda: "F3 take back" in footer(app), "the footer's word")
        backend.clock.now += 1.5
        await until(pilot, lambda: "trains in 5 s" in bar(app), "a moving countdown")
        await pilot.press("f3")
        await until(pilot, lambda: "not judged yet" in badges(app)[0])
        await until(pilot, lambda: not bar(app))
        assert rewards(backend) == [("set_reward", "ep-1", 1.0), ("unset_reward", "ep-1")]
        assert prompt(app).text == ""


async def test_row_1_the_line_is_painted_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("f3")
        await until(pilot, lambda: "trains in 6 s" in bar(app))
        painted: list[str] = []
        refresh = ScoreBar.refresh

        def counted(self: ScoreBar, *regions: object, **how: object) -> ScoreBar:
            painted.append(self.text)
            return refresh(self, *regions, **how)  # type: ignore[arg-type]

        monkeypatch.setattr(ScoreBar, "refresh", counted)
        for _ in range(20):
            backend.clock.now += 0.1
            await main(app)._tick()
        assert len(painted) == 2
        assert len(set(painted)) == 2


async def test_row_1_another_key_replaces_the_score(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("f3")
        await until(pilot, lambda: "scored +1.0" in bar(app))
        await pilot.press("f4")
        await until(pilot, lambda: "scored -1.0" in bar(app))
        assert rewards(backend) == [("set_reward", "ep-1", 1.0), ("set_reward", "ep-1", -1.0)]


async def test_row_3_a_number_appears_as_it_was_typed(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, RewardScreen))
        await press(pilot, *"0.35", "enter")
        await until(pilot, lambda: "scored +0.35" in bar(app))
        await until(pilot, lambda: "scored +0.35" in badges(app)[0])
        rows = [f"{row.left} {row.right}" for row in sessions(app).rows]
        assert any("+0.35" in row for row in rows)
        assert ("set_reward", "ep-1", 0.35) in rewards(backend)


async def test_row_4_a_score_goes_to_what_is_marked(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.add_session("sess-1", created_at=10)
    for text in ("one", "two"):
        backend.add_episode("sess-1", text, "as you say", state="ended", version=7)
    async with running(app) as pilot:
        await app.controller.open_session("sess-1", "ep-1")
        await until(pilot, lambda: "▪ " in "".join(badges(app)[:1]), "the mark of the turn")
        assert "F3 good" in badges(app)[0]
        assert "▪" not in badges(app)[1]
        assert "F3" not in badges(app)[1]
        rows = [str(row.left) for row in sessions(app).rows]
        assert [row for row in rows if "▪" in row] == [row for row in rows if "▪ 1" in row] != []
        assert "F4 bad" in footer(app)
        await pilot.press("f4")
        await until(pilot, lambda: "episode 1 of" in bar(app))
        await until(pilot, lambda: "scored −1.0" in badges(app)[0])
        assert rewards(backend) == [("set_reward", "ep-1", -1.0)]


def two_past_episodes(backend: FakeBackend) -> None:
    """Have a session with two episodes that nobody has judged, and an older one with another."""
    backend.add_session("sess-1", created_at=10)
    for text in ("one", "two"):
        backend.add_episode("sess-1", text, "as you say", state="ended", version=7)
    backend.add_session("sess-2", created_at=5)
    backend.add_episode("sess-2", "three", "as you say", state="ended", version=7)


def marked_rows(app: HermesTui) -> list[str]:
    """Return the keys of the rows that bear the mark in the list of sessions."""
    return [row.key for row in sessions(app).rows if "▪" in str(row.left)]


@SIZES
async def test_row_4_in_the_list_a_score_goes_to_the_row_under_the_cursor(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app, backend = make_app(tmp_path)
    two_past_episodes(backend)
    async with running(app, size) as pilot:
        await app.controller.open_session("sess-1")
        await until(pilot, lambda: marked_rows(app) == ["sess-1\nep-2"])
        await press(pilot, "escape", "s", "home", "down", "down")
        await until(pilot, lambda: sessions(app).cursor_key == "sess-1\nep-1")
        await until(pilot, lambda: marked_rows(app) == ["sess-1\nep-1"], "the mark follows")
        await until(pilot, lambda: "F3 good" in footer(app))
        await pilot.press("f3")
        await until(pilot, lambda: "+1.0" in drawn_bar(app))
        assert "episode 1" in drawn_bar(app)
        assert "F3" in drawn_bar(app)
        await pilot.press("f4")
        await until(pilot, lambda: "-1.0" in drawn_bar(app))
        await press(pilot, "end", "f4")
        await until(pilot, lambda: "episode 1 of “three”" in bar(app))
        assert "episode 1" in drawn_bar(app)
        assert rewards(backend) == [
            ("set_reward", "ep-1", 1.0),
            ("set_reward", "ep-1", -1.0),
            ("set_reward", "ep-3", -1.0),
        ]
        main(app).go("chat")
        await until(pilot, lambda: marked_rows(app) == ["sess-1\nep-2"], "the open one again")


async def test_row_4_in_the_list_keys_are_offered_for_the_row_under_the_cursor(
    tmp_path: Path,
) -> None:
    app, backend = make_app(tmp_path)
    two_past_episodes(backend)
    backend.set_state("ep-1", "trained", step=3)
    async with running(app) as pilot:
        await app.controller.open_session("sess-1")
        await press(pilot, "escape", "s", "home", "down")
        await until(pilot, lambda: "F3 good  F4 bad  F2 exact" in footer(app))
        await pilot.press("down")
        await until(pilot, lambda: "F3" not in footer(app), "a trained one is under the cursor")
        assert "F4" not in footer(app)
        assert "F2" not in footer(app)
        await press(pilot, "f3", "down", "e")
        await until(pilot, lambda: "End “three”?" in drawn(app), "the session under the cursor")
        assert not rewards(backend)


@SIZES
async def test_row_5_what_cannot_be_trained_says_so_before_it_is_scored(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app, backend = make_app(tmp_path)
    backend.add_session("sess-1", created_at=10)
    backend.add_episode("sess-1", "one", "as you say", state="ended", version=1)
    app.controller.rewards._max_staleness = 4
    async with running(app, size) as pilot:
        await app.controller.open_session("sess-1")
        await until(pilot, lambda: "can't be trained" in "".join(badges(app)))
        assert "too old" in badges(app)[0]
        assert "F3" not in badges(app)[0] + footer(app)
        assert "F4" not in footer(app)
        assert "F2" not in footer(app)
        for key in ("f3", "f4", "f2"):
            await pilot.press(key)
            await until(pilot, lambda: "too old" in bar(app), key)
            assert "can't be trained: " in drawn_bar(app)
            await press(pilot, "x")
            assert not notices(app), "a toast would lie over the prompt"
            backend.clock.now += REFUSAL_S
            await until(pilot, lambda: not bar(app), "it goes by itself")
        assert isinstance(app.screen, MainScreen)
        assert prompt(app).text == "xxx"
        assert not rewards(backend)


@SIZES
async def test_item_1_a_sentence_goes_with_a_score(tmp_path: Path, size: tuple[int, int]) -> None:
    app, backend = make_app(tmp_path)
    async with running(app, size) as pilot:
        await say_and_hear(pilot)
        await pilot.press("f3")
        await until(pilot, lambda: "F2 says why" in bar(app))
        await pilot.press("escape")
        await until(
            pilot, lambda: "w says why" in bar(app), "the key that works outside the prompt"
        )
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        await until(pilot, lambda: isinstance(app.focused, Input))
        await press(pilot, *"short and warm", "enter")
        await until(pilot, lambda: "“short and warm”" in badges(app)[0])
        assert ("set_reward", "ep-1", None, "short and warm") in backend.calls
        row = app.controller.state.episode("ep-1")
        assert row is not None
        assert (row.reward, row.feedback) == (1.0, "short and warm")


async def test_item_1_f2_takes_a_number_then_why(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, RewardScreen))
        await press(pilot, *"-0,5 too long", "enter")
        await until(pilot, lambda: ("set_reward", "ep-1", -0.5, "too long") in backend.calls)
        await until(pilot, lambda: "“too long”" in badges(app)[0])
        await until(pilot, lambda: "F2 changes it" in bar(app))
        assert "esc, u takes it back" in bar(app)
        assert "F2 again" not in bar(app)
        assert "says why" not in bar(app)
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.focused, Input))
        assert isinstance(app.focused, Input)
        assert app.focused.value == "-0.5 too long "
        await press(pilot, "ctrl+u", "enter")
        await until(pilot, lambda: "not judged yet" in badges(app)[0])
        assert backend.calls[-1] == ("unset_reward", "ep-1")


async def test_item_1_f2_says_why_after_a_key(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("f3")
        await until(pilot, lambda: "F2 says why" in bar(app))
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.focused, Input))
        assert isinstance(app.focused, Input)
        assert app.focused.value == "+1.0 "
        await press(pilot, "home", "x", "enter")
        await until(pilot, lambda: "is not a number" in drawn(app))
        await press(pilot, "backspace")
        await until(pilot, lambda: "is not a number" not in drawn(app), "an edit ends the error")
        await until(pilot, lambda: "a number between" in drawn(app))
        await press(pilot, "end", *"it greets", "enter")
        await until(pilot, lambda: "“it greets”" in badges(app)[0])
        assert backend.calls[-1] == ("set_reward", "ep-1", 1.0, "it greets")


async def test_item_1_score_keys_are_offered_only_where_they_do_something(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 2
    async with running(app) as pilot:
        assert "F3" not in footer(app)
        await say(pilot)
        await until(pilot, lambda: badges(app) == ["◌ speaking"])
        assert "F3" not in footer(app)
        backend.gate.set()
        await until(pilot, lambda: "not judged yet" in badges(app)[0])
        await until(pilot, lambda: "F3 good  F4 bad  F2 exact" in footer(app))
        backend.set_state("ep-1", "trained", step=3)
        await until(pilot, lambda: "F3" not in footer(app))


# While the agent speaks ----------------------------------------------------------------------


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_row_6_one_key_interrupts_and_the_footer_names_it(tmp_path: Path, key: str) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 2
    async with running(app) as pilot:
        assert "interrupt" not in footer(app)
        await say(pilot)
        await until(pilot, lambda: "esc interrupt" in footer(app))
        await pilot.press(key)
        await until(pilot, lambda: "interrupted" in badges(app)[0])
        assert ("interrupt", "sess-1") in backend.calls
        assert app.focused is prompt(app)
        await until(pilot, lambda: "interrupt" not in footer(app))
        assert not any("quits" in text for text in notices(app))


async def test_row_6_escape_interrupts_from_every_pane(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 2
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: badges(app) == ["◌ speaking"])
        main(app).go("tokens")
        await until(pilot, lambda: "esc interrupt" in footer(app))
        await pilot.press("escape")
        await until(pilot, lambda: "interrupted" in badges(app)[0])


@SIZES
async def test_row_6_enter_queues_a_message_that_can_be_edited_until_it_goes(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 2
    async with running(app, size) as pilot:
        await say(pilot, "one")
        await until(pilot, lambda: badges(app) == ["◌ speaking"])
        await until(pilot, lambda: "enter queue" in footer(app))
        await say(pilot, "two")
        await until(pilot, lambda: queued(app) == ("◌ queued: two",))
        assert prompt(app).text == ""
        assert "queued: two · ↑ edits" in drawn(app)
        await press(pilot, "up", "!")
        await until(pilot, lambda: prompt(app).text == "two!")
        await until(pilot, lambda: not queued(app))
        await press(pilot, "enter")
        await until(pilot, lambda: queued(app) == ("◌ queued: two!",))
        assert [call for call in backend.calls if call[0] == "turn"] == [("turn", "sess-1", "one")]
        backend.hold = None
        backend.gate.set()
        await until(pilot, lambda: ("turn", "sess-1", "two!") in backend.calls, "the queued turn")
        await until(pilot, lambda: not queued(app))
        assert len([call for call in backend.calls if call[0] == "turn"]) == 2


async def test_row_6_a_queued_message_goes_after_an_interrupt(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 2
    async with running(app) as pilot:
        await say(pilot, "one")
        await until(pilot, lambda: badges(app) == ["◌ speaking"])
        await say(pilot, "two")
        await until(pilot, lambda: bool(queued(app)))
        backend.hold = None
        await pilot.press("escape")
        await until(pilot, lambda: ("turn", "sess-1", "two") in backend.calls)


# Starting ------------------------------------------------------------------------------------


async def on_start(pilot: Pilot[None], app: HermesTui) -> StartScreen:
    """Wait for the start screen, with processes in it."""
    await until(pilot, lambda: isinstance(app.screen, StartScreen))
    stages = app.screen.query_one("#start-stages", Static)
    await until(pilot, lambda: "loading" in str(stages.render()))
    assert isinstance(app.screen, StartScreen)
    return app.screen


@SIZES
async def test_row_2_what_is_typed_while_it_starts_goes_into_the_prompt(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app, backend = make_app(tmp_path)
    backend.start_gate = asyncio.Event()
    async with app.run_test(size=size) as pilot:
        start = await on_start(pilot, app)
        await press(pilot, *"questions pleasx", "backspace", "e", "escape", "tab", "q")
        await until(pilot, lambda: start.prompt.text == "questions pleaseq", "what was typed")
        assert app.screen is start
        backend.start_gate.set()
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        await until(pilot, lambda: prompt(app).text == "questions pleaseq")
        assert app.focused is prompt(app)
        await press(pilot, *" and on")
        await until(pilot, lambda: prompt(app).text == "questions pleaseq and on")
    assert not [call for call in backend.calls if call[0] in ("turn", "shutdown")]


async def test_row_2_a_message_finished_while_it_starts_is_sent_once_the_agent_is_there(
    tmp_path: Path,
) -> None:
    app, backend = make_app(tmp_path)
    backend.start_gate = asyncio.Event()
    async with app.run_test(size=WIDE) as pilot:
        start = await on_start(pilot, app)
        await press(pilot, *"hello", "enter", *"and more")
        sent = start.query_one("#start-sent", Static)
        await until(pilot, lambda: "hello" in str(sent.render()))
        await until(pilot, lambda: start.prompt.text == "and more")
        backend.start_gate.set()
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        await until(pilot, lambda: ("turn", "sess-1", "hello") in backend.calls)
        await until(pilot, lambda: prompt(app).text == "and more")


async def test_row_2_keys_of_the_first_moment_are_not_lost(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        for key in "what is a query":
            app.post_message(events.Key("space" if key == " " else key, key))
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        await until(pilot, lambda: prompt(app).text == "what is a query")


async def test_row_2_the_start_has_identity_order_and_progress(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.start_gate = asyncio.Event()
    async with app.run_test(size=NARROW) as pilot:
        start = await on_start(pilot, app)
        assert "hermes-tui" in str(start.query_one("#start-title", Static).render())
        lead = str(start.query_one("#start-lead", Static).render())
        assert "1 of 2 processes ready" in lead
        assert "━" in lead
        assert "╌" in lead
        rows = str(start.query_one("#start-stages", Static).render()).splitlines()
        assert [row.split()[2] for row in rows] == ["router", "trainer"]
        assert "you can type already" in str(start.query_one("#start-end", Static).render())


async def test_the_question_of_leaving_stays_when_the_agent_gets_ready_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, backend = make_app(tmp_path)
    backend.start_gate = asyncio.Event()
    reopen = app.controller.reopen

    async def asked_at_the_last_moment() -> str:
        draft = await reopen()
        app.do_quit()
        return draft

    monkeypatch.setattr(app.controller, "reopen", asked_at_the_last_moment)
    async with app.run_test(size=WIDE) as pilot:
        await on_start(pilot, app)
        await press(pilot, *"half a line")
        backend.start_gate.set()
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        await pilot.pause(3 * ON_TOP_POLL_S)
        assert isinstance(app.screen, QuitScreen)
        await press(pilot, *"s", "escape")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        await until(pilot, lambda: prompt(app).text == "half a lines")
    assert not [call for call in backend.calls if call[0] == "shutdown"]


# Leaving and coming back ---------------------------------------------------------------------


async def test_row_17_enter_in_the_quit_dialog_never_stops_the_stack(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        for key in ("right", "left", "left", "down", "tab", "tab", "shift+tab"):
            await pilot.press(key)
            assert isinstance(app.focused, Button)
            assert app.focused.id != "stop"
        app.screen.query_one("#detach").focus()
        app.post_message(events.Key("enter", "\r"))
        await until(pilot, lambda: not app.is_running or app._exit)
    assert ("shutdown",) not in backend.calls
    assert app.return_code == 0


async def test_row_2_text_in_the_quit_dialog_is_the_prompts(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await press(pilot, *"so ", "ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        await press(pilot, *"stop dropping")
        await until(pilot, lambda: prompt(app).text == "so stop dropping")
        assert isinstance(app.screen, QuitScreen)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is main(app))
    assert ("shutdown",) not in backend.calls


async def test_row_17_what_goes_on_is_told_with_the_command_that_ends_it(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 2
    async with running(app) as pilot:
        await say(pilot, "a long story")
        await until(pilot, lambda: badges(app) == ["◌ speaking"])
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        app.post_message(events.Key("enter", "\r"))
        await until(pilot, lambda: not app.is_running or app._exit)
    [words] = app.last_words
    assert f"goes on in {tmp_path}." in words
    assert "replying in “a long story”" in words
    assert words.splitlines()[-2:] == [
        "  hermes-tui       opens it again",
        "  hermes-tui stop  ends it",
    ]


async def test_row_17_the_command_is_one_that_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / ".venv" / "bin" / "hermes-tui"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(program.with_name("python")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typed_program() == ".venv/bin/hermes-tui"
    monkeypatch.chdir(program.parent)
    assert typed_program() == "./hermes-tui"
    monkeypatch.setenv("PATH", str(program.parent))
    assert typed_program() == "hermes-tui"

    app, _ = make_app(tmp_path)
    app.settings = replace(app.settings, command=".venv/bin/hermes-tui 'run.dir=/a run'")
    async with running(app) as pilot:
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        about = " ".join(str(label.render()) for label in app.screen.query(Static))
        assert "`.venv/bin/hermes-tui 'run.dir=/a run'` opens it again" in about
        app.post_message(events.Key("enter", "\r"))
        await until(pilot, lambda: not app.is_running or app._exit)
    [words] = app.last_words
    assert "  .venv/bin/hermes-tui stop 'run.dir=/a run'  ends it" in words


async def test_row_17_coming_back_opens_what_was_open_with_its_title(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app) as pilot:
        await app.controller.open_session("sess-1")
        await press(pilot, *"half a li")
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        app.post_message(events.Key("enter", "\r"))
        await until(pilot, lambda: not app.is_running or app._exit)
    again = HermesTui(app.controller, app.settings)
    again.controller.state.selected = ""
    async with running(again) as pilot:
        assert again.controller.state.selected == "sess-1"
        assert prompt(again).text == "half a li"
        rows = [str(row.left) for row in sessions(again).rows]
        assert any("Greet Ada" in row for row in rows)
        assert not any(row.strip().endswith("chat") for row in rows)


async def test_row_18_a_stop_from_elsewhere_reads_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_tui.core.sync.RETRY_S", 0.05)
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        backend.stop_elsewhere()
        top = main(app).query_one(TopBar)
        await until(pilot, lambda: "the stack was stopped" in str(top.render()))
        assert "out of reach" not in str(top.render())


async def test_row_22_a_copy_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_tui.tui.clipboard.TOOLS", ())
    app, _ = make_app(tmp_path)
    async with app.run_test(size=NARROW, notifications=True) as pilot:
        await until(pilot, lambda: isinstance(app.focused, Prompt))
        await say_and_hear(pilot)
        main(app).go("chat")
        await pilot.press("y")
        await until(pilot, lambda: any("copied/" in text for text in notices(app)))
        [text] = [text for text in notices(app) if "copied/" in text]
        await until(pilot, lambda: any(text in row for row in drawn(app).splitlines()))


# Where commands run --------------------------------------------------------------------------


@SIZES
async def test_row_19_the_pane_says_where_commands_run(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app, backend = make_app(tmp_path)
    backend.workdir = "/srv/agents/work"
    async with running(app, size) as pilot:
        await until(pilot, lambda: "commands run in /srv/agents/work" in drawn(app))
        await say_and_hear(pilot)
        place = app.controller.state.directory("sess-1")
        assert place.startswith("/srv/agents/work/sess-1-")
        await until(pilot, lambda: place.rsplit("/")[-1] in drawn(app))
        assert Prompt.__name__ == type(app.focused).__name__


async def test_row_19_the_question_says_where_the_command_would_run(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.workdir = "/srv/agents/work"
    asked = PendingApproval(
        session_id="sess-1", approval_id="a", question="rm -rf build/", choices=("once", "deny")
    )
    async with running(app) as pilot:
        app.controller.state.pending_approvals["a"] = asked
        await app.push_screen(ApprovalScreen(app.controller, asked))
        place = app.controller.state.directory("sess-1")
        await until(pilot, lambda: f"runs in {place}" in drawn(app))
