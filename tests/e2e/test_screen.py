"""The screen over the real stack: talk, judge, new weights, stop; answer what the agent asks."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from fakes.screen import app_of, badges, chat, main, seen, tokens
from fakes.upstream import Asked, Reply, call, say
from fakes.upstream import running as upstream_running
from textual.pilot import Pilot
from textual.widgets import Static

from hermes_tui.config.paths import RunDir
from hermes_tui.config.settings import load_config
from hermes_tui.core.controller import Controller
from hermes_tui.stack_client.remote import RemoteBackend
from hermes_tui.supervisor.lock import lock_owner
from hermes_tui.tui.app import HermesTui, ScreenSettings
from hermes_tui.tui.screens.approval import ApprovalScreen
from hermes_tui.tui.screens.compare_replies import CompareScreen
from hermes_tui.tui.screens.lesson import LessonScreen
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.widgets.lesson_bar import LessonBar

START_S = 300.0
TURN_S = 120.0
STOP_S = 60.0


async def wait(pilot: Pilot[None], holds: Callable[[], bool], timeout_s: float) -> None:
    """Wait for real processes, which take their time."""
    end = asyncio.get_running_loop().time() + timeout_s
    while not holds():
        assert asyncio.get_running_loop().time() < end, seen(pilot)
        await pilot.pause(0.1)


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """Return a run directory; the stack that a failed test leaves there is ended."""
    yield tmp_path / "run"
    if pid := lock_owner(RunDir(tmp_path / "run")):
        os.kill(pid, signal.SIGTERM)


def badge(pilot: Pilot[None]) -> str:
    """Return the newest badge."""
    return "".join(badges(app_of(pilot))[-1:])


async def learned(pilot: Pilot[None]) -> None:
    """Look at the card of the first step: its tokens moved, and both versions answered."""
    app = app_of(pilot)
    bar = main(app).query_one(LessonBar)
    await wait(pilot, lambda: "v1 says this more readily" in str(bar.render()), TURN_S)
    canaries = app.controller.backend.canaries
    while len(await canaries((0, 1))) < 2 * len(await canaries((1, 1))) or not await canaries(None):
        await pilot.pause(0.1)
    await pilot.press("escape", "K")
    await wait(pilot, lambda: isinstance(app.screen, LessonScreen), TURN_S)
    shown = app.screen.query_one("#lesson-moved", Static)
    await wait(pilot, lambda: "▲ “" in str(shown.render()), TURN_S)
    answers = app.screen.query_one("#lesson-answers", Static)
    await wait(pilot, lambda: "answers of v0" in str(answers.render()), TURN_S)
    assert "answers of v1" in str(answers.render())
    await pilot.press("escape")
    await wait(pilot, lambda: not bar.display, TURN_S)


async def tried_again(pilot: Pilot[None], run_dir: Path) -> None:
    """Try the reply again; the pick trains both as a group."""
    app = app_of(pilot)
    await pilot.press("i", *"Bye", "enter")
    await wait(pilot, lambda: "judged" in badge(pilot), TURN_S)
    old = app.controller.state.selected
    await pilot.press("escape", "c", "R")
    await wait(pilot, lambda: isinstance(app.screen, CompareScreen), TURN_S)
    comparison = app.screen.comparison  # type: ignore[attr-defined]
    await wait(pilot, lambda: not comparison.num_running and comparison.episode(1), TURN_S)
    await pilot.press("2", "enter", "escape")
    new = comparison.turns[1].session_id
    await wait(pilot, lambda: app.controller.state.selected == new, TURN_S)
    await wait(pilot, lambda: "trained at step 2" in badge(pilot), TURN_S)
    with closing(sqlite3.connect(run_dir / "trajectories.db")) as db:
        branch, position = db.execute(
            "SELECT branch_of, group_position FROM sessions WHERE session_id = ?", (new,)
        ).fetchone()
        trained = db.execute(
            "SELECT session_id, reward, group_id FROM episodes WHERE step = 2 ORDER BY reward"
        ).fetchall()
    assert (branch, position) == (old, 1)
    assert [row[:2] for row in trained] == [(old, -1.0), (new, 1.0)]
    assert trained[0][2] == trained[1][2]
    # The branch goes on from the turn before the one that was tried again.
    said = [turn.user_text for turn in app.controller.state.turns[new]]
    assert said == ["Hi", "Bye"]


@pytest.mark.embedded
@pytest.mark.timeout(600)
async def test_talk_judge_learn_stop(tmp_path: Path, run_dir: Path) -> None:
    config = load_config(
        [
            f'run.dir="{run_dir}"',
            "services.agent.max_tokens=24",
            "training.train_truncated=true",
            "training.reward.grace_s=0.5",
        ],
        environ={},
        cwd=tmp_path,
    )
    controller = Controller(RemoteBackend(config), training=config.training)
    app = HermesTui(controller, ScreenSettings(folder=tmp_path))
    async with app.run_test(size=(120, 40)) as pilot:
        await wait(pilot, lambda: isinstance(app.screen, MainScreen), START_S)
        pids = [row.pid for row in controller.state.processes.values() if row.pid]
        assert len(pids) == 6
        await pilot.press(*"Hi", "enter")
        await wait(pilot, lambda: "judged" in badge(pilot), TURN_S)
        assert controller.state.turns[controller.state.selected][0].text.strip()
        await wait(pilot, lambda: tokens(app).current is not None, TURN_S)
        await pilot.press("f3")
        await wait(pilot, lambda: "trained at step 1" in badge(pilot), TURN_S)
        await wait(pilot, lambda: controller.state.trainer.policy_version == 1, TURN_S)
        lesson = main(app).query_one("#training-text")
        await wait(pilot, lambda: "▲" in str(lesson.render()), TURN_S)
        await learned(pilot)
        await tried_again(pilot, run_dir)
        await pilot.press("ctrl+q", "ctrl+x")
        await wait(pilot, lambda: app.return_code is not None, STOP_S)
    assert app.return_code == 0
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.mark.timeout(300)
async def test_the_agent_asks_before_it_runs_what_is_dangerous(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Denied first, then allowed once."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing of ours goes by a proxy

    def script(asked: Asked) -> Reply:
        if asked.messages[-1]["role"] == "tool":
            return say("As you say.")
        call_id = f"call_{len(asked.messages)}"  # Hermes drops what has an id that was there before
        return call("terminal", {"command": "rm -rf precious"}, call_id)

    with upstream_running(script) as upstream:
        config = load_config(
            [
                f'run.dir="{run_dir}"',
                "training.enabled=false",
                f'upstream.base_url="{upstream.url}"',
                'services.agent.enabled_toolsets=["terminal"]',
            ],
            environ={},
            cwd=tmp_path,
        )
        app = HermesTui(Controller(RemoteBackend(config)), ScreenSettings(folder=tmp_path))
        async with app.run_test(size=(120, 40)) as pilot:
            await wait(pilot, lambda: isinstance(app.screen, MainScreen), START_S)
            for key, stays in (("d", True), ("o", False)):
                await pilot.press(*"Clean", "enter")
                await wait(pilot, lambda: bool(app.controller.state.approval_queue), TURN_S)
                [session] = (run_dir / "work").iterdir()  # a cage keeps all else out of reach
                precious = session / "precious"
                precious.mkdir(exist_ok=True)
                await pilot.press("ctrl+o")
                await wait(pilot, lambda: isinstance(app.screen, ApprovalScreen), TURN_S)
                await pilot.press(key)
                await wait(pilot, lambda: chat(app).view.turns[-1].state == "completed", TURN_S)
                assert chat(app).view.turns[-1].text.strip() == "As you say."
                assert precious.exists() is stays
            assert len(chat(app).view.turns) == 2
            await pilot.press("ctrl+q", "ctrl+x")
            await wait(pilot, lambda: app.return_code is not None, STOP_S)
    assert app.return_code == 0
