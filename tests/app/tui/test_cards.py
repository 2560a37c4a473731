"""The conversation's pieces: tool calls as cards, and what is marked, unfolded and copied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.screen import badges, chat, main, make_app, running, say, say_and_hear, until
from textual.pilot import Pilot

from hermes_tui.tui.app import HermesTui
from hermes_tui.tui.widgets.tool_block import FoldedBlock
from hermes_tui_services.api.events import (
    ApprovalRequested,
    ToolCalled,
    ToolReturned,
    TurnEvent,
)


def called(name: str, arguments: object, result: object, seconds: float) -> list[TurnEvent]:
    """Return a tool call and its result as they arrive."""
    output = result if isinstance(result, str) else json.dumps(result)
    call_id = f"{name}-{seconds}"
    return [
        ToolCalled(call_id=call_id, name=name, arguments=json.dumps(arguments)),
        ToolReturned(call_id=call_id, name=name, output=output, seconds=seconds),
    ]


TOOLS = [
    *called("terminal", {"command": "ls -la"}, {"output": "1\n2\n3\n4\n", "exit_code": 0}, 0.3),
    *called("terminal", {"command": "make"}, {"output": "no rule\n", "exit_code": 2}, 1.2),
    *called(
        "terminal",
        {"command": "rm -r /"},
        {"output": "", "exit_code": -1, "error": "BLOCKED: denied by user", "status": "blocked"},
        9.0,
    ),
    *called("patch", {"path": "note.txt"}, {"success": True, "diff": "+a\n+b\n-c"}, 0.1),
]


def blocks(app: HermesTui) -> list[FoldedBlock]:
    """Return the tool calls that are shown."""
    return list(main(app).query(FoldedBlock))


def heads(app: HermesTui) -> list[str]:
    """Return the first line of each tool call."""
    return [str(block.query_one(".folded-head").render()) for block in blocks(app)]


def body(block: FoldedBlock) -> str:
    """Return what is shown below a tool call's first line."""
    below = block.query_one(".folded-body")
    return str(below.render()) if below.display else ""


async def test_row_7_tools_are_cards(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.turn_events = TOOLS
    async with running(app) as pilot:
        await say_and_hear(pilot)
        assert heads(app) == [
            "▸ $ ls -la  ✓ 0.3 s",
            "▸ $ make  ✗ failed · exit 2 · 1.2 s",
            "▸ $ rm -r /  ⊘ denied · 9.0 s",
            "▸ ✎ note.txt  ✓ +2 −1 · 0.1 s",
        ]
        assert [body(block) for block in blocks(app)] == [
            "2\n3\n4",
            "no rule",
            "BLOCKED: denied by user",
            "",
        ]


async def test_row_7_one_card_unfolds_at_a_time(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.turn_events = TOOLS
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("escape", "c", "o")
        await until(pilot, lambda: [b.folded for b in blocks(app)] == [True, True, True, False])
        assert body(blocks(app)[3]) == "+a\n+b\n-c"
        await pilot.press("o", *["left_square_bracket"] * 4)
        await until(pilot, lambda: blocks(app)[0].has_class("-marked"), "the mark")
        await pilot.press("o")
        await until(pilot, lambda: [b.folded for b in blocks(app)] == [False, True, True, True])
        assert body(blocks(app)[0]) == "1\n2\n3\n4"


async def test_the_agent_waits_for_you_and_the_bell_rings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, backend = make_app(tmp_path)
    rung: list[bool] = []
    monkeypatch.setattr(app, "bell", lambda: rung.append(True))
    ask = ApprovalRequested(
        approval_id="q", description="may it?", choices=("once", "deny"), command="rm x"
    )
    backend.turn_events = [
        ToolCalled(call_id="c", name="terminal", arguments='{"command": "rm x"}'),
        ask,
    ]
    backend.hold = 0
    async with running(app) as pilot:
        await say(pilot)
        await until(pilot, lambda: badges(app) == ["◆ waits for you · ctrl+o answers"])
        assert heads(app) == ["▸ $ rm x  ◆ waits for you"]
        assert rung == [True]
        backend.gate.set()
        await until(pilot, lambda: heads(app) == ["▸ $ rm x  ◇ no answer"])


async def copied(pilot: Pilot[None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by what is copied."""
    taken: list[str] = []

    async def take(app: object, text: str, folder: Path) -> str:
        taken.append(text)
        return "copied"

    monkeypatch.setattr("hermes_tui.tui.app.copy", take)
    return taken


async def test_code_output_and_turns_are_copied_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, backend = make_app(tmp_path)
    lines = "\n".join(f"line_{i} = {i}" for i in range(400))
    backend.reply = ["Look:\n\n```python\n", lines, "\n```\n\nThat ", "is all."]
    backend.logprobs = [-0.1] * 4
    backend.turn_events = TOOLS[:2]
    async with running(app) as pilot:
        taken = await copied(pilot, monkeypatch)
        await say_and_hear(pilot, "write it")
        await pilot.press("escape", "c", "y")
        await until(pilot, lambda: taken[-1:] == ["".join(backend.reply)])
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: chat(app).view.marked is not None, "the code")
        await pilot.press("y")
        await until(pilot, lambda: taken[-1:] == [lines + "\n"])
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: isinstance(chat(app).view.marked, FoldedBlock))
        await pilot.press("y")
        await until(pilot, lambda: taken[-1:] == ["1\n2\n3\n4"])
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: chat(app).view.marked in chat(app).view.views())
        await pilot.press("y")
        await until(pilot, lambda: taken[-1:] == ["write it\n\n" + "".join(backend.reply)])
