"""Of a long conversation only what is near is drawn, and nothing jumps for that."""

from __future__ import annotations

from pathlib import Path

from fakes.screen import app_of, chat, main, make_app, running, say, say_and_hear, until
from textual.pilot import Pilot
from textual.selection import SELECT_ALL

from hermes_tui.core.changes import ChatTurn
from hermes_tui.tui.app import HermesTui
from hermes_tui.tui.widgets.chat_pane import MAX_MOUNTED
from hermes_tui.tui.widgets.markdown_reply import MERGED_CHARS, ReplyChunk
from hermes_tui.tui.widgets.turn_view import TurnView
from hermes_tui.tui.widgets.unread_bar import UnreadBar

PARAGRAPHS = [f"Paragraph {i} has a few words that are said.\n\n" for i in range(400)]


def mounted_chunks(app: HermesTui) -> list[ReplyChunk]:
    """Return the chunks that are mounted, in order."""
    return list(chat(app).view.query(ReplyChunk))


def seen(pilot: Pilot[None]) -> list[str]:
    """Return the lines of the chat that are on the screen."""
    region = chat(app_of(pilot)).view.region
    rows = app_of(pilot).screen._compositor.render_strips()[region.y : region.bottom]
    lines = ["".join(s.text for s in row)[region.x : region.right - 1] for row in rows]
    return [line.strip(" █▌▁▂▃▄▅▆▇") for line in lines]


def numbers(pilot: Pilot[None]) -> list[int]:
    """Return which paragraphs are seen."""
    return [int(line.split()[1]) for line in seen(pilot) if line.startswith("Paragraph")]


def visible_chunks(app: HermesTui) -> list[ReplyChunk]:
    """Return the chunks that are on the screen."""
    view = chat(app).view
    return [reply for reply in mounted_chunks(app) if reply.region.overlaps(view.region)]


