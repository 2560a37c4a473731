"""Search, retry, edit, rename, delete, and what the prompt takes: chat as people know it."""

from __future__ import annotations

from pathlib import Path

from fakes.backend import FakeBackend
from fakes.screen import (
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
    until,
)
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from hermes_tui.core.deletions import Deletions
from hermes_tui.tui.app import HermesTui
from hermes_tui.tui.screens.compare_replies import CompareScreen
from hermes_tui.tui.screens.conversations import NameScreen
from hermes_tui.tui.screens.dialogs import AskScreen
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.screens.search import SearchScreen
from hermes_tui.tui.widgets.turn_view import CostLine, TurnView
from hermes_tui_services.api.client import PastTurn
from hermes_tui_services.api.wire import SearchHit


def hit_row(app: HermesTui) -> int | None:
    """Return the row of the chat's visible part in which the first hit is drawn."""
    view = chat(app).view
    row = view._hits.first_row
    return None if row is None else row - view.region.y


async def find(pilot: Pilot[None], app: HermesTui, text: str) -> None:
    """Find a text in the conversation."""
    await pilot.press("slash")
    await until(pilot, lambda: isinstance(app.screen, AskScreen), "the question")
    app.screen.query_one(Input).value = text
    await pilot.press("enter")


async def test_row_9_a_hit_is_in_view_and_marked(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    words = [f"Paragraph {n} says little.\n\n" for n in range(120)]
    words[90] = "Here the haystack holds a **sharp** Needle, in the middle of it.\n\n"
    backend.reply, backend.logprobs = words, [-0.1] * len(words)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("escape", "c")
        await find(pilot, app, "needle")
        view = chat(app).view

        def seen() -> bool:
            row = hit_row(app)
            return row is not None and 0 <= row < view.size.height

        await until(pilot, seen, "the hit in view")
        await until(pilot, lambda: view.scroll_y > view.size.height, "the way down")
        widget, _ = view._hits._first or (None, 0)
        assert isinstance(widget, Static)
        drawn = "".join(
            segment.text
            for y in range(widget.size.height)
            for segment in widget.render_line(y)
            if segment.style and segment.style.reverse
        )
        assert drawn == "Needle"
        await find(pilot, app, "Paragraph 3 ")
        await until(pilot, lambda: seen() and widget.content.plain.count("Needle") == 1)
        assert not any(s.style and s.style.reverse for s in widget.render_line(0))


async def test_row_13_long_code_wraps(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    line = "call(" + ", ".join(f"argument_{i}" for i in range(30)) + ")"
    backend.reply, backend.logprobs = [f"```python\n{line}\n```\n"], [-0.1]
    async with running(app) as pilot:
        await say_and_hear(pilot)
        code = main(app).query_one("#code-content", Static)
        drawn = [code.render_line(y).text.strip() for y in range(code.size.height)]
        assert "argument_29)" in drawn[-1]
        assert " ".join(drawn).replace(" ", "") == line.replace(" ", "")


async def test_row_15_reading_and_the_first_token_are_apart_from_speed(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.context_tokens = 8_192
    backend.hold = 0
    async with running(app, (200, 60)) as pilot:
        await say(pilot)
        state = app.controller.state
        await until(pilot, lambda: bool(state.running_turn("sess-1")), "the turn")
        ids = {"session_id": "sess-1", "episode_id": "ep-1"}
        backend.emit("completion.started", **ids, num_prompt_tokens=1_039)
        await until(pilot, lambda: "reading 1,039 tokens" in badges(app)[0])
        backend.clock.now += 21
        await until(pilot, lambda: badges(app) == ["◌ reading 1,039 tokens · 21 s"])
        box = main(app).query_one("#prompt-box")
        await until(pilot, lambda: box.border_subtitle == "context 1,039 of 8,192 · 13%")
        sampled = {"completion_id": "c", "logprobs": [-0.1], "policy_versions": [7]}
        for number in range(3):
            backend.emit(
                "completion.tokens", **ids, **sampled, start=number, token_ids=[1], texts=["x"]
            )
            await until(pilot, lambda n=number: state.turns["sess-1"][0].num_tokens == n + 1)
            backend.clock.now += 0.5
        line = main(app).query_one(CostLine)
        expected = "hermes · 3 tok · first 21.0 s · 22.0 s · 3.0 tok/s · v7"
        await until(pilot, lambda: str(line.render()) == expected)
        backend.gate.set()


def hit(session: str, said: str, match: str, at: float) -> SearchHit:
    """Return what a search finds."""
    before, _, after = said.partition(match)
    return SearchHit(
        session_key=session,
        run_id="run-9",
        started_at=at,
        finished_at=at + 0.5,
        before=before,
        match=match,
        after=after,
    )


async def test_a_search_opens_another_session_at_the_hit(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.add_session("sess-1", created_at=1)
    for number in range(30):
        said = "where is the needle" if number == 3 else f"straw {number}"
        backend.add_episode("sess-1", said, "yes", state="unscored")
    backend.hits = [hit("sess-1", "where is the needle", "needle", at=103.0)]
    async with running(app) as pilot:
        await press(pilot, "ctrl+f")
        await until(pilot, lambda: isinstance(app.screen, SearchScreen), "the search")
        app.screen.query_one(Input).value = "needle"
        listed = app.screen.query_one(OptionList)
        await until(pilot, lambda: listed.option_count == 1, "the hit")
        assert "where is the needle  · straw 0" in str(listed.get_option_at_index(0).prompt)
        await pilot.press("enter")
        await until(pilot, lambda: app.controller.state.selected == "sess-1", "the session")

        def marked() -> list[str]:
            views = main(app).query(TurnView)
            return [view.turn.user_text for view in views if view.has_class("-found")]

        await until(pilot, lambda: marked() == ["where is the needle"], "the turn")
        view = chat(app).view
        await until(pilot, lambda: 0 <= (hit_row(app) or 0) < view.size.height, "the place")


async def test_retry_answers_beside_the_old_reply(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot, "greet me")
        backend.reply, backend.logprobs = ["Good day", "!"], [-0.1, -0.2]
        await pilot.press("escape", "c", "R")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen), "the comparison")
        await until(pilot, lambda: "Good day!" in app.controller.state.turns["sess-2"][-1].text)
        assert ("start_branch", "sess-1", 1_000.0, "ep-1") in backend.calls
        comparison = app.screen.comparison  # type: ignore[attr-defined]
        assert [turn.text for turn in comparison.turns] == [
            "Hello Ada, it's a pleasure to meet you!",
            "Good day!",
        ]
        await until(pilot, lambda: comparison.num_running == 0 and comparison.episode(1))
        await pilot.press("2", "enter")
        await until(pilot, lambda: ("set_reward", "ep-2", 1.0) in backend.calls)
        assert ("set_reward", "ep-1", -1.0) in backend.calls
        await pilot.press("escape")
        await until(pilot, lambda: app.controller.state.selected == "sess-2", "the better one")


async def test_an_edited_message_begins_a_branch(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot, "first")
        backend.clock.now += 10
        await say_and_hear(pilot, "second")
        backend.past["sess-1"] = [
            PastTurn(
                run_id="run-1",
                messages=({"role": "user", "content": "first"},),
                interrupted=False,
                num_tokens=1,
                started_at=1_000.0,
                finished_at=1_001.0,
            )
        ]
        await press(pilot, *"a draft")
        await pilot.press("escape", "c", "E")
        await until(pilot, lambda: prompt(app).text == "second", "the message")
        await press(pilot, "end", *" thought", "enter")
        await until(pilot, lambda: app.controller.state.selected == "sess-2", "the branch")
        await until(pilot, lambda: "not judged yet" in "".join(badges(app)[-1:]), "its reply")

        def said() -> list[str]:
            return [turn.user_text for turn in chat(app).view.turns]

        await until(pilot, lambda: said() == ["first", "second thought"], "both turns")
        old = app.controller.state.turns["sess-1"]
        assert [turn.user_text for turn in old] == ["first", "second"]
        titles = [str(row.left) for row in sessions(app).rows if row.key in ("sess-1", "sess-2")]
        assert titles == ["▸ ↳ first", "  first"]
        await pilot.press("up", "up")
        await until(pilot, lambda: prompt(app).text == "a draft", "what was typed before")


async def test_a_session_is_renamed(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot, "hello")
        await pilot.press("escape", "s", "R")
        await until(pilot, lambda: isinstance(app.screen, NameScreen), "the question")
        app.screen.query_one(Input).value = "Ada’s greeting"
        await pilot.press("enter")
        await until(pilot, lambda: app.controller.state.title("sess-1") == "Ada’s greeting")
        assert ("rename_session", "sess-1", "Ada’s greeting") in backend.calls


def listed(app: HermesTui) -> list[str]:
    """Return the ids of the listed sessions."""
    return [row.key for row in sessions(app).rows if row.key and "\n" not in row.key]


async def two_sessions(backend: FakeBackend) -> None:
    """Have two sessions with an episode each."""
    for number in (1, 2):
        backend.add_session(f"sess-{number}", created_at=number)
        backend.add_episode(f"sess-{number}", f"hello {number}", "yes", state="unscored")


async def test_a_deleted_session_can_be_brought_back(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    await two_sessions(backend)
    async with running(app) as pilot:
        await pilot.press("escape", "s", "D")
        await until(pilot, lambda: listed(app) == ["sess-1"], "one session")
        assert any("U brings it back" in text for text in notices(app))
        await pilot.press("U")
        await until(pilot, lambda: listed(app) == ["sess-2", "sess-1"], "both sessions")
        await pilot.press("home", "D")
        await until(pilot, lambda: listed(app) == ["sess-1"], "one session")
        app.controller.state.deleted["sess-2"] = 0.0  # the seconds are over
        app.controller.deletions._wake.set()
        await until(pilot, lambda: ("delete_session", "sess-2") in backend.calls, "the end")
        await pilot.press("U")
        await until(pilot, lambda: "nothing was deleted just now" in notices(app))
        assert listed(app) == ["sess-1"]


async def test_what_is_in_use_is_not_deleted(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("f3", "escape", "s")
        state = app.controller.state
        await until(pilot, lambda: state.episodes_of("sess-1")[0].state == "scored")
        await pilot.press("D")
        await until(pilot, lambda: any("waits to be trained" in text for text in notices(app)))
        assert isinstance(app.controller.deletions, Deletions)
        assert not state.deleted


async def test_leaving_finishes_what_was_deleted(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    await two_sessions(backend)
    async with running(app) as pilot:
        await pilot.press("escape", "s", "D")
        await until(pilot, lambda: listed(app) == ["sess-1"], "one session")
    assert ("delete_session", "sess-2") in backend.calls


# The prompt --------------------------------------------------------------------------------------


async def test_ctrl_j_begins_a_line_and_ctrl_l_clears(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await press(pilot, "a", "ctrl+j", "b")
        await until(pilot, lambda: prompt(app).text == "a\nb")
        await press(pilot, "ctrl+l")
        await until(pilot, lambda: prompt(app).text == "")
        await press(pilot, "up")
        await until(pilot, lambda: prompt(app).text == "a\nb")


async def test_a_long_paste_is_one_word_until_it_is_sent(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    pasted = "\n".join(f"line {i}" for i in range(120))
    async with running(app) as pilot:
        await press(pilot, *"look: ")
        app.post_message(events.Paste(pasted))
        await until(pilot, lambda: prompt(app).text == "look: [paste 1: 120 lines]")
        app.post_message(events.Paste("x" * 2_000))
        await until(pilot, lambda: prompt(app).text.endswith("[paste 2: 2000 characters]"))
        await press(pilot, "backspace")
        await until(pilot, lambda: prompt(app).text == "look: [paste 1: 120 lines]")
        app.post_message(events.Paste(" short"))
        await until(pilot, lambda: prompt(app).text.endswith("lines] short"))
        assert main(app).draft == f"look: {pasted} short"
        await press(pilot, "enter")
        await until(pilot, lambda: bool(chat(app).view.turns))
        assert chat(app).view.turns[0].user_text == f"look: {pasted} short"


async def test_slash_commands_do_what_plain_does(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)

    async def command(pilot: Pilot[None], text: str) -> None:
        prompt(app).load_text(text)
        prompt(app).focus()
        await pilot.press("enter")

    async with running(app) as pilot:
        await say_and_hear(pilot)
        await command(pilot, "/score 0.35")
        await until(pilot, lambda: ("set_reward", "ep-1", 0.35) in backend.calls)
        await command(pilot, "/undo")
        await until(pilot, lambda: ("unset_reward", "ep-1") in backend.calls)
        await command(pilot, "/pause")
        await until(pilot, lambda: ("pause_training", True) in backend.calls)
        await command(pilot, "/rollback x")
        await until(pilot, lambda: any("/rollback takes a version" in n for n in notices(app)))
        assert prompt(app).text == "/rollback x"
        await command(pilot, "/scroe")
        await until(pilot, lambda: any("did you mean /score?" in n for n in notices(app)))
        await command(pilot, "//etc is a folder")
        await until(pilot, lambda: chat(app).view.turns[-1].user_text == "/etc is a folder")
        assert isinstance(app.screen, MainScreen)


async def test_a_slash_suggests_the_command(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await press(pilot, *"/sc")
        await until(pilot, lambda: prompt(app).suggestion == "ore")
        await press(pilot, "right")
        await until(pilot, lambda: prompt(app).text == "/score")
