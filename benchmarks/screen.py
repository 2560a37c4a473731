"""What the screen costs: start, key to paint, a fast stream, a long conversation, and idling.

    python benchmarks/screen.py [--quick] [--pty]

Headless, the app runs in this process over a stack in memory (``tests/fakes/backend.py``). In a
pseudo terminal, the same app runs as a process and is measured from outside: from the key until the
terminal is written to. Both are done; ``--pty`` does the second only. Prints a table and, last, one
JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from fakes.backend import FakeBackend, make_tokens  # noqa: E402
from fakes.terminal import Terminal  # noqa: E402
from outcome import Target, at_most, print_outcome  # noqa: E402
from textual import events  # noqa: E402
from textual.pilot import Pilot  # noqa: E402

from hermes_tui.core.actions import PANES  # noqa: E402
from hermes_tui.core.changes import ChatTurn  # noqa: E402
from hermes_tui.core.controller import Controller  # noqa: E402
from hermes_tui.tui import app as app_module  # noqa: E402
from hermes_tui.tui.app import HermesTui, ScreenSettings, relax_garbage_collector  # noqa: E402
from hermes_tui.tui.screens.main import MainScreen  # noqa: E402
from hermes_tui.tui.widgets.chat_pane import ChatPane  # noqa: E402
from hermes_tui_services.api.events import (  # noqa: E402
    TextArrived,
    ToolCalled,
    ToolReturned,
    TurnEvent,
)
from hermes_tui_services.data_proxy.store import ConversationStore, TurnRow  # noqa: E402

SIZE = (120, 40)
TOKENS_PER_S = 1_000
BEAT_S = 0.02
"""How often tokens arrive: twenty at once, as an engine with a batch sends them."""

WORDS = (
    "So",
    *(" the", " token", " of", " a", " long", ",", " slow", " day", ",") * 7,
    ".",
    "\n\n",
)
"""A paragraph of 66 tokens, again and again."""

NUM_TURNS = 1_200
NUM_TOKENS = 50_000
NUM_TOOL_LINES = 35_000
NUM_SEARCHED = 10_000
KEYS = "the quick brown fox jumps"
DEADLINE_S = 60.0


class StreamingBackend(FakeBackend):
    """Streams tokens at a fixed rate for ``stream_s`` seconds."""

    stream_s = 10.0

    async def turn(self, session_id: str, text: str) -> AsyncIterator[TurnEvent]:
        """Stream text and its tokens at ``TOKENS_PER_S``."""
        episode_id, completion_id = self._open_episode(session_id, text)
        ids = {"session_id": session_id, "episode_id": episode_id, "completion_id": completion_id}
        if text == "tool":
            yield ToolCalled(call_id="c", name="read_file", arguments='{"path": "log"}')
            lines = "\n".join(f"{i}: a line of a log" for i in range(NUM_TOOL_LINES))
            yield ToolReturned(call_id="c", output=lines)
        began, sent = time.monotonic(), 0
        while (now := time.monotonic()) - began < self.stream_s:
            due = int((now - began) * TOKENS_PER_S) - sent
            texts = [WORDS[(sent + i) % len(WORDS)] for i in range(due)]
            tokens = make_tokens(texts, [-0.01 - (sent + i) % 40 / 10 for i in range(due)])
            self.emit(
                "completion.tokens",
                **ids,
                start=sent,
                token_ids=[token.token_id for token in tokens],
                texts=texts,
                logprobs=[token.logprob for token in tokens],
                policy_versions=[7] * due,
            )
            sent += due
            yield TextArrived(text="".join(texts))
            await asyncio.sleep(BEAT_S)
        self._record(episode_id, completion_id, text, make_tokens(["done"], [-0.1]))


class MeasuredTui(HermesTui):
    """The app; a subclass in another folder must name the style sheet itself."""

    CSS_PATH = Path(app_module.__file__).with_name("styles") / "hermes.tcss"


def make_app(folder: Path) -> tuple[MeasuredTui, StreamingBackend]:
    """Return the app and its stack."""
    backend = StreamingBackend(time.time)  # type: ignore[arg-type]
    return MeasuredTui(Controller(backend), ScreenSettings(folder=folder)), backend


def percentiles(values_s: list[float]) -> dict[str, float]:
    """Return median and 95th percentile in milliseconds."""
    ordered = sorted(values_s)
    return {
        "p50_ms": round(statistics.median(ordered) * 1000, 1),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)] * 1000, 1),
    }


# Headless ------------------------------------------------------------------------------------


@asynccontextmanager
async def shown(app: MeasuredTui) -> AsyncIterator[Pilot[None]]:
    """Run the app headless until its main screen is drawn."""
    async with app.run_test(size=SIZE) as pilot:
        await until(lambda: isinstance(app.screen, MainScreen), "the main screen")
        await until(lambda: bool(app.screen.query("#prompt")), "the prompt")
        await pilot.pause()
        yield pilot


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert holds(), what


class Stalls:
    """Context manager that measures how late the event loop is."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        """Longest time without a turn of the loop."""
        self.worst_cpu_s = 0.0
        """Most CPU time that this process used between two turns of the loop."""
        self.cpu_frac = 0.0

    async def __aenter__(self) -> Stalls:
        self._task = asyncio.create_task(self._watch())
        self._began = time.monotonic(), time.process_time()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        wall_s = time.monotonic() - self._began[0]
        self.cpu_frac = (time.process_time() - self._began[1]) / wall_s

    async def _watch(self) -> None:
        pause_s = 0.005
        while True:
            began, cpu = time.monotonic(), time.process_time()
            await asyncio.sleep(pause_s)
            self.worst_s = max(self.worst_s, time.monotonic() - began - pause_s)
            self.worst_cpu_s = max(self.worst_cpu_s, time.process_time() - cpu)


async def keys_to_paint(app: MeasuredTui, count: int) -> list[float]:
    """Return the seconds from each key's arrival until the prompt has been drawn with it."""
    took = []
    prompt = app.screen.query_one("#prompt")
    prompt.focus()
    for number in range(count):
        before = prompt.text  # type: ignore[attr-defined]
        drawn = asyncio.Event()
        began = time.monotonic()
        key = KEYS[number % len(KEYS)]
        app.post_message(events.Key("space" if key == " " else key, key))
        async with asyncio.timeout(DEADLINE_S):
            while prompt.text == before:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0)
        app.screen.call_after_refresh(drawn.set)
        async with asyncio.timeout(DEADLINE_S):
            await drawn.wait()
        took.append(time.monotonic() - began)
        await asyncio.sleep(0.03)
    return took


