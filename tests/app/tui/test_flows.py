"""What a person does at the screen, from the first second to leaving."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakes.backend import make_tokens
from fakes.hostile import drawn
from fakes.screen import (
    NARROW,
    WIDE,
    add_past,
    app_of,
    badges,
    chat,
    main,
    make_app,
    notices,
    press,
    prompt,
    running,
    say,
    say_and_hear,
    sessions,
    stack,
    tokens,
    until,
)
from textual import events
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from hermes_tui.core.actions import Scope
from hermes_tui.core.stack_status import ProcessState
from hermes_tui.tui.screens.confirm import ConfirmScreen
from hermes_tui.tui.screens.dialogs import Dialog, QuitScreen, RewardScreen
from hermes_tui.tui.screens.help import HelpScreen
from hermes_tui.tui.screens.layout import FOCUS
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.screens.start import StartScreen
from hermes_tui.tui.screens.theme import ThemeScreen
from hermes_tui.tui.widgets.chrome import TooSmallNotice
from hermes_tui.tui.widgets.markdown_reply import ReplyChunk
from hermes_tui.tui.widgets.score_bar import ScoreBar
from hermes_tui.tui.widgets.tool_block import FoldedBlock
from hermes_tui.tui.widgets.turn_view import TurnView
from hermes_tui.tui.widgets.unread_bar import UnreadBar
from hermes_tui_services.api.events import ReasoningArrived, ToolCalled, ToolReturned

# Starting ------------------------------------------------------------------------------------


async def test_the_start_shows_stages_then_the_prompt_has_the_focus(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.start_gate = asyncio.Event()
    async with app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: isinstance(app.screen, StartScreen))
        text = str(app.screen.query_one("#start-stages").render())
        await until(pilot, lambda: "loading" in str(app.screen.query_one("#start-stages").render()))
        text = str(app.screen.query_one("#start-stages").render())
        assert "● ready" in text
        assert "◌ starting" in text
        assert "loading weights" in text
        backend.start_gate.set()
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        await until(pilot, lambda: app.focused is prompt(app))


async def test_a_failed_start_says_why_and_exits_3(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.start_error = "trainer: no model; run `hermes-tui setup`"
    async with app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: isinstance(app.screen, StartScreen) and app.screen.failed)
        assert "no model" in str(app.screen.query_one("#start-end").render())
        await pilot.press("q")
        assert app.return_code is None
        await pilot.press("ctrl+q")
    assert app.return_code == 3


# Talking -------------------------------------------------------------------------------------


async def test_a_turn_streams_into_chat_and_tokens(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 4
    async with running(app) as pilot:
        await say(pilot, "hi there")
        await until(pilot, lambda: len(tokens(app).content.items) >= 13, "tokens while it speaks")
        await until(pilot, lambda: "Ada" in main(app).query_one(ReplyChunk).source)
        assert badges(app) == ["◌ speaking"]
        assert prompt(app).text == ""
        backend.gate.set()
        await until(pilot, lambda: "○ not judged yet" in badges(app)[0])
        assert main(app).query_one(ReplyChunk).source == "Hello Ada, it's a pleasure to meet you!"
        assert "11 tok" in str(main(app).query_one(".cost").render())
        shown = tokens(app).current
        assert shown is not None
        assert (shown.text, shown.policy_version) == ("!", 7)
    assert ("start_session", "chat") in backend.calls
    assert ("turn", "sess-1", "hi there") in backend.calls


async def test_a_second_message_waits_in_the_queue(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 2
    async with running(app) as pilot:
        await say(pilot, "one")
        await until(pilot, lambda: badges(app) == ["◌ speaking"])
        await say(pilot, "two")
        await until(pilot, lambda: "queued: two" in drawn(app))
        assert prompt(app).text == ""
        assert [call for call in backend.calls if call[0] == "turn"] == [("turn", "sess-1", "one")]
        backend.gate.set()
        await until(pilot, lambda: ("turn", "sess-1", "two") in backend.calls)


async def test_a_session_that_cannot_start_gives_the_text_back(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.refuse = "no capacity"
    async with running(app) as pilot:
        await say(pilot, "hello")
        await until(pilot, lambda: prompt(app).text == "hello")
        assert "no capacity" in notices(app)
        assert main(app).query_one("#welcome").display


async def test_a_backslash_goes_on_and_up_brings_back(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say(pilot, "a\\")
        assert prompt(app).text == "a\n"
        await pilot.press("b", "enter")
        await until(pilot, lambda: bool(badges(app)) and "judged" in badges(app)[0])
        await pilot.press("up")
        assert prompt(app).text == "a\nb"
        await pilot.press("down")
        assert prompt(app).text == ""
    assert ("turn", "sess-1", "a\nb") in backend.calls


async def test_x_interrupts_and_says_so(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 3
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: badges(app) == ["◌ speaking"])
        await pilot.press("f6", "x")
        await until(pilot, lambda: "interrupted" in badges(app)[0])
    assert ("interrupt", "sess-1") in backend.calls


async def test_a_failed_turn_shows_its_cause(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        backend.refuse = "the upstream is gone"
        await say(pilot, "again")
        await until(pilot, lambda: badges(app)[-1] == "✗ failed: the upstream is gone")


async def test_tools_and_thoughts_are_folded_and_unfold(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.turn_events = [
        ReasoningArrived(text="let me see"),
        ToolCalled(call_id="c1", name="read_file", arguments='{"path": "a.txt"}'),
        ToolReturned(call_id="c1", output="\n".join(f"line {i}" for i in range(35_000))),
    ]
    async with running(app) as pilot:
        await say_and_hear(pilot)
        blocks = list(main(app).query(FoldedBlock))
        heads = [str(block.query_one(".folded-head").render()) for block in blocks]
        assert heads == ["▸ thought · 1 line", "▸ ≡ a.txt  ✓ 35000 lines"]
        await pilot.press("escape", "c", "o")
        await until(pilot, lambda: not blocks[1].folded)
        body = str(blocks[1].query_one(".folded-body").render())
        assert "line 199" in body
        assert "line 200\n" not in body
        assert "34800 more lines" in body


# Judging -------------------------------------------------------------------------------------


async def test_score_keys(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    rewards = {
        "f3": 1.0,
        "f4": -1.0,
        "plus": 1.0,
        "minus": -1.0,
        "equals_sign": 1.0,  # a key that gives the score that is there takes it back
        "0": 0.0,
        "7": 0.7,
        "dollar_sign": -0.4,
    }
    async with running(app) as pilot:
        await say_and_hear(pilot)
        for key, reward in rewards.items():
            if key == "plus":  # printable keys score outside the prompt only
                await pilot.press("escape")
            backend.calls.clear()
            await pilot.press(key)
            await until(pilot, lambda r=reward: ("set_reward", "ep-1", r) in backend.calls)
        await until(pilot, lambda: "◆ scored −0.4" in badges(app)[0])
        await until(pilot, lambda: "episode 1 of “hello”" in main(app).query_one(ScoreBar).text)


@pytest.mark.parametrize("answer", ["enter", "ctrl+x"])
async def test_a_score_just_before_leaving_is_not_lost(
    tmp_path: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, backend = make_app(tmp_path)
    arrives, set_reward = asyncio.Event(), backend.set_reward

    async def slowly(episode_id: str, reward: float | None, feedback: str | None = None) -> None:
        await arrives.wait()
        await set_reward(episode_id, reward, feedback)

    monkeypatch.setattr(backend, "set_reward", slowly)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await press(pilot, "f3", "ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        app.post_message(events.Key(answer, None))
        asyncio.get_running_loop().call_later(0.1, arrives.set)
        await until(pilot, lambda: not app.is_running or app._exit)
    assert ("set_reward", "ep-1", 1.0) in backend.calls


async def test_f2_takes_an_exact_number_within_the_range(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, RewardScreen))
        await pilot.press(*"1.5", "enter")
        assert "between -1 and 1" in str(app.screen.query_one("#ask-hint").render())
        app.screen.query_one(Input).value = "nan"
        await pilot.press("enter")
        assert isinstance(app.screen, RewardScreen)
        app.screen.query_one(Input).value = "-0.25"
        await pilot.press("enter")
        await until(pilot, lambda: ("set_reward", "ep-1", -0.25) in backend.calls)


async def test_undo_until_it_is_claimed(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("f3")
        line = main(app).query_one(ScoreBar)
        await until(pilot, lambda: "trains in 6 s · F3 again takes it back" in line.text)
        backend.clock.now += 4.5
        await until(pilot, lambda: "trains in 2 s" in line.text, "a moving countdown")
        await pilot.press("escape", "u")
        await until(pilot, lambda: "not judged yet" in badges(app)[0])
        assert ("unset_reward", "ep-1") in backend.calls
        await pilot.press("f4")
        await until(pilot, lambda: "scored −1.0" in badges(app)[0])
        backend.set_state("ep-1", "claimed")
        await until(pilot, lambda: "in the step that runs" in badges(app)[0])
        await pilot.press("u")
        await until(pilot, lambda: any("too late to undo" in text for text in notices(app)))
        backend.set_state("ep-1", "trained", step=9)
        await until(pilot, lambda: badges(app)[0] == "▪ ● trained at step 9 · −1.0")
        await pilot.press("f3")
        await until(pilot, lambda: "trained in step 9 already" in line.text)
    assert [call for call in backend.calls if call[0] == "unset_reward"] == [
        ("unset_reward", "ep-1")
    ]


async def test_a_refused_score_shows_the_reason(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        backend.refuse = "a completion is in flight"
        await pilot.press("f3")
        await until(pilot, lambda: "a completion is in flight" in notices(app))
        assert "not judged yet" in badges(app)[0]


async def test_a_score_waits_for_the_end_of_the_turn(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 2
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: badges(app) == ["◌ speaking"])
        await pilot.press("f3")
        bar = main(app).query_one(ScoreBar)
        await until(pilot, lambda: "still replying" in bar.text)
        backend.gate.set()
        await until(pilot, lambda: "not judged yet" in badges(app)[0])
    assert not [call for call in backend.calls if call[0] == "set_reward"]


async def test_an_untrained_turn_says_why(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app) as pilot:
        await app.controller.open_session("sess-2")
        why = "cut off at services.agent.max_tokens"
        await until(pilot, lambda: badges(app) == [f"▪ ✗ not trained: {why}"])


async def test_plain_chat_has_nothing_to_score(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, training=False)
    async with running(app) as pilot:
        await pilot.press("f3")
        line = main(app).query_one(ScoreBar)
        await until(pilot, lambda: "training is off" in line.text)


async def test_a_lost_stack_is_named_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, backend = make_app(tmp_path)
    monkeypatch.setattr("hermes_tui.core.sync.RETRY_S", 0.05)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        backend.emit("broken")
        top = main(app).query_one("#top")
        await until(pilot, lambda: "out of reach: the trainer is gone" in str(top.render()))
        backend.set_state("ep-1", "trained", step=3)
        await until(pilot, lambda: "trained at step 3" in badges(app)[0])
        assert "out of reach" not in str(top.render())


async def test_rows_that_could_not_be_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, backend = make_app(tmp_path)
    monkeypatch.setattr("hermes_tui.core.sync.RETRY_S", 0.05)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await until(pilot, lambda: not app.controller.state.running_turn("sess-1"))
        await pilot.pause(0.3)  # what the turn itself set off is read by then
        backend.trainer_error = "the inference gateway does not answer"
        backend.set_state("ep-1", "trained", step=3)
        await until(pilot, lambda: "trained at step 3" in badges(app)[0])
        await until(pilot, lambda: "the inference gateway does not answer" in notices(app))
        assert not app.controller._sync._stale_episodes


# Looking -------------------------------------------------------------------------------------


async def test_sessions_are_called_by_their_first_words(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app) as pilot:
        await until(
            pilot, lambda: "Why is the sky" in "".join(str(r.left) for r in sessions(app).rows)
        )
        assert str(sessions(app).rows[0].left).strip() == "Greet Ada in one sentence."


async def test_opening_an_old_episode_pins_its_tokens(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app) as pilot:
        await pilot.press("escape", "s", "home", "down", "down", "enter")
        await until(pilot, lambda: tokens(app).episode_id == "ep-1")
        await until(pilot, lambda: len(list(main(app).query(TurnView))) == 2)
        assert app.controller.state.pinned
        await say(pilot, "more")
        await until(pilot, lambda: "not judged yet" in badges(app)[-1])
        assert tokens(app).episode_id == "ep-1"


async def test_tokens_follow_until_the_cursor_moves_and_again_at_the_end(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply = [f" word{i}" for i in range(400)]
    backend.logprobs = [-0.5] * 400
    backend.hold = 200
    async with running(app) as pilot:
        await say(pilot)
        view = tokens(app)
        await until(pilot, lambda: len(view.content.items) >= 200)
        await until(pilot, lambda: view.scroll_offset.y == view.max_scroll_y > 0)
        await pilot.press("f7", "left")
        await pilot.wait_for_scheduled_animations()  # the key's own scroll has an end
        where, top = view.cursor, view.content.index_at(view.scroll_offset.y, 0)
        backend.gate.set()
        await until(pilot, lambda: len(view.content.items) >= 400)
        # Rows may change: the view gets narrower when its scrollbar comes.
        assert (view.cursor, view.content.index_at(view.scroll_offset.y, 0)) == (where, top)
        unread = main(app).query_one("#tokens").query_one(UnreadBar)
        await until(pilot, lambda: unread.count >= 150, "a count of unread tokens")
        assert unread.display
        await pilot.press("end")
        await until(pilot, lambda: view.scroll_offset.y == view.max_scroll_y)
        assert view.following
        await until(pilot, lambda: not unread.display)


async def test_arriving_data_moves_neither_focus_nor_chat_scroll(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply = [f"- item {i}\n" for i in range(80)]
    backend.logprobs = [-0.5] * 80
    backend.hold = 60
    async with running(app) as pilot:
        await say(pilot)
        view = chat(app).view
        await until(pilot, lambda: view.scroll_offset.y == view.max_scroll_y > 10)
        await pilot.press("f6", "pageup")
        await until(pilot, lambda: not view.following)
        await pilot.pause(0.5)  # the scroll is animated
        focused, scroll = app.focused, view.scroll_offset.y
        backend.gate.set()
        await until(pilot, lambda: "judged" in badges(app)[-1])
        assert (app.focused, view.scroll_offset.y) == (focused, scroll)
        assert chat(app).query_one(UnreadBar).display
        await pilot.press("end")
        await until(pilot, lambda: view.scroll_offset.y == view.max_scroll_y)
        await until(pilot, lambda: not chat(app).query_one(UnreadBar).display)


async def test_old_turns_are_mounted_on_demand(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.add_session("long", created_at=1)
    for i in range(45):
        backend.add_episode("long", f"question {i}", f"answer {i}")
    async with running(app) as pilot:
        await app.controller.open_session("long")
        await until(pilot, lambda: len(list(main(app).query(TurnView))) == 10)
        assert "35 earlier" in str(main(app).query_one("#earlier").render())
        await until(pilot, lambda: chat(app).view.max_scroll_y > 0)
        await pilot.press("escape", "c", "home")
        await until(pilot, lambda: len(list(main(app).query(TurnView))) > 10)


async def test_find_goes_to_a_word_of_several_tokens(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("escape", "t", "slash")
        await until(pilot, lambda: isinstance(app.screen.focused, Input))
        await pilot.press(*"it's", "enter")
        await until(pilot, lambda: tokens(app).current is not None and not tokens(app).following)
        current = tokens(app).current
        assert current is not None
        assert current.text == " it"


async def test_processes_show_state_reason_and_restart(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        rows = backend.process_rows
        flapping = {"state": ProcessState.FLAPPING, "reason": "exit 1 three times in 60 s"}
        rows[1] = rows[1].model_copy(update=flapping)
        backend.emit_control()
        await until(pilot, lambda: any("✗ flapping" in str(r.left) for r in stack(app).rows))
        assert any("exit 1 three times" in str(row.left) for row in stack(app).rows)
        assert "worker-0 ✗ flapping" in str(main(app).query_one("#top").render())
        await pilot.press("escape", "p", "end", "up", "up", "R", "y")
        await until(pilot, lambda: ("restart", "worker-0") in backend.calls)


async def test_training_is_held_and_goes_on(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("escape", "l", "h")
        await until(pilot, lambda: "held" in str(main(app).query_one("#training-text").render()))
        await pilot.press("h")
        await until(pilot, lambda: backend.calls[-1] == ("pause_training", False))


async def test_badges_name_the_keys_that_were_chosen(tmp_path: Path) -> None:
    keymap = {"score_good": "ctrl+g", "score_undo": "z", "training_hold": "y"}
    app, _ = make_app(tmp_path, keymap=keymap)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await until(pilot, lambda: "not judged yet · ctrl+g good · F4 bad" in badges(app)[0])
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "ctrl+g takes it back" in badges(app)[0])
        line = main(app).query_one(ScoreBar)
        assert "ctrl+g again takes it back" in line.text
        await pilot.press("escape")
        await until(pilot, lambda: "ctrl+g again or z takes it back" in line.text)
        await pilot.press("l", "y")
        training = main(app).query_one("#training-text")
        await until(pilot, lambda: "held; y goes on" in str(training.render()))


# Room ----------------------------------------------------------------------------------------


async def test_panes_become_tabs_and_back_without_losing_the_focus(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app) as pilot:
        await pilot.press("escape", "t")
        await pilot.resize_terminal(*NARROW)
        await until(pilot, lambda: main(app).query_one("#tabs").display)
        assert tokens(app).display
        assert main(app).query_one("#tokens").display
        assert not main(app).query_one("#sessions").display
        assert app.focused is tokens(app)
        await pilot.press("s")
        await until(pilot, lambda: main(app).query_one("#sessions").display)
        assert not main(app).query_one("#right").display
        assert prompt(app).region.height > 0
        await pilot.resize_terminal(*WIDE)
        await until(pilot, lambda: main(app).query_one("#right").display)
        assert app.focused is sessions(app)


@pytest.mark.parametrize("size", [(59, 24), (80, 19), (1, 1), (2, 3), (200, 60)])
@pytest.mark.parametrize("pane", ["prompt", "system"])
async def test_every_size_is_survived_with_the_focus_where_it_was(
    tmp_path: Path, size: tuple[int, int], pane: Scope
) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        main(app).go(pane)
        await pilot.resize_terminal(*size)
        await pilot.pause()
        small = size[0] < 60 or size[1] < 20
        assert main(app).query_one(TooSmallNotice).display is small
        assert ("needs 60 columns" in drawn(app)) is (small and size[0] > 40)
        assert main(app).scope == pane
        await pilot.press("f3", "z")
        await pilot.resize_terminal(*WIDE)
        await pilot.pause()
        assert main(app).scope == pane
        assert app.focused is main(app).query_one(FOCUS[pane])
        assert prompt(app).text == ("z" if pane == "prompt" else "")


async def test_a_view_starts_in_a_tiny_terminal(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(1, 1)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, MainScreen))


# Leaving -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "stopped"), [("ctrl+x", True), ("enter", False)])
async def test_quit_asks_once(tmp_path: Path, key: str, stopped: bool) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        await pilot.press("ctrl+q", "escape")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        await pilot.press("f10")
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running or app._exit)
    assert (("shutdown",) in backend.calls) is stopped
    assert backend.calls[-1] == ("close",)
    assert app.return_code == 0


async def test_a_session_is_ended_after_a_question(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app) as pilot:
        await pilot.press("escape", "e")
        await until(pilot, lambda: "no session is open: there is nothing to end" in notices(app))
        await pilot.press("s", "enter")
        await until(pilot, lambda: bool(app.controller.state.selected))
        await pilot.press("e", "escape", "e")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert ("end_session", "sess-1") not in backend.calls
        await pilot.press("y")
        await until(pilot, lambda: ("end_session", "sess-1") in backend.calls)


async def test_a_click_beside_a_dialog_leaves_it_and_one_within_does_not(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        for key in ("f1", "f2", "ctrl+q"):
            await pilot.press(key)
            await until(pilot, lambda: isinstance(app.screen, Dialog))
            assert await pilot.click(".dialog", offset=(1, 0))
            assert isinstance(app.screen, Dialog)
            assert await pilot.click(offset=(0, 0))
            await until(pilot, lambda: isinstance(app.screen, MainScreen))
        assert app.is_running


async def test_a_click_on_the_name_opens_the_palette(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.click("#top", offset=(3, 0))
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))


async def test_ctrl_c_twice_asks_to_quit(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("ctrl+c")
        assert isinstance(app.screen, MainScreen)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))


async def test_help_names_the_keys_in_force(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, keymap={"score_good": "f3,z", "score_bad": "z"})
    async with running(app) as pilot:
        assert any("score_bad" in text and "z already means" in text for text in notices(app))
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        listed = app.screen.query_one(OptionList)
        await until(pilot, lambda: listed.option_count > 0, "the actions")
        rows = [str(option.prompt) for option in listed.options]
        assert any(row.startswith("F3 z         Score +1.0") for row in rows)
        assert any(row.startswith("F4 -         Score -1.0") for row in rows)
        await press(pilot, *"palette")
        await until(pilot, lambda: listed.option_count < 6, "what is searched")
        assert any("Command palette" in str(option.prompt) for option in listed.options)
        await press(pilot, *"zzz")
        await until(pilot, lambda: "no action" in str(listed.options[0].prompt))


async def test_a_rebound_key_works_and_the_old_one_does_not(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path, keymap={"score_good": "z", "prompt_send": "ctrl+g"})
    async with running(app) as pilot:
        await pilot.press("h", "i", "enter")
        assert prompt(app).text == "hi\n"
        await pilot.press("ctrl+g")
        await until(pilot, lambda: bool(badges(app)) and "judged" in badges(app)[0])
        await pilot.press("f3", "escape", "plus")
        await pilot.pause()
        assert not [call for call in backend.calls if call[0] == "set_reward"]
        await pilot.press("z")
        await until(pilot, lambda: ("set_reward", "ep-1", 1.0) in backend.calls)


async def choose_theme(pilot: Pilot[None], name: str) -> None:
    """Choose a theme in the dialog."""
    app = app_of(pilot)
    app.action_press("theme")
    await until(pilot, lambda: isinstance(app.screen, ThemeScreen), "the themes")
    listed = app.screen.query_one(OptionList)
    await until(pilot, lambda: listed.highlighted is not None, "the current one")
    names = [str(option.prompt)[2:].split()[0] for option in listed.options]
    listed.highlighted = names.index(name)
    await until(pilot, lambda: app.theme == name, "the preview")
    await pilot.press("enter")


async def test_row_20_a_theme_is_shown_before_it_is_chosen(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        app.action_press("theme")
        await until(pilot, lambda: isinstance(app.screen, ThemeScreen), "the themes")
        listed = app.screen.query_one(OptionList)
        await until(pilot, lambda: listed.highlighted is not None, "the current one")
        marked = [str(o.prompt) for o in listed.options if str(o.prompt).startswith("✓")]
        assert [text.split()[1] for text in marked] == ["textual-dark"]
        assert str(listed.options[listed.highlighted or 0].prompt).startswith("✓ textual-dark")
        await pilot.press("end")
        last = str(listed.options[-1].prompt).split()[0]
        await until(pilot, lambda: app.theme == last, "the preview")
        assert not app.current_theme.dark
        await pilot.press("escape")
        await until(pilot, lambda: app.theme == "textual-dark", "the theme before")
        assert not (tmp_path / "theme.json").exists()


async def test_the_theme_is_remembered(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await choose_theme(pilot, "textual-light")
        await until(pilot, lambda: (tmp_path / "theme.json").exists())
    again, _ = make_app(tmp_path)
    async with running(again):
        assert again.theme == "textual-light"
    other, _ = make_app(tmp_path, theme="nord")
    async with running(other):
        assert other.theme == "nord"


async def test_copy_says_where_it_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_tui.tui.clipboard.TOOLS", ())
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("escape", "c", "y")
        await until(pilot, lambda: any("(unconfirmed), copied/" in text for text in notices(app)))
        [copied] = (tmp_path / "copied").iterdir()
        assert copied.read_text() == "Hello Ada, it's a pleasure to meet you!"


async def test_more_tokens_than_the_buffer_holds_are_counted(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        view = tokens(app)
        view.content.capacity = 100
        view.clear("ep-x")
        for _i in range(30):
            view.extend("c", make_tokens())
        await pilot.pause()
        assert view.content.num_dropped == 330 - len(view.content.items)
        title = str(main(app).query_one("#tokens").border_title)
        assert f"{view.content.num_dropped} older left out" in title
