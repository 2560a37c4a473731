"""Strings that break terminals and markup, in every widget that shows text of others."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.backend import FakeBackend, make_sample, make_step
from fakes.screen import app_of, badges, main, make_app, notices, running, until
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from hermes_tui.core.events import ApprovalRequested, EpisodeLoaded
from hermes_tui.core.rows import CanaryRow, ProcessRow, Stage
from hermes_tui.core.status import GpuSample
from hermes_tui.core.text import clean
from hermes_tui.messages import CopyWanted
from hermes_tui.screens.approval import ApprovalScreen
from hermes_tui.screens.choices import ConfirmScreen
from hermes_tui.screens.dialogs import AskScreen
from hermes_tui.screens.start import StartScreen
from hermes_tui.widgets.logs import LogView
from hermes_tui.widgets.prompt import Prompt
from hermes_tui.widgets.turn import FoldedBlock
from hermes_tui_services.updates import ReasoningArrived, ToolCalled, ToolReturned

HOSTILE = [
    "[/INST]",
    "[/",
    "[link=https://x",
    "[bold]not bold[/bold] [@click=app.quit]x[/]",
    "\x1b[31;1mESC\x1b[2J\x1b]0;title\x07\x1b]52;c;aGFjaw==\x07",
    "\u202eevil\u2066\u200f",
    "日本語のテキスト、한국어",
    "👩‍👩‍👧‍👦 🏳️‍🌈 é ﷽",
    "a\x00b\x08\x7f\x9b31m\ud800",
    "<script>alert(1)</script> <think>hm</think>",
    "![x](file:///etc/passwd) | a | b |\n|---|---|\n| [/b] | `[red]` |",
    "```python\nprint('[/x]')\n",
    "\t\ttabs\r\rand\x0breturns " + "long" * 300,
]


def everything(backend: FakeBackend, text: str) -> None:
    """Put a text wherever a service can put one."""
    backend.add_session("s", created_at=1)
    row = backend.session_rows["s"]
    backend.session_rows["s"] = replace(row, task_id=text)
    episode_id = backend.add_episode("s", text, text, reason=text)
    backend.set_state(episode_id, "dropped", dropped_reason=text)
    backend.step_rows = [make_step(1)]
    backend.trainer_row = replace(backend.trainer_row, state="paused", reason=text)
    backend.process_rows.append(ProcessRow(name=text, state=text, reason=text))
    backend.trainer_row = replace(backend.trainer_row, untrained={text: 1}, kept_versions=(0,))
    backend.canary_rows = [
        CanaryRow(policy_version=6, prompt=text, text=text),
        CanaryRow(policy_version=7, prompt=text, reason=text),
    ]
    backend.sample = make_sample(
        backend.process_rows, (GpuSample(index=0, name=text, processes={5: None}),)
    )
    backend.write_log("supervisor", f"WARNING {text}", text)
    backend.reply = [text, " ", text]
    backend.logprobs = [-0.1, -9.0, float("nan")]
    backend.turn_events = [
        ReasoningArrived(text=text),
        ToolCalled(call_id="c", name=text, arguments=text),
        ToolReturned(call_id="c", output=text),
    ]


async def read_everything(pilot: Pilot[None], backend: FakeBackend, text: str) -> None:
    """Make every widget draw the text."""
    app = app_of(pilot)
    await app.controller.open_session("s")
    await until(pilot, lambda: bool(badges(app)))
    await app.controller.send(text)
    await until(pilot, lambda: "judged" in badges(app)[-1])
    for block in main(app).query(FoldedBlock):
        block.fold(False)
    detail = backend.details["ep-1"]
    completion = detail.completions[0]
    tokens = [replace(t, alternatives=((text, -1.0),)) for t in completion.tokens]
    shown = replace(detail, completions=(replace(completion, tokens=tuple(tokens)),))
    main(app)._on_change(EpisodeLoaded(detail=shown))
    await pilot.press("escape", "t", "left", "p", "down")
    backend.refuse = text
    await app.controller.score(1.0)
    await pilot.pause()


async def look_at_everything(pilot: Pilot[None], text: str) -> None:
    """Show the lesson, the machine and the log, each of which draws the text."""
    app = app_of(pilot)
    for key in ("l", "p", "L"):
        await pilot.press(key)
        await pilot.pause()
        assert_harmless(pilot)
    view = main(app).query_one(LogView)
    await until(pilot, lambda: view.num_shown == 2)
    view.find(text)
    view.show_only(text)
    await pilot.pause()
    assert_harmless(pilot)
    await app.push_screen(ConfirmScreen(text, text, "Yes"))
    await pilot.pause()
    assert_harmless(pilot)
    await pilot.press("escape")


def assert_harmless(pilot: Pilot[None]) -> None:
    """Check that nothing on the screen could move, colour or reorder the terminal."""
    app = app_of(pilot)
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", segment.text)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_is_only_text(tmp_path: Path, text: str) -> None:
    app, backend = make_app(tmp_path, keymap={text: text, "score_good": text})
    everything(backend, text)
    async with running(app) as pilot:
        await read_everything(pilot, backend, text)
        assert_harmless(pilot)
        await look_at_everything(pilot, text)
        await pilot.resize_terminal(80, 24)
        await look_at_everything(pilot, text)
        await pilot.press("s", "c", "t")
        assert_harmless(pilot)
        choices = (text, "deny")
        request = ApprovalRequested(session_id="s", approval_id="a", question=text, choices=choices)
        await app.push_screen(ApprovalScreen(app.controller, request))
        await app.push_screen(AskScreen(text, text, text))
        await pilot.pause()
        assert_harmless(pilot)


@pytest.mark.parametrize("key", ["", "f2", "ctrl+p"], ids=["prompt", "dialog", "palette"])
async def test_a_hostile_paste(tmp_path: Path, key: str) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press(*[key] if key else [])
        await until(pilot, lambda: isinstance(app.focused, (Prompt, Input)))
        for text in HOSTILE:
            app.post_message(events.Paste(text))
            await pilot.pause()
            assert_harmless(pilot)
        if isinstance(app.focused, Prompt):
            assert app.focused.text == clean("".join(HOSTILE))


async def test_a_hostile_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_tui.clipboard.TOOLS", ())
    app, _ = make_app(tmp_path)
    text = "".join(HOSTILE)
    async with running(app) as pilot:
        app.post_message(CopyWanted(text, text))
        await until(pilot, lambda: bool(notices(app)))
        assert_harmless(pilot)
        assert app.clipboard == clean(text)
        [file] = (tmp_path / "copied").iterdir()
        assert file.read_text(encoding="utf-8") == clean(text)


async def test_tags_of_the_model_are_shown_and_not_swallowed(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply, backend.logprobs = ["<think>hm</think> a [/INST] b"], [-0.1]
    async with running(app) as pilot:
        await app.controller.send("x")
        await until(pilot, lambda: bool(badges(app)) and "judged" in badges(app)[-1])
        shown = "".join(
            segment.text for strip in app.screen._compositor.render_strips() for segment in strip
        )
        assert "<think>hm</think> a [/INST] b" in shown


async def test_a_hostile_start(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.start_error = "".join(HOSTILE)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, StartScreen) and app.screen.failed)
        assert isinstance(app.screen, StartScreen)
        for text in HOSTILE:
            app.screen.report(Stage(process=text, state="starting", text=text))
        await pilot.pause()
        assert_harmless(pilot)