async def measure_stream(app: MeasuredTui, message: str, seconds: float) -> dict[str, Any]:
    """Return the effect of a stream of 1,000 tokens/s on the event loop and on keys."""
    stack = app.controller.backend
    assert isinstance(stack, StreamingBackend)
    stack.stream_s = seconds
    speaking = asyncio.create_task(app.controller.send(message))
    took: list[float] = []
    async with Stalls() as stalls:
        while not speaking.done():
            took += await keys_to_paint(app, 5)
    assert await speaking
    return {
        "worst_stall_ms": round(stalls.worst_s * 1000, 1),
        "worst_stall_own_cpu_ms": round(stalls.worst_cpu_s * 1000, 1),
        "cpu_percent": round(stalls.cpu_frac * 100, 1),
        "key": percentiles(took),
        "keys": len(took),
    }


async def add_past(app: MeasuredTui, backend: StreamingBackend) -> None:
    """Add a conversation of many turns, and an episode of very many tokens."""
    backend.add_session("long", created_at=time.time())
    text = " ".join(word.strip() for _ in range(NUM_TOKENS // len(WORDS)) for word in WORDS)
    backend.add_episode("long", "a long one", text)
    state = app.controller.state
    state.sessions = dict(backend.session_rows)
    state.put_episodes(await backend.episodes())
    turns = state.turns.setdefault("long", [])
    for number in range(NUM_TURNS):
        turn = ChatTurn(
            turn_id=f"past-{number}",
            session_id="long",
            user_text=f"question {number}",
            started_at=1.0 + number,
        )
        turn.add_text("An answer with **some** words, and `code`.\n\n* one\n* two\n")
        turn.state = "completed"
        turn.episode_id = "ep-1"
        turns.append(turn)
    await app.controller.open_session("long")


async def find_in_past(app: MeasuredTui) -> float:
    """Return the milliseconds until the oldest turn of the long past is found and drawn."""
    view = app.screen.query_one(ChatPane).view
    wanted = view.turns[7]
    wanted.user_text = "a needle"
    began, drawn = time.monotonic(), asyncio.Event()
    assert view.find("needle")
    await until(lambda: any(v.turn is wanted for v in view.views()), "the turn")
    app.screen.call_after_refresh(drawn.set)
    async with asyncio.timeout(DEADLINE_S):
        await drawn.wait()
    took = time.monotonic() - began
    view.do_chat_follow()
    await until(lambda: view.following, "the end")
    return round(took * 1000, 1)


async def search_all(folder: Path) -> dict[str, float]:
    """Return the milliseconds until a search of all conversations has its first hit, or none.

    The hit is the oldest of ``NUM_SEARCHED`` turns, each of about 700 characters.
    """
    store = ConversationStore(folder / "conversations.db")
    await store.open()
    words = "A reply with several sentences, and with `code`, as they are. " * 10
    for number in range(NUM_SEARCHED):
        said = "where is the needle" if number == 0 else f"question {number}"
        messages = [{"role": "user", "content": said}, {"role": "assistant", "content": words}]
        row = TurnRow(run_id=f"run-{number}", messages=messages, summary="")
        await store.append(f"session-{number % 200}", row)
    took = {}
    for name, text in (("oldest_ms", "NEEDLE"), ("none_ms", "nothing like it")):
        began = time.monotonic()
        hits = await store.search(text, 1)
        took[name] = round((time.monotonic() - began) * 1000, 1)
        assert len(hits) == (name == "oldest_ms")
    await store.close()
    return took


async def idle_cpu(app: MeasuredTui, pane: str, seconds: float) -> float:
    """Return the app's share of one core in percent, with a pane in view."""
    screen = app.screen
    assert isinstance(screen, MainScreen)
    screen.press("prompt_enter" if pane == "prompt" else f"pane_{pane}")
    await asyncio.sleep(1.5)  # the change of the pane itself has been drawn
    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    return round((time.process_time() - cpu) / (time.monotonic() - wall) * 100, 2)


async def headless(quick: bool) -> dict[str, Any]:
    """Return the figures that are measured in the app's event loop."""
    stream_s, idle_s = (3.0, 2.0) if quick else (10.0, 30.0)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        app, backend = make_app(Path(folder))
        async with shown(app):
            result["start_to_main_ms"] = round((time.monotonic() - began) * 1000)
            result["key_idle"] = percentiles(await keys_to_paint(app, 25))
            result["idle_cpu_percent"] = {pane: await idle_cpu(app, pane, idle_s) for pane in PANES}
            app.screen.press("prompt_enter")  # type: ignore[attr-defined]
            result["stream"] = await measure_stream(app, "hello", stream_s)
            async with Stalls() as opening:
                await add_past(app, backend)
                await asyncio.sleep(2.0)
            result["open_past_stall_ms"] = round(opening.worst_s * 1000, 1)
            result["search_all"] = await search_all(Path(folder))
            result["find_in_past_ms"] = await find_in_past(app)
            result["stream_after_past"] = await measure_stream(app, "tool", stream_s)
            await asyncio.sleep(2.0)  # the last words are drawn, and the toasts are gone
            result["idle_cpu_percent_after_past"] = await idle_cpu(app, "chat", idle_s)
            result["rss_mib"] = round(psutil.Process().memory_info().rss / 2**20)
            app.exit()
    return result


# In a terminal -------------------------------------------------------------------------------


def in_terminal(quick: bool) -> dict[str, Any]:
    """Return the figures that are measured from outside, through a pseudo terminal."""
    stream_s = 3.0 if quick else 10.0
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        command = [sys.executable, "-P", __file__, "--app", folder, "--seconds", str(stream_s)]
        with Terminal(command, SIZE) as view:
            while not view.output:
                view.read(0.001)
            first_ms = (time.monotonic() - began) * 1000
            view.until("Say something to the agent")
            main_ms = (time.monotonic() - began) * 1000
            settle(view)
            idle_keys = [key_in_terminal(view) for _ in range(25)]
            process = psutil.Process(view.process.pid)
            idle = outside_cpu(view, process, 5.0)
            view.press("\r")
            view.until("speaking")
            streamed, cpu = [], process.cpu_times()
            started = time.monotonic()
            while time.monotonic() - started < stream_s - 0.5:
                streamed.append(echo_in_terminal(view))
            after, wall_s = process.cpu_times(), time.monotonic() - started
            used_s = after.user + after.system - cpu.user - cpu.system
            rss = process.memory_info().rss
            view.process.terminate()
            _, exit_s = view.wait()
    return {
        "first_bytes_ms": round(first_ms),
        "first_main_screen_ms": round(main_ms),
        "key_idle": percentiles(idle_keys),
        "key_while_streaming": percentiles(streamed),
        "cpu_percent_while_streaming": round(used_s / wall_s * 100, 1),
        "idle_cpu_percent": idle,
        "exit_ms": round(exit_s * 1000),
        "rss_mib": round(rss / 2**20),
    }


def settle(view: Terminal) -> None:
    """Read until nothing comes for a while."""
    while True:
        before = len(view.output)
        view.read(0.4)
        if len(view.output) == before:
            return


def key_in_terminal(view: Terminal) -> float:
    """Return the seconds from a key until anything is written."""
    view.read(0.05)
    view.output = ""  # a long text would be slow to add to
    began = time.monotonic()
    view.press("x")
    while not view.output:
        view.read(0.001)
    return time.monotonic() - began


def echo_in_terminal(view: Terminal) -> float:
    """Return the seconds until a typed character is written to the terminal.

    The streamed text does not contain this character.
    """
    view.output = ""  # a long text would be slow to add to
    began = time.monotonic()
    view.press("Q")
    while "Q" not in view.output:
        view.read(0.001)
        if time.monotonic() - began > DEADLINE_S:
            raise AssertionError("the key never showed")
    took = time.monotonic() - began
    view.press("\x7f")
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        view.read(0.01)
    return took


def outside_cpu(view: Terminal, process: psutil.Process, seconds: float) -> float:
    """Return a process's share of one core in percent, while its terminal is read."""
    cpu, began = process.cpu_times(), time.monotonic()
    while time.monotonic() - began < seconds:
        view.read(0.05)
    after = process.cpu_times()
    used = after.user + after.system - cpu.user - cpu.system
    return round(used / (time.monotonic() - began) * 100, 2)


def help_ms() -> float:
    """Return the CPU time of ``hermes-tui --help``, in milliseconds."""
    took = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-P", "-m", "hermes_tui.cli.main", "--help"],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return round(statistics.median(took) * 1000)


# Reporting -----------------------------------------------------------------------------------


def targets_of(result: dict[str, Any]) -> list[Target]:
    """Return the targets with the values reached."""
    targets = [at_most("--help, CPU ms", result["help_cpu_ms"], 300)]
    if inside := result.get("headless"):
        for name, label in (("stream", "empty"), ("stream_after_past", "long past")):
            row = inside[name]
            targets.append(at_most(f"worst stall, {label}, ms", row["worst_stall_ms"], 150))
            targets.append(at_most(f"key to paint p95, {label}, ms", row["key"]["p95_ms"], 100))
        stall = inside["open_past_stall_ms"]
        targets.append(at_most(f"stall, opening {NUM_TURNS} turns, ms", stall, 100))
        found = max(inside["search_all"].values())
        targets.append(at_most(f"search of {NUM_SEARCHED} turns, ms", found, 150))
        worst = max(inside["idle_cpu_percent"].values())
        targets.append(at_most("idle CPU, the worst pane, %", worst, 2))
        idle = inside["idle_cpu_percent_after_past"]
        targets.append(at_most("idle CPU, long past, %", idle, 2))
    if outside := result.get("terminal"):
        p95 = outside["key_while_streaming"]["p95_ms"]
        targets.append(at_most("key to terminal p95 while streaming, ms", p95, 100))
        targets.append(at_most("idle CPU in a terminal, %", outside["idle_cpu_percent"], 2))
        targets.append(at_most("exit, ms", outside["exit_ms"], 1000))
    return targets


def show(result: dict[str, Any], indent: str = "") -> None:
    """Print the figures as a tree."""
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            show(value, f"{indent}  ")
        else:
            print(f"{indent}{name:<30}{value}")


def main() -> None:
    """Run the benchmark, or the app in its terminal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter streams and idle times")
    parser.add_argument("--pty", action="store_true", help="only what a terminal sees")
    parser.add_argument("--app", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=10.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.app:
        app, backend = make_app(args.app)
        backend.stream_s = args.seconds
        relax_garbage_collector()  # as the program does
        app.run()
        gc.freeze()
        return
    relax_garbage_collector()  # as the program does
    load = round(psutil.getloadavg()[0], 1)
    result: dict[str, Any] = {
        "load_average": load,
        "cores": psutil.cpu_count(),
        "help_cpu_ms": help_ms(),
    }
    if not args.pty:
        result["headless"] = asyncio.run(headless(args.quick))
    result["terminal"] = in_terminal(args.quick)
    show(result)
    print_outcome("screen", result, targets_of(result))


if __name__ == "__main__":
    main()
