"""Strings that break terminals and markup, in every widget that shows text of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes.backend import FakeBackend, make_sample, make_step
from fakes.hostile import HOSTILE, MARK, assert_harmless, drawn
from fakes.screen import (
    NARROW,
    WIDE,
    app_of,
    badges,
    chat,
    main,
    make_app,
    notices,
    running,
    sessions,
    stack,
    until,
)
from textual import events
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from hermes_tui.core.changes import EpisodeLoaded, PendingApproval
from hermes_tui.core.compare_replies import Comparison
from hermes_tui.core.models import CanaryRow, StartStage
from hermes_tui.core.sanitize import clean
from hermes_tui.core.stack_status import GpuSample, ProcessState, ProcessStatus
from hermes_tui.tui.messages import CopyRequested
from hermes_tui.tui.screens.approval import ApprovalScreen
from hermes_tui.tui.screens.compare_replies import CompareScreen
from hermes_tui.tui.screens.confirm import ConfirmScreen
from hermes_tui.tui.screens.dialogs import AskScreen
from hermes_tui.tui.screens.start import StartScreen
from hermes_tui.tui.widgets.approval_bar import ApprovalBar
from hermes_tui.tui.widgets.chrome import TopBar
from hermes_tui.tui.widgets.logs_pane import LogsPane
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.reply_column import ReplyColumn
from hermes_tui.tui.widgets.token_view import TokensPane
from hermes_tui.tui.widgets.training_pane import TrainingPane
from hermes_tui_services.api.events import ReasoningArrived, ToolCalled, ToolReturned

each_text = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def everything(backend: FakeBackend, text: str) -> None:
    """Put a text wherever a service can put one."""
    backend.model = text
    backend.add_session("s", created_at=1)
    backend.session_rows["s"] = replace(backend.session_rows["s"], task_id=text)
    backend.add_session("titled-by-its-task", created_at=0)
    row = backend.session_rows["titled-by-its-task"]
    backend.session_rows["titled-by-its-task"] = replace(row, task_id=text, group_id=text)
    episode_id = backend.add_episode("s", text, text, reason=text)
    backend.set_state(episode_id, "dropped", dropped_reason=text)
    backend.step_rows = [make_step(1)]
    backend.trainer_row = replace(
        backend.trainer_row,
        state="paused",
        reason=text,
        untrained={text: 1},
        kept_versions=(0,),
        notices=(text,),
    )
    backend.process_rows.append(ProcessStatus(name=text, state=ProcessState.FAILED, reason=text))
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


async def talk(pilot: Pilot[None], backend: FakeBackend, text: str) -> None:
    """Have the agent say it, in words, thoughts, calls, results, and a failure."""
    app = app_of(pilot)
    await app.controller.open_session("s")
    await until(pilot, lambda: bool(badges(app)))
    await app.controller.send(text)
    await until(pilot, lambda: "judged" in badges(app)[-1])
    for block in main(app).query("FoldedBlock"):
        block.fold(False)
    backend.refuse = text
    await app.controller.send(text)
    await until(pilot, lambda: MARK in badges(app)[-1])


def load_tokens(pilot: Pilot[None], backend: FakeBackend, text: str) -> None:
    """Show two segments, a token under the cursor that had alternatives, and why they broke."""
    app = app_of(pilot)
    detail = backend.details["ep-1"]
    [first] = detail.completions
    tokens = tuple(replace(token, alternatives=((text, -1.0),)) for token in first.tokens)
    second = replace(first, completion_id="2", tokens=tokens, shared_tokens=1, difference=text)
    app.controller.state.shown = "ep-1"
    main(app)._on_change(EpisodeLoaded(detail=replace(detail, completions=(first, second))))


async def look_around(pilot: Pilot[None], text: str) -> None:
    """Go through the panes, each of which draws the text."""
    app = app_of(pilot)
    screen = main(app)
    panes = {
        "sessions": sessions(app),
        "chat": chat(app),
        "tokens": screen.query_one(TokensPane),
        "training": screen.query_one(TrainingPane),
        "system": stack(app),
        "logs": screen.query_one(LogsPane),
    }
    for name, pane in panes.items():
        screen.press(f"pane_{name}")
        await pilot.pause()
        if name != "training":  # its long texts begin at the top
            await pilot.press("end", "left")  # onto the last process, and the last token but one
        await until(pilot, lambda pane=pane: MARK in drawn(app, pane), name)
        assert_harmless(app)
    view = panes["logs"].view
    view.find(text)
    view.show_only(text)
    await pilot.pause()
    assert_harmless(app)
    view.show_only("")
    assert MARK in drawn(app, screen.query_one(TopBar))


async def look_into(pilot: Pilot[None], screen: Screen[object]) -> None:
    """Open a screen, which draws the text, and leave it."""
    app = app_of(pilot)
    await app.push_screen(screen)
    await until(pilot, lambda: MARK in drawn(app), str(screen))
    assert_harmless(app)
    app.pop_screen()


@each_text
async def test_hostile_text_is_only_text(tmp_path: Path, text: str) -> None:
    app, backend = make_app(tmp_path, keymap={text: text, "score_good": text, "score_bad": text})
    everything(backend, text)
    async with running(app) as pilot:
        assert MARK in " ".join(notices(app))
        assert_harmless(app)
        await talk(pilot, backend, text)
        assert_harmless(app)
        load_tokens(pilot, backend, text)
        for size in (WIDE, NARROW):
            await pilot.resize_terminal(*size)
            await look_around(pilot, text)


@each_text
async def test_hostile_text_in_dialogs_is_only_text(tmp_path: Path, text: str) -> None:
    app, backend = make_app(tmp_path)
    backend.reply, backend.logprobs = [text], [-0.1]
    async with running(app, NARROW) as pilot:
        request = PendingApproval(
            session_id="s", approval_id="a", question=text, choices=(text, "deny"), free=True
        )
        app.controller.state.pending_approvals["a"] = request
        app.controller.notifier.notify(request)
        await until(pilot, lambda: MARK in drawn(app, main(app).query_one(ApprovalBar)))
        assert_harmless(app)
        await look_into(pilot, ApprovalScreen(app.controller, request))
        await look_into(pilot, AskScreen(text, text, text))
        await look_into(pilot, ConfirmScreen(text, text, "Yes"))
        comparison = Comparison(app.controller, 2)
        await app.push_screen(CompareScreen(app.controller, app.context, comparison))
        await comparison.ask(text)
        await until(pilot, lambda: len(app.screen.query("ReplyChunk")) == 2)
        for reply in app.screen.query(ReplyColumn):
            reply.scroll_home(animate=False)
        await until(pilot, lambda: MARK in drawn(app, app.screen.query(ReplyColumn).first()))
        assert_harmless(app)


@pytest.mark.parametrize("key", ["", "f2", "ctrl+p"], ids=["prompt", "dialog", "palette"])
async def test_a_hostile_paste(tmp_path: Path, key: str) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press(*[key] if key else [])
        await until(pilot, lambda: isinstance(app.focused, (Prompt, Input)))
        for text in HOSTILE.values():
            app.post_message(events.Paste(text))
            await pilot.pause()
            assert_harmless(app)
        if isinstance(app.focused, Prompt):
            lines = [text.replace("\r", "\n") for text in HOSTILE.values()]  # as terminals end them
            assert app.focused.message == "".join(map(clean, lines))  # one of them is collapsed


async def test_a_hostile_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_tui.tui.clipboard.TOOLS", ())
    app, _ = make_app(tmp_path)
    text = "".join(HOSTILE.values())
    async with running(app) as pilot:
        app.post_message(CopyRequested(text, text))
        await until(pilot, lambda: bool(notices(app)))
        assert_harmless(app)
        assert app.clipboard == clean(text)
        [file] = (tmp_path / "copied").iterdir()
        assert file.read_text(encoding="utf-8") == clean(text)


async def test_tags_of_the_model_are_shown_and_not_swallowed(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply, backend.logprobs = ["<think>hm</think> a [/INST] b"], [-0.1]
    async with running(app) as pilot:
        await app.controller.send("x")
        await until(pilot, lambda: "<think>hm</think> a [/INST] b" in drawn(app))


async def test_a_hostile_start(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.start_error = "".join(HOSTILE.values())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, StartScreen) and app.screen.failed)
        assert isinstance(app.screen, StartScreen)
        for text in HOSTILE.values():
            app.screen.report(StartStage(process=text, state="starting", text=text))
        await until(pilot, lambda: MARK in drawn(app))
        assert_harmless(app)
