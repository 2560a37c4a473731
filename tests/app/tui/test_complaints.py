"""What users of such programs complain about: one test per complaint, named after it.

| complaint | test |
|---|---|
| brackets in text crash the app | test_brackets_in_text_crash_the_app |
| lag and a burning core in long chats | test_lag_and_a_burning_core_in_long_chats |
| a spinner that eats CPU | test_a_spinner_that_eats_cpu |
| copy that lies over SSH or tmux | test_copy_that_lies_over_ssh_or_tmux |
| keys taken by tmux, no rebinding | test_keys_taken_by_tmux_no_rebinding |
| cannot quit | test_cannot_quit |
| unreadable under NO_COLOR or a light theme | test_unreadable_under_no_color_or_a_light_theme |
| broken terminal after a crash | test_broken_terminal_after_a_crash |
| hang on exit | test_hang_on_exit |
| child output over the screen | test_child_output_over_the_screen |
| orphans that hold ports and GPU memory | test_orphans_that_hold_ports_and_gpu_memory |
| the log jumps while I read, no filter | test_the_log_jumps_while_i_read, test_no_filter |
| focus jumps | test_focus_jumps |
| breaks with the next Textual | test_breaks_with_the_next_textual |
| a wall of traceback for a simple mistake | test_a_wall_of_traceback_for_a_simple_mistake |
| unusable with a screen reader | test_unusable_with_a_screen_reader |
| a streamed code fence that goes blank after a theme change | test_a_fence_that_goes_blank |

Each is shorter than the tests of its subject elsewhere, and fails when the complaint is true.
Every name above must exist: ``test_every_complaint_has_its_test``.
"""

from __future__ import annotations

import ast
import asyncio
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import tomli
from fakes.backend import FakeBackend, FakeClock
from fakes.screen import (
    add_past,
    badges,
    main,
    make_app,
    notices,
    prompt,
    running,
    say,
    say_and_hear,
    until,
)
from fakes.served import Served, is_alive
from fakes.served import until as until_here
from fakes.terminal import Terminal
from textual.app import App, ComposeResult
from textual.color import Color
from textual.pilot import Pilot
from textual.strip import Strip

import hermes_tui
from hermes_tui.config.paths import RunDir
from hermes_tui.core.actions import ACTIONS, TERMINAL_KEYS
from hermes_tui.core.changes import ChatTurn
from hermes_tui.core.controller import Controller
from hermes_tui.core.log_buffer import LogLines
from hermes_tui.core.stack_status import ProcessState, ProcessStatus
from hermes_tui.plain.app import Plain
from hermes_tui.supervisor.lock import lock_owner
from hermes_tui.tui.messages import CopyRequested
from hermes_tui.tui.screens.dialogs import QuitScreen
from hermes_tui.tui.theme_contrast import contrast
from hermes_tui.tui.widgets.chat_pane import MAX_MOUNTED
from hermes_tui.tui.widgets.logs_pane import LogView
from hermes_tui.tui.widgets.turn_view import TurnView

PACKAGE = Path(hermes_tui.__file__).parent
CRASHING = Path(__file__).parents[2] / "fakes" / "crashing.py"

READABLE_CONTRAST = 3.0
"""WCAG's least contrast of large text, and of signs that mean something."""

TEXT_CONTRAST = 4.5
"""The same of other text."""

REPLY, CURSOR = "Good day to you, dear Ada, how are you", "▸ Greet Ada in one s… 14m"
"""Other text: of the conversation, and in the row of the cursor."""


def drawn(pilot: Pilot[None]) -> str:
    """Return the text that stands on the screen."""
    return "\n".join(strip.text for strip in rows_of(pilot))


def rows_of(pilot: Pilot[None]) -> list[Strip]:
    """Return what stands on the screen."""
    return pilot.app.screen._compositor.render_strips()


def test_every_complaint_has_its_test() -> None:
    assert __doc__
    named = re.findall(r"test_\w+", __doc__)
    assert len(named) == 19
    assert all(callable(globals()[name]) for name in named)


