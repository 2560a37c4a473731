"""What comparing, asking and finding look like: pictures at 120x40 and 80x24, light and colourless.

After a wanted change: ``pytest tests/app/tui/test_snapshots_talk.py --snapshot-update``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.screen import NARROW, WIDE, add_past, app_of, make_app, stack, until
from textual.pilot import Pilot
from textual.widgets import Input, Static

from hermes_tui.core.changes import PendingApproval
from hermes_tui.tui.screens.approval import ApprovalScreen
from hermes_tui.tui.screens.compare_replies import CompareScreen
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.widgets.approval_bar import ApprovalBar
from hermes_tui.tui.widgets.prompt import Prompt

Run = Callable[[Pilot[None]], Awaitable[None]]


async def ready(pilot: Pilot[None]) -> None:
    """Wait for the main screen and the sessions' names."""
    app = app_of(pilot)
    await until(pilot, lambda: isinstance(app.screen, MainScreen))
    await until(pilot, lambda: bool(stack(app).rows))
    state = app.controller.state
    await until(pilot, lambda: all(state.turns.get(name) for name in state.sessions), "names")
    app.screen.query_one(Prompt).cursor_blink = False


async def compared(pilot: Pilot[None]) -> None:
    """Compare three replies, pick one, and score."""
    app = app_of(pilot)
    await ready(pilot)
    await pilot.press("escape", "g", "enter")
    await until(pilot, lambda: isinstance(app.screen, CompareScreen))
    await until(pilot, lambda: isinstance(app.focused, Prompt))
    await pilot.press(*"greet_Ada", "enter")

    def all_say(words: str) -> bool:
        texts = [str(b.content) for b in app.screen.query(".badge").results(Static)]
        return len(texts) == 3 and all(words in text for text in texts)

    await until(pilot, lambda: all_say("not judged yet"))
    await pilot.press("2", "enter")
    await until(pilot, lambda: all_say("scored"))
    app.clear_notifications()
    await pilot.pause()


COMMAND = PendingApproval(
    session_id="sess-1",
    approval_id="a1",
    question="deletes files recursively\n\nrm -rf build/ [/INST]",
    choices=("once", "session", "deny"),
)
CLARIFY = PendingApproval(
    session_id="sess-1",
    approval_id="a1",
    question="\n".join(f"Which Ada is meant in line {i}?" for i in range(1, 31)),
    choices=(
        *(f"the Ada of whom book number {i} tells, with all its footnotes" for i in range(1, 5)),
        "埃达·洛芙莱斯，英国数学家，为分析机写下了第一个算法，并预见到计算机不止于计算",
        "none of them: stop here [/INST], and ask me again tomorrow",
    ),
    free=True,
)


def pending_approval(question: PendingApproval) -> Run:
    """Return a run in which the agent asks while something is typed."""

    async def run(pilot: Pilot[None]) -> None:
        app = app_of(pilot)
        await ready(pilot)
        app.screen.query_one(Prompt).load_text("and then")
        request = replace(question, expires_at=app.controller.clock() + 58)
        app.controller.state.pending_approvals["a1"] = request
        app.controller.notifier.notify(request)
        await until(pilot, lambda: app.screen.query_one(ApprovalBar).display)

    return run


def answering(question: PendingApproval) -> Run:
    """Return a run that opens the question."""

    async def run(pilot: Pilot[None]) -> None:
        app = app_of(pilot)
        await pending_approval(question)(pilot)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, ApprovalScreen))
        for field in app.screen.query(Input):
            field.cursor_blink = False
        dialog = app.screen.query_one("#approval")
        await until(pilot, lambda: "58 s" in (dialog.border_subtitle or ""))

    return run


CASES: dict[str, Run] = {
    "compare": compared,
    "approval-bar": pending_approval(COMMAND),
    "answering": answering(COMMAND),
    "choosing": answering(CLARIFY),
}


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["120x40", "80x24"])
@pytest.mark.parametrize("case", CASES)
def test_picture(snap_compare: Any, tmp_path: Path, case: str, size: tuple[int, int]) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    assert snap_compare(app, terminal_size=size, run_before=CASES[case])


@pytest.mark.parametrize("case", ["compare", "answering"])
@pytest.mark.parametrize("look", ["light", "no_color"])
def test_picture_in_other_lights(
    snap_compare: Any, tmp_path: Path, look: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if look == "no_color":
        monkeypatch.setenv("NO_COLOR", "1")
    app, backend = make_app(tmp_path, theme="textual-light" if look == "light" else "textual-dark")
    add_past(backend)
    assert snap_compare(app, terminal_size=WIDE, run_before=CASES[case])
