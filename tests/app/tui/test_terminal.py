"""The screen in a real terminal: how it ends, what it leaves, many at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.served import Served, is_alive, until
from fakes.terminal import Terminal

from hermes_tui.config.paths import RunDir
from hermes_tui.supervisor.lock import lock_owner

CRASHING = Path(__file__).parents[2] / "fakes" / "crashing.py"
CRASHES = ("in a handler", "in a task", "while drawing")
"""What its keys F12, F11 and shift+F12 do."""

EXIT_S = 1.0
"""How long leaving may take on a machine with nothing else to do."""

BUSY = 3
"""How much longer everything may take here, where other tests run too; benchmarks/screen.py holds
the second itself."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served.fakes(tmp_path_factory.mktemp("pty")) as served:
        served.wait_for("ready")
        yield served


def attach(stack: Served, *words: str) -> Terminal:
    """Open the screen on the stack, in a terminal of its own."""
    return Terminal.hermes("attach", f"run.dir={stack.run_dir}", "training.enabled=false", *words)


def on_screen(terminal: Terminal) -> None:
    """Wait until the screen is there with its keys."""
    terminal.until("Say something to the agent")


SIGNALS = [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]


def test_a_dumb_terminal_is_pointed_to_plain(tmp_path: Path) -> None:
    words = ("-P", "-m", "hermes_tui.cli.main", f"run.dir={tmp_path}")
    with Terminal([sys.executable, *words], TERM="dumb") as terminal:
        assert terminal.wait()[0] == 2
        assert "TERM is 'dumb'" in terminal.output
        assert "--plain" in terminal.output
        assert "\x1b" not in terminal.output


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_leaves_the_terminal_as_it_was(
    stack: Served, number: signal.Signals, code: int
) -> None:
    pids = stack.pids()
    with attach(stack) as view:
        on_screen(view)
        assert not view.is_sane()  # it reads keys, not lines
        assert view.modes_left_on() >= {"25", "1000", "1049", "2004"}
        assert view.companions() == []
        view.process.send_signal(number)
        got, took_s = view.wait()
        assert got == code
        assert took_s < EXIT_S * BUSY
        assert view.is_sane()
        assert view.modes_left_on() == set()
        assert view.companions() == []
        assert "Traceback" not in view.text
    assert stack.pids() == pids  # the view is gone, the stack is not


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_in_the_moment_in_which_the_terminal_is_taken(
    stack: Served, number: signal.Signals, code: int
) -> None:
    with attach(stack) as view:
        view.until_written("\x1b[?1049h")
        view.process.send_signal(number)
        assert view.wait()[0] == code
        assert view.is_sane()
        assert view.modes_left_on() == set()


def test_a_stopped_view_gives_the_terminal_back_and_takes_it_again(stack: Served) -> None:
    with attach(stack) as view:
        on_screen(view)
        view.press("half a line")
        view.until("half a line")
        view.process.send_signal(signal.SIGTSTP)
        until(lambda: view.is_stopped())
        assert view.is_sane()
        assert view.modes_left_on() == set()
        view.output = ""
        view.process.send_signal(signal.SIGCONT)
        view.until("half a line")
        assert view.modes_left_on() >= {"25", "1000", "1049", "2004"}
        view.press("\x11\r")
        assert view.wait()[0] == 0
        assert (view.is_sane(), view.modes_left_on()) == (True, set())


def test_a_lost_connection_detaches(stack: Served) -> None:
    with attach(stack) as view:
        on_screen(view)
        os.close(view.slave)
        os.close(view.master)  # what sshd does when its client is gone
        assert view.process.wait(timeout=10) in (129, -signal.SIGHUP)
    assert all(map(is_alive, stack.pids()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_killed_view_takes_nothing_with_it(stack: Served, number: signal.Signals) -> None:
    pids = stack.pids()
    with attach(stack) as view:
        on_screen(view)
        view.process.send_signal(number)
        assert view.wait()[0] == 128 + number
    assert stack.pids() == pids
    with attach(stack) as view:  # and another one finds everything as it was
        on_screen(view)
        view.press("\x11\r")
        assert view.wait()[0] == 0
        assert view.modes_left_on() == set()


@pytest.mark.parametrize("key", ["\x07", "\x1b[23~", "\x1b[24;2~"], ids=CRASHES)
def test_a_crash_restores_the_terminal_and_hides_secrets(tmp_path: Path, key: str) -> None:
    with Terminal([sys.executable, "-P", str(CRASHING), str(tmp_path)]) as view:
        on_screen(view)
        view.press(key)
        assert view.wait()[0] == 1
        assert view.is_sane()
        assert view.modes_left_on() == set()
        assert "the sky fell" in view.text
        assert "sk-very-secret" not in view.text


def test_quit_asks_and_detaches(stack: Served) -> None:
    with attach(stack) as view:
        on_screen(view)
        view.press("\x11")
        view.until("Stop everything")
        view.press("\r")
        code, took_s = view.wait()
        assert (code, view.is_sane(), view.modes_left_on()) == (0, True, set())
        assert took_s < EXIT_S * BUSY
        assert view.companions() == []
        said = " ".join(view.text.split())  # padded where the screen was before
        assert f"goes on in {stack.run_dir}" in said
        assert f"stop run.dir={stack.run_dir} ends it" in said
    assert all(map(is_alive, stack.pids()))


def test_quit_can_stop_everything(tmp_path: Path) -> None:
    with Served.fakes(tmp_path) as stack:
        stack.wait_for("ready")
        pids = [*stack.pids(), stack.process.pid]
        with attach(stack) as view:
            on_screen(view)
            view.press("\x11\x18")
            assert view.wait()[0] == 0
            assert view.modes_left_on() == set()
            assert view.companions() == []
        stack.wait()
        until(lambda: not any(map(is_alive, pids)))
        assert lock_owner(RunDir(tmp_path)) is None


def test_many_views_of_one_stack(stack: Served) -> None:
    pids = stack.pids()
    with attach(stack) as one, attach(stack) as two:
        on_screen(one)
        on_screen(two)
        one.press("\x11\r")
        assert one.wait()[0] == 0
        two.press("\x1b[20~")  # F9: its processes are still shown
        two.process.send_signal(signal.SIGTERM)
        assert two.wait()[0] == 143
    assert stack.pids() == pids


def test_attach_starts_nothing(tmp_path: Path) -> None:
    with Terminal.hermes("attach", f"run.dir={tmp_path}") as view:
        code, _ = view.wait()
        assert code == 1
        assert "nothing runs in" in view.text
        assert view.modes_left_on() == set()


def test_a_start_that_fails_says_why_on_the_screen_and_exits_3(tmp_path: Path) -> None:
    words = ("training.enabled=false", "services.agent.class=no.such.Agent")
    with Terminal.hermes(f"run.dir={tmp_path}", *words) as view:
        view.until("no.such")
        view.press("\x11")
        code, _ = view.wait()
        assert (code, view.is_sane(), view.modes_left_on()) == (3, True, set())
    assert lock_owner(RunDir(tmp_path)) is None