async def test_brackets_in_text_crash_the_app(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply, backend.logprobs = (
        ["[/INST]", " [/", " [bold", " [@click=app.quit()]x[/]"],
        [-1] * 4,
    )
    row = backend.process_rows[0]
    backend.process_rows[0] = ProcessStatus(
        name=row.name, state=ProcessState.FAILED, reason="[/red] [/"
    )
    async with running(app) as pilot:
        await say_and_hear(pilot, "[/what]")
        assert "[/INST] [/ [bold [@click=app.quit()]x[/]" in drawn(pilot)
        for pane in ("sessions", "tokens", "training", "system"):
            main(app).press(f"pane_{pane}")
            await pilot.pause()


def past_turn(number: int) -> ChatTurn:
    """Return a turn that this view saw happen."""
    turn = ChatTurn(
        turn_id=f"t{number}", session_id="long", user_text=f"turn {number}.", started_at=1.0
    )
    turn.add_text("said")
    turn.state = "completed"
    return turn


async def test_lag_and_a_burning_core_in_long_chats(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.add_session("long", created_at=1)
    async with running(app) as pilot:
        turns = app.controller.state.turns.setdefault("long", [])
        turns += [past_turn(i) for i in range(1_200)]
        await app.controller.open_session("long")
        await until(pilot, lambda: "turn 1199." in drawn(pilot))
        for i in range(1_200, 1_240):
            turns.append(past_turn(i))
            await app.controller.refresh_processes()  # any change has the screen drawn anew
            await until(pilot, lambda i=i: f"turn {i}." in drawn(pilot))
        assert len(main(app).query(TurnView)) <= MAX_MOUNTED + 1
        prompt(app).focus()
        began = time.process_time()
        await pilot.press(*"typing")
        assert prompt(app).text == "typing"
        assert (time.process_time() - began) / 6 < 0.1


async def test_a_spinner_that_eats_cpu(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 1
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: badges(app) == ["◌ speaking"])
        await pilot.pause(0.3)
        began = time.process_time()
        await pilot.pause(1.0)  # what is measured is a second in which nothing arrives
        assert time.process_time() - began < 0.1
        backend.gate.set()


@pytest.mark.parametrize(("name", "said"), [("SSH_TTY", "the terminal"), ("TMUX", "tmux")])
async def test_copy_that_lies_over_ssh_or_tmux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    tool, fed = tmp_path / "bin" / "xclip", tmp_path / "fed"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\ncat > {fed}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin" if name == "SSH_TTY" else "")
    monkeypatch.setenv("DISPLAY", ":0")
    for other in ("SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "TMUX", "STY"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "1")
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        app.post_message(CopyRequested("the text", "the reply"))
        await until(pilot, lambda: bool(notices(app)))
        pattern = rf"the reply: to {said} \(unconfirmed\), (copied/.*\.txt)"
        copied = re.fullmatch(pattern, notices(app)[0])
        assert copied, notices(app)
        assert (tmp_path / copied[1]).read_text() == "the text"
        assert not fed.exists()  # over SSH that would be another machine's clipboard


async def test_keys_taken_by_tmux_no_rebinding(tmp_path: Path) -> None:
    defaults = {key for action in ACTIONS for key in action.keys}
    assert not defaults & TERMINAL_KEYS
    assert not [key for key in defaults if key.startswith("alt+")]
    app, backend = make_app(tmp_path, keymap={"score_good": "ctrl+g"})
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("ctrl+g")
        await until(pilot, lambda: ("set_reward", "ep-1", 1.0) in backend.calls)


@pytest.mark.parametrize("keys", [("ctrl+q",), ("f10",), ("ctrl+c", "ctrl+c")])
async def test_cannot_quit(tmp_path: Path, keys: tuple[str, ...]) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 1
    async with running(app) as pilot:
        await say(pilot)  # even while the agent speaks, from within the prompt
        await pilot.press(*keys)
        await until(pilot, lambda: isinstance(app.screen, QuitScreen))
        await pilot.press("enter")
        await until(pilot, lambda: not app.is_running or app.return_code is not None)
    assert app.return_code == 0


async def test_unreadable_under_no_color_or_a_light_theme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app) as pilot:
        await app.controller.open_session("sess-1")
        await until(pilot, lambda: len(badges(app)) == 2)
        main(app).press("pane_sessions")  # its cursor is a pair of colours of its own
        await until(pilot, lambda: {REPLY, CURSOR} <= contrasts(pilot).keys())
        for theme in sorted(app.available_themes):
            if "ansi" in theme:
                continue  # its colours are what the terminal makes of them
            app.theme = theme
            for pane in ("chat", "training", "system", "sessions"):
                main(app).press(f"pane_{pane}")
                await pilot.pause()
                ratios = contrasts(pilot)
                faint = {t: r for t, r in ratios.items() if r < READABLE_CONTRAST}
                assert faint == {}, f"{theme}, {pane}"
            assert min(ratios[REPLY], ratios[CURSOR]) >= TEXT_CONTRAST, theme
    monkeypatch.setenv("NO_COLOR", "1")
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app) as pilot:
        await app.controller.open_session("sess-1")
        await until(pilot, lambda: len(badges(app)) == 2)
        styles = [s.style for strip in rows_of(pilot) for s in strip if s.style]
        colours = [Color.from_rich_color(style.color) for style in styles if style.color]
        assert all(colour.r == colour.g == colour.b for colour in colours)
        assert min(contrasts(pilot).values()) >= READABLE_CONTRAST
        # Whatever a colour says, a word or a sign says too.
        assert re.fullmatch(r"● trained at step 6.*", badges(app)[0])
        assert "● trained" in drawn(pilot)
        await until(pilot, lambda: any(bar in drawn(pilot) for bar in "▁▂▃▄▅▆▇█"))


def contrasts(pilot: Pilot[None]) -> dict[str, float]:
    """Return of each piece of text on the screen how much it stands out; of no line or bar."""
    return {
        segment.text.strip(): contrast(Color.from_rich_color(color), Color.from_rich_color(ground))
        for strip in rows_of(pilot)
        for segment in strip
        if re.search(r"\w", segment.text) and segment.style
        for color, ground in [(segment.style.color, segment.style.bgcolor)]
        if color and ground and not (color.is_default or ground.is_default)
    }


def test_broken_terminal_after_a_crash(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-P", str(CRASHING), str(tmp_path)]) as view:
        view.until("Say something to the agent")
        assert not view.is_sane()
        view.press("\x07")  # ctrl+g: the test's own subclass raises
        assert view.wait()[0] == 1
        assert view.is_sane()
        assert view.modes_left_on() == set()


def test_hang_on_exit(tmp_path: Path) -> None:
    with Served.fakes(tmp_path) as stack:
        stack.wait_for("ready")
        words = (f"run.dir={tmp_path}", "training.enabled=false")
        took = []
        for _ in range(3):  # the quickest: this machine may have other things to do
            with Terminal.hermes("attach", *words) as view:
                view.until("Say something to the agent")
                stack.process.send_signal(signal.SIGSTOP)  # whom it talks to does not answer
                try:
                    view.process.send_signal(signal.SIGTERM)
                    code, took_s = view.wait()
                finally:
                    stack.process.send_signal(signal.SIGCONT)
            assert code == 143
            took.append(took_s)
            if took_s < 1.0:
                break
        assert min(took) < 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_child_output_over_the_screen(tmp_path: Path) -> None:
    words = ("training.enabled=false", "services.agent.class=no.such.Agent")
    with Terminal.hermes(f"run.dir={tmp_path}", *words) as view:
        supervisor = until_here(lambda: lock_owner(RunDir(tmp_path)))
        held = set()
        while is_alive(supervisor):  # until the start has failed
            for process in [psutil.Process(supervisor), *psutil.Process().children(recursive=True)]:
                held |= outputs_of(process.pid) if process.pid != view.process.pid else set()
            view.read()
        view.until("no.such")
        view.press("\x11")
        view.wait()
    assert held
    assert not [path for path in held if path.startswith(("/dev/pts", "/dev/tty"))]


def outputs_of(pid: int) -> set[str]:
    """Return what a process reads and writes as its standard files."""
    try:
        return {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)}
    except OSError:
        return set()  # it ended meanwhile


def test_orphans_that_hold_ports_and_gpu_memory(tmp_path: Path) -> None:
    with Served.fakes(tmp_path) as stack:
        stack.wait_for("ready")
        with stack.http() as http:
            rows = http.get("/status").json()["processes"]
        assert len(rows) == 4
        stack.process.kill()
        until_here(lambda: not any(is_alive(row["pid"]) for row in rows), timeout_s=15.0)
        for row in rows:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(("127.0.0.1", row["port"]))


class LogApp(App[None]):
    """A log, and nothing else."""

    def compose(self) -> ComposeResult:
        yield LogView()


def log_of(count: int) -> LogLines:
    """Return a log of as many lines."""
    lines = LogLines(process="router")
    for i in range(count):
        lines.append(f"{'WARNING' if i % 10 == 0 else 'INFO'} line {i}.")
    return lines


async def test_the_log_jumps_while_i_read() -> None:
    app, lines = LogApp(), log_of(4_990)  # the buffer is nearly full: what arrives pushes out
    async with app.run_test(size=(60, 20)) as pilot:
        view = app.query_one(LogView)
        view.sync(lines)
        await until_shown(pilot, "line 4989.")
        view.focus()
        await pilot.press("pageup", "pageup")
        await until_shown(pilot, "line 4940.")
        read = drawn(pilot)
        for i in range(4_990, 5_100):
            lines.append(f"INFO line {i}.")
            if i % 10 == 0:
                view.sync(lines)
        view.sync(lines)
        await pilot.pause(0.3)
        assert first_line(drawn(pilot)) == first_line(read)
        await pilot.press("end")
        await until_shown(pilot, "line 5099.")


async def test_no_filter() -> None:
    app, lines = LogApp(), log_of(100)
    async with app.run_test(size=(60, 20)) as pilot:
        view = app.query_one(LogView)
        view.sync(lines)
        view.show_only("warning")
        await until_shown(pilot, "line 90.")
        assert view.num_shown == 10
        assert "INFO" not in drawn(pilot)
        lines.append("INFO line 100.")
        lines.append("WARNING line 101.")
        view.sync(lines)
        await until_shown(pilot, "line 101.")
        assert view.num_shown == 11


def first_line(screen: str) -> str:
    """Return the first line of a log that a screen shows."""
    return re.findall(r"line \d+\.", screen)[0]


async def until_shown(pilot: Pilot[None], text: str) -> None:
    """Wait until a text stands on the screen of any app."""
    async with asyncio.timeout(10):
        while text not in drawn(pilot):
            await pilot.pause(0.02)
    await pilot.pause()


async def test_focus_jumps(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    backend.hold = 1
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: bool(badges(app)))
        for pane in ("sessions", "tokens", "training", "system"):
            main(app).press(f"pane_{pane}")
            await pilot.pause()
            focused = app.focused
            backend.add_session(f"new-{pane}", created_at=2_000)
            backend.add_episode(f"new-{pane}", "hi", "ho")
            backend.emit("episode.opened", session_id=f"new-{pane}")
            backend.emit_control()
            known = app.controller.state.sessions
            await until(
                pilot, lambda pane=pane, known=known: f"new-{pane}" in app.controller.state.sessions
            )
            assert app.focused is focused
        backend.gate.set()
        await until(pilot, lambda: "judged" in badges(app)[-1])
        assert app.focused is focused


def private_names_of_others() -> list[str]:
    """Return each use of an underscore name that our package does not define itself."""
    trees = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    ours = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    ours |= {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store)
    }
    uses = [
        f"{path.name}:{node.lineno}: {node.attr}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in ours
        and node.attr not in ("_asdict", "_exit")  # public, for all that: of named tuples and os
    ]
    imports = [
        f"{path.name}:{node.lineno}: {node.module}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("textual")
        and any(
            part.startswith("_")
            for part in [*(node.module or "").split("."), *(a.name for a in node.names)]
        )
    ]
    return uses + imports


