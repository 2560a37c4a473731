"""Make the pictures of docs/pictures/: each pane at 120x40 and 80x24, and the panes side by side at
200x60, over a stack that exists only in memory.

    python docs/pictures.py
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
sys.path.insert(0, str(ROOT / "tests"))

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
from hermes_tui.tui.screens.compare_replies import GroupSizeScreen  # noqa: E402
from hermes_tui.tui.widgets.markdown_reply import ReplyChunk  # noqa: E402
from hermes_tui.tui.widgets.prompt import Prompt  # noqa: E402

VAST = (200, 60)

MAX_BYTES = 1_500_000
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


PICTURES: dict[str, Show] = {
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
        for width, height in (WIDE, NARROW, *((VAST,) if name == "chat" else ())):
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
