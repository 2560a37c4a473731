"""What the agent asks before it acts: in sight, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.backend import FakeBackend
from fakes.screen import (
    NARROW,
    WIDE,
    badges,
    main,
    make_app,
    notices,
    press,
    prompt,
    running,
    say,
    until,
)
from textual.widgets import Button, Input

from hermes_tui.tui.app import HermesTui
from hermes_tui.tui.screens.approval import AnswerButtons, ApprovalScreen
from hermes_tui.tui.widgets.approval_bar import ApprovalBar
from hermes_tui_services.api.events import ApprovalRequested

COMMAND = ApprovalRequested(
    approval_id="a1",
    description="deletes files",
    command="rm -rf [/INST] x",
    choices=("once", "session", "deny"),
    expires_at=1_060.0,
)


def asking(tmp_path: Path, request: ApprovalRequested = COMMAND) -> tuple[HermesTui, FakeBackend]:
    """Return an app whose agent asks before it speaks, and waits."""
    app, backend = make_app(tmp_path)
    backend.turn_events = [request]
    backend.hold = 0
    return app, backend


def bar(app: HermesTui) -> ApprovalBar:
    """Return the line that says what is asked."""
    return main(app).query_one(ApprovalBar)


async def test_a_question_waits_in_a_line_and_takes_no_typed_key(tmp_path: Path) -> None:
    app, backend = asking(tmp_path)
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: bar(app).display)
        text = str(bar(app).render())
        assert "the agent asks: deletes files" in text
        assert "ctrl+o answers · 60 s, then it is a no" in text
        await pilot.press("o", "s", "d", "a", "1")
        assert prompt(app).text == "osda1"
        assert app.focused is prompt(app)
        assert not [call for call in backend.calls if call[0] == "approve"]


async def test_each_answer_has_a_key(tmp_path: Path) -> None:
    for key, choice in (("o", "once"), ("s", "session"), ("d", "deny")):
        app, backend = asking(tmp_path)
        async with running(app, NARROW) as pilot:
            await say(pilot)
            await until(pilot, lambda app=app: bar(app).display)
            await pilot.press("ctrl+o")
            await until(pilot, lambda app=app: isinstance(app.screen, ApprovalScreen))
            labels = [str(button.label) for button in app.screen.query(Button)]
            assert labels == ["o Allow once", "s Allow for this session", "d Deny"]
            await pilot.press(key)
            await until(
                pilot, lambda b=backend, c=choice: ("approve", "sess-1", "a1", c) in b.calls
            )
            await until(pilot, lambda app=app: not bar(app).display)


async def test_escape_decides_later_and_the_line_can_be_clicked(tmp_path: Path) -> None:
    app, backend = asking(tmp_path)
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: bar(app).display)
        await pilot.click(ApprovalBar)
        await until(pilot, lambda: isinstance(app.screen, ApprovalScreen))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, ApprovalScreen))
        assert bar(app).display
        await pilot.press("f7", "a")  # from another pane
        await until(pilot, lambda: isinstance(app.screen, ApprovalScreen))
        await pilot.press("enter")  # alone it allows nothing
        await until(pilot, lambda: ("approve", "sess-1", "a1", "deny") in backend.calls)


async def test_the_seconds_run_out_into_a_no(tmp_path: Path) -> None:
    app, backend = asking(tmp_path)
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: bar(app).display)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, ApprovalScreen))
        backend.clock.now += 15
        dialog = app.screen.query_one("#approval")
        await until(pilot, lambda: "within 45 s is a no" in (dialog.border_subtitle or ""))
        backend.clock.now += 50
        await until(pilot, lambda: not isinstance(app.screen, ApprovalScreen))
        await until(pilot, lambda: not bar(app).display)
        assert "nobody answered the agent in time: that is a no" in notices(app)
        assert not [call for call in backend.calls if call[0] == "approve"]


async def test_a_turn_that_ends_takes_its_question_along(tmp_path: Path) -> None:
    app, backend = asking(tmp_path)
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: bar(app).display)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, ApprovalScreen))
        backend.gate.set()
        await until(pilot, lambda: not isinstance(app.screen, ApprovalScreen))
        await until(pilot, lambda: "not judged yet" in badges(app)[0])
        assert not bar(app).display


async def test_a_clarifying_question_takes_words_or_a_suggestion(tmp_path: Path) -> None:
    question = ApprovalRequested(
        approval_id="a2", kind="clarify", description="Which Ada?", choices=("Lovelace",)
    )
    for keys, answer in (
        (["m", "e", "enter"], "me"),
        (["tab", "enter"], "Lovelace"),
        (["1", "enter"], "Lovelace"),
    ):
        app, backend = asking(tmp_path, question)
        async with running(app) as pilot:
            await say(pilot)
            await until(pilot, lambda app=app: bar(app).display)
            await pilot.press("ctrl+o")
            await until(pilot, lambda app=app: isinstance(app.focused, Input))
            await pilot.press(*keys)
            await until(
                pilot, lambda b=backend, a=answer: ("approve", "sess-1", "a2", a) in b.calls
            )


async def test_without_a_question_the_key_says_so(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "the agent asks nothing now" in notices(app))


CHOICES = (
    *(f"the Ada number {i} of whom I have read in a book of the year 18" for i in range(1, 4)),
    "埃达·洛芙莱斯，英国数学家，为分析机写下了第一个算法，并预见到计算机不止于计算，还能作曲、绘画与写作的那位",
    "none of them; [/INST] stop here, and ask me again tomorrow mor",
    "all of them, one after the other, each in a file of her own, y",
)


@pytest.mark.parametrize("size", [WIDE, NARROW, (60, 20)], ids=str)
@pytest.mark.parametrize("by", ["key", "mouse"])
async def test_many_long_answers_can_all_be_read_and_given(
    tmp_path: Path, size: tuple[int, int], by: str
) -> None:
    question = ApprovalRequested(
        approval_id="a3",
        kind="clarify",
        description="\n".join(f"line {i} of a long question" for i in range(40)),
        choices=CHOICES,
        expires_at=1_060.0,
    )
    app, backend = asking(tmp_path, question)
    async with running(app, size) as pilot:
        await say(pilot)
        await until(pilot, lambda: bar(app).display)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.focused, Input))
        dialog = app.screen.query_one("#approval")
        assert dialog.region in app.screen.region
        assert "within 60 s is a no" in str(dialog.border_subtitle)
        question = app.screen.query_one("#approval-scroll")
        await press(pilot, *["pagedown"] * 20)
        await until(pilot, lambda: question.scroll_y == question.max_scroll_y > 0)
        buttons = list(app.screen.query(Button))
        answers = app.screen.query_one(AnswerButtons)
        for button, choice in zip(buttons, CHOICES, strict=True):
            await pilot.press("down" if by == "key" else "tab")
            await until(pilot, lambda b=button: app.focused is b)
            await until(pilot, lambda b=button: b.region in answers.region, "all of the button")
            assert drawn(button).endswith(choice.replace(" ", ""))
        if by == "key":
            await pilot.press("shift+tab", "enter")
        else:
            await pilot.click(buttons[4])
        await until(pilot, lambda: ("approve", "sess-1", "a3", CHOICES[4]) in backend.calls)


def drawn(button: Button) -> str:
    """Return what a button shows, without blanks."""
    lines = [button.render_line(y).text for y in range(button.size.height)]
    return "".join("".join(lines).split())
