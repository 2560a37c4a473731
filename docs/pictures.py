"""Make the pictures of docs/pictures/: each pane at 120x40 and 80x24, and the panes side by side at
200x60, over a stack that exists only in memory.

    python docs/pictures.py
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
sys.path.insert(0, str(ROOT / "tests"))

from fakes.backend import FakeBackend  # noqa: E402
from fakes.lessons import train  # noqa: E402
from fakes.screen import (  # noqa: E402
    NARROW,
    WIDE,
    add_past,
    app_of,
    badges,
    main,
    make_app,
    running,
    say_and_hear,
    until,
)
from textual.pilot import Pilot  # noqa: E402

from hermes_tui.core.models import CanaryRow  # noqa: E402
from hermes_tui.tui.screens.compare_replies import CompareScreen, GroupSizeScreen  # noqa: E402
from hermes_tui.tui.screens.lesson import LessonScreen  # noqa: E402
from hermes_tui.tui.widgets.lesson_bar import LessonBar  # noqa: E402
from hermes_tui.tui.widgets.markdown_reply import ReplyChunk  # noqa: E402
from hermes_tui.tui.widgets.prompt import Prompt  # noqa: E402
from hermes_tui_services.api.events import ToolCalled, ToolReturned, TurnEvent  # noqa: E402

VAST = (200, 60)

MAX_BYTES = 2_000_000
"""What all pictures together may take in the repository."""

ANSWERS = {
    "Say hello to a friend in one sentence.": {
        6: "Hello! I am writing to you today to tell you about a friend of mine, who is a friend.",
        7: "Hello, my dear friend, how good to see you!",
    },
    "What is the capital of France?": {
        6: "The capital of France is Paris, a city that is known for its art and its food.",
        7: "The capital of France is Paris.",
    },
}
"""What two versions said to the canary's questions."""

RESULTS = (
    ("terminal", {"command": "ls -la"}, {"output": "notes.txt\nold\n", "exit_code": 0}, 0.3),
    ("patch", {"path": "notes.txt"}, {"success": True, "diff": "-milk\n+bread\n+salt"}, 0.1),
    ("terminal", {"command": "make clean"}, {"output": "no rule", "exit_code": 2}, 1.2),
    ("terminal", {"command": "rm -r old"}, {"error": "BLOCKED: denied by user"}, 8.0),
)
"""Tool calls, what they answered, and how long they took."""

TOOLS: list[TurnEvent] = [
    event
    for number, (name, arguments, result, seconds) in enumerate(RESULTS)
    for event in (
        ToolCalled(call_id=str(number), name=name, arguments=json.dumps(arguments)),
        ToolReturned(call_id=str(number), name=name, output=json.dumps(result), seconds=seconds),
    )
]

Show = Callable[[Pilot[None]], Awaitable[None]]


async def talk(pilot: Pilot[None]) -> None:
    """Show a conversation whose last episode was scored just now."""
    app = app_of(pilot)
    await app.controller.open_session("sess-1")
    await until(pilot, lambda: len(badges(app)) == 2)
    await say_and_hear(pilot, "Hello!")
    await pilot.press("f3")
    await until(pilot, lambda: "◆ scored" in badges(app)[-1])
    app.clear_notifications()


def pressed(*keys: str) -> Show:
    """Return what shows the conversation and then presses keys."""

    async def show(pilot: Pilot[None]) -> None:
        await talk(pilot)
        await pilot.press(*keys)

    return show


def pane(name: str) -> Show:
    """Return what shows a pane after the conversation."""

    async def show(pilot: Pilot[None]) -> None:
        await talk(pilot)
        main(app_of(pilot)).press(f"pane_{name}")

    return show


async def compare(pilot: Pilot[None]) -> None:
    """Show three replies side by side."""
    app = app_of(pilot)
    await pilot.press("escape", "g")
    await until(pilot, lambda: isinstance(app.screen, GroupSizeScreen), "the question")
    await pilot.press("backspace", "3", "enter")
    await until(pilot, lambda: isinstance(app.focused, Prompt), "the comparison")
    await pilot.press(*"Greet", "space", *"Ada", "enter")
    await until(pilot, lambda: len(app.screen.query(ReplyChunk)) == 3, "the replies")
    turns = app.controller.state.turns
    ended = [t for row in turns.values() for t in row if t.user_text == "Greet Ada"]
    await until(pilot, lambda: all(t.state == "completed" for t in ended), "their ends")