def test_breaks_with_the_next_textual() -> None:
    assert private_names_of_others() == []
    project = tomli.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    [textual] = [d for d in project["dependencies"] if re.match(r"textual\b(?!-)", d)]
    assert re.fullmatch(r"textual>=\d+(\.\d+)*,<\d+", textual)


@pytest.mark.parametrize(
    "words", [["services.pairs.cout=2"], ["--config", "none.toml"], ["attach"], []]
)
def test_a_wall_of_traceback_for_a_simple_mistake(tmp_path: Path, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hermes_tui.cli.main", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HERMES_TUI_HOME": str(tmp_path / "home")},
        timeout=60,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert re.fullmatch(r"error: .+\n", done.stderr)


async def test_unusable_with_a_screen_reader() -> None:
    clock = FakeClock()
    backend = FakeBackend(clock)
    out = io.StringIO()
    plain = Plain(Controller(backend, clock=clock), out, interactive=False)
    for line in ("hello", "/good", "/tokens", "/status", None):
        plain.put(line)
    assert await asyncio.wait_for(plain.run(), 10) == 0
    text = out.getvalue()
    assert "agent: Hello Ada, it's a pleasure to meet you!\n" in text
    # Nothing is drawn, moved or coloured; every line says in words what it is.
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f─-▟]", text)
    assert ("set_reward", "ep-1", 1.0) in backend.calls


async def test_a_fence_that_goes_blank(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.reply = ["```python\n", "first = 1\n", "second = 2\n", "```\n", "done"]
    backend.logprobs, backend.hold = [-0.1] * 5, 2
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: "first = 1" in drawn(pilot))
        app.theme = "textual-light"
        await pilot.pause()
        assert "first = 1" in drawn(pilot)
        backend.gate.set()
        await until(pilot, lambda: "second = 2" in drawn(pilot))
        app.theme = "textual-dark"
        await pilot.pause()
        assert "first = 1" in drawn(pilot)
        assert "second = 2" in drawn(pilot)