async def long_reply(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    await say_and_hear(pilot)
    await until(pilot, lambda: 399 in numbers(pilot), "the end of the reply")
    await until(pilot, lambda: sum(not reply.asleep for reply in mounted_chunks(app)) < 8, "sleep")


async def test_a_long_reply_has_paragraphs_only_where_it_is_seen(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply, backend.logprobs = PARAGRAPHS, [-0.1] * len(PARAGRAPHS)
    async with running(app) as pilot:
        await long_reply(pilot)
        words = "".join(PARAGRAPHS)
        await until(pilot, lambda: len(mounted_chunks(app)) < len(words) / MERGED_CHARS * 2 + 8)
        assert len(main(app).query("MarkdownParagraph")) < 150
        assert "".join(reply.words for reply in mounted_chunks(app)) == words
        await pilot.press("escape", "c", "home")
        await until(pilot, lambda: numbers(pilot)[:1] == [0], "the beginning")
        assert len(main(app).query("MarkdownParagraph")) < 350
        await pilot.press("end")
        await until(pilot, lambda: numbers(pilot)[-1:] == [399], "the end")


async def test_what_sleeps_wakes_wherever_a_layout_brings_it_in_sight(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply, backend.logprobs = PARAGRAPHS, [-0.1] * len(PARAGRAPHS)
    async with running(app) as pilot:
        await long_reply(pilot)
        await mounted_chunks(app)[-1].sleep()
        await until(pilot, lambda: 399 in numbers(pilot), "the end of the reply")
        assert not mounted_chunks(app)[-1].asleep


async def test_what_is_selected_stays_and_what_sleeps_beside_it_wakes(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply, backend.logprobs = PARAGRAPHS, [-0.1] * len(PARAGRAPHS)
    async with running(app) as pilot:
        await long_reply(pilot)
        selected = mounted_chunks(app)[-1]
        app.screen.selections = {selected: SELECT_ALL}
        await pilot.press("escape", "c", "home")
        await until(pilot, lambda: numbers(pilot)[:1] == [0], "the beginning")
        assert not selected.asleep
        app.screen.clear_selection()
        await pilot.press("pagedown")
        await until(pilot, lambda: selected.asleep, "sleep")


async def test_what_is_read_stays_in_place_while_more_arrives(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply, backend.logprobs = PARAGRAPHS, [-0.1] * len(PARAGRAPHS)
    backend.hold = 200
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: 199 in numbers(pilot), "the first half")
        await pilot.press("f6", *["pageup"] * 3)
        await until(pilot, lambda: not chat(app).view.following)
        read = seen(pilot)
        assert numbers(pilot)
        backend.gate.set()
        await until(pilot, lambda: chat(app).view.turns[0].state == "completed", "the second half")
        await until(pilot, lambda: main(app).query_one(UnreadBar).display, "the strip at the foot")
        assert seen(pilot) == read[:-1], "but for the row of the strip"
        await pilot.press("end")
        await until(pilot, lambda: numbers(pilot)[-1:] == [399], "the end")


async def test_scrolling_back_to_the_end_follows_again_and_no_press_is_lost(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply, backend.logprobs = PARAGRAPHS, [-0.1] * len(PARAGRAPHS)
    async with running(app) as pilot:
        await long_reply(pilot)
        view = chat(app).view
        first = numbers(pilot)[0]
        await pilot.press("escape", "c", "pageup", "pageup")
        assert not view.following
        assert numbers(pilot)[-1] < first - 5, "two pages up"
        await pilot.press("pagedown", "pagedown")
        await until(pilot, lambda: view.following, "the end again")
        await pilot.press("up")
        assert not view.following
        await pilot.press("down")
        assert view.following


async def test_another_width_does_not_lose_the_place(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply, backend.logprobs = PARAGRAPHS, [-0.1] * len(PARAGRAPHS)
    async with running(app) as pilot:
        await long_reply(pilot)
        await pilot.resize_terminal(200, 50)
        await until(pilot, lambda: numbers(pilot)[-1:] == [399], "the end, wider")
        view = chat(app).view
        for _ in range(20):
            view.scroll_to(y=view.scroll_y - 16, animate=False, immediate=True)
            await until(pilot, lambda: len(numbers(pilot)) > 5, "paragraphs")
        shown = numbers(pilot)
        assert shown == list(range(shown[0], shown[0] + len(shown)))
        assert shown[0] < 330


async def test_pages_up_of_what_was_never_drawn_leave_nothing_out(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        turn = ChatTurn(turn_id="t", session_id="s", user_text="tell me", state="completed")
        turn.add_text(
            "".join(f"Paragraph {i} {'has many words ' * (i % 9)}.\n\n" for i in range(300))
        )
        view = chat(app).view
        await view.show([turn])
        await until(pilot, lambda: 299 in numbers(pilot), "the end")
        await pilot.press("escape", "c")
        passed, pages = set(numbers(pilot)), 0
        while 0 not in passed and pages < 200:
            await pilot.press("pageup")
            await until(pilot, lambda: not any(r.asleep for r in visible_chunks(app)), "words")
            passed |= set(numbers(pilot))
            pages += 1
        assert sorted(set(range(300)) - passed) == []
        await pilot.press("end", "home")
        await until(pilot, lambda: numbers(pilot)[:1] == [0], "the beginning")
        assert view.scroll_y == 0


def past(number: int) -> list[ChatTurn]:
    """Return turns as a long conversation has them."""
    turns = []
    for i in range(number):
        turn = ChatTurn(
            turn_id=f"t{i}", session_id="s", user_text=f"question {i}", state="completed"
        )
        turn.add_text(f"The answer is {i}.")
        turns.append(turn)
    return turns


async def test_find_goes_far_back_without_mounting_what_is_between(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        view = chat(app).view
        turns = past(1_200)
        await view.show(turns)
        assert view.find("answer is 7.")
        await until(pilot, lambda: "question 7" in seen(pilot), "the turn")
        assert len(view.query(TurnView)) <= MAX_MOUNTED
        assert not view.following
        assert "later turns" in str(view.query_one("#later").render())
        turns.append(past(1)[0])
        await view.sync()
        assert len(view.query(TurnView)) <= MAX_MOUNTED
        assert "question 7" in seen(pilot)
        view.do_chat_follow()
        await until(pilot, lambda: view.following and "question 1199" in seen(pilot), "the end")


async def test_scrolling_goes_on_over_the_edges_of_what_is_mounted(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        view = chat(app).view
        await view.show(past(60))
        await until(pilot, lambda: "question 59" in seen(pilot), "the end")

        def first() -> int:
            return next((int(line.split()[1]) for line in seen(pilot) if "question" in line), -1)

        for step, edge in ((-12, 0), (12, 59)):  # half of what is seen
            passed = set()
            for _ in range(100):
                passed |= {line for line in seen(pilot) if line.startswith("question")}
                if f"question {edge}" in passed:
                    break
                view.scroll_to(y=view.scroll_y + step, animate=False, immediate=True)
                await pilot.pause()
            assert f"question {edge}" in passed
            assert len(passed) == 60  # nothing is jumped over
            assert len(view.query(TurnView)) <= MAX_MOUNTED
        view.scroll_end(animate=False)
        await until(pilot, lambda: view.following)