async def tools(pilot: Pilot[None]) -> None:
    """Show a turn with tool calls, one of them unfolded."""
    app = app_of(pilot)
    backend = app.controller.backend
    assert isinstance(backend, FakeBackend)
    backend.turn_events = list(TOOLS)
    await say_and_hear(pilot, "Tidy up, please.")
    await pilot.press("escape", "c", "o")
    await pilot.pause()


async def lesson(pilot: Pilot[None]) -> None:
    """Show what a step has learned."""
    app = app_of(pilot)
    backend = app.controller.backend
    assert isinstance(backend, FakeBackend)
    await say_and_hear(pilot, "Greet Ada in one sentence.")
    train(backend, episode_id=list(backend.details)[-1])
    await until(pilot, lambda: main(app).query_one(LessonBar).display, "the line")
    await pilot.press("escape", "K")
    await until(pilot, lambda: isinstance(app.screen, LessonScreen), "the card")


async def retry(pilot: Pilot[None]) -> None:
    """Show a reply and another try of it."""
    app = app_of(pilot)
    backend = app.controller.backend
    assert isinstance(backend, FakeBackend)
    await say_and_hear(pilot, "Greet Ada in one sentence.")
    backend.reply = ["Good", " day", " to", " you", ",", " dear", " Ada", "."]
    await pilot.press("escape", "c", "R")
    await until(pilot, lambda: isinstance(app.screen, CompareScreen), "the comparison")
    ended = [turn for turns in app.controller.state.turns.values() for turn in turns]
    await until(pilot, lambda: all(turn.state == "completed" for turn in ended), "its end")
    await pilot.press("2")


PICTURES: dict[str, Show] = {
    "tools": tools,
    "lesson": lesson,
    "retry": retry,
    "chat": talk,
    "sessions": pane("sessions"),
    "tokens": pressed("escape", "t", "left", "left", "left", "left"),
    "compare": compare,
    "training": pane("training"),
    "system": pane("system"),
    "logs": pane("logs"),
    "help": pressed("f1"),
}


async def picture(show: Show, size: tuple[int, int]) -> str:
    """Return a picture as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        app, backend = make_app(Path(folder))
        add_past(backend)
        steps = backend.step_rows[: backend.trainer_row.policy_version]
        backend.step_rows = [replace(step, policy_version=step.step) for step in steps]
        backend.canary_rows = [
            CanaryRow(policy_version=version, prompt=prompt, text=text)
            for prompt, answers in ANSWERS.items()
            for version, text in answers.items()
        ]
        async with running(app, size) as pilot:
            main(app).query_one("#prompt").cursor_blink = False  # type: ignore[attr-defined]
            await show(pilot)
            await pilot.pause(0.3)
            return smaller(app.export_screenshot(title="hermes-tui"))


def smaller(svg: str) -> str:
    """Return a picture without what differs from run to run or only takes room."""
    svg = re.sub(r"terminal-\d+", "t", svg)
    return "\n".join(line.strip() for line in svg.splitlines() if line.strip()) + "\n"


def write() -> int:
    """Write every picture; return how many bytes they take together."""
    FOLDER.mkdir(exist_ok=True)
    total = 0
    for name, show in PICTURES.items():
        for width, height in (WIDE, NARROW, *((VAST,) if name in ("chat", "system") else ())):
            svg = asyncio.run(picture(show, (width, height)))
            path = FOLDER / f"{name}-{width}x{height}.svg"
            path.write_text(svg, encoding="utf-8")
            total += len(svg.encode())
            print(f"{path.relative_to(ROOT)} {len(svg.encode()):,} bytes")
    return total


if __name__ == "__main__":
    taken = write()
    print(f"{taken:,} bytes in all")
    if taken > MAX_BYTES:
        raise SystemExit(f"too large: at most {MAX_BYTES:,}")
