"""What a tool call and its result become for a person."""

from __future__ import annotations

import json

import pytest

from hermes_tui.core.changes import ToolPart
from hermes_tui.core.tool_cards import ToolCard, tool_card


def card(name: str, arguments: object, result: object = None, **how: bool) -> ToolCard:
    """Return the card of a call; what is no string is JSON on the wire."""
    answer = result if isinstance(result, str) or result is None else json.dumps(result)
    part = ToolPart(call_id="c", name=name, arguments=json.dumps(arguments), result=answer)
    return tool_card(part, **how)


def test_a_command_is_its_line_and_its_output_has_no_json() -> None:
    done = card(
        "terminal",
        {"command": "ls -la", "timeout": 9},
        {"output": "a\nb\t[/INST]\n", "exit_code": 0, "error": None},
    )
    assert (done.sign, done.title, done.outcome, done.remark) == ("$", "ls -la", "done", "")
    assert done.output == "a\nb\t[/INST]"
    assert done.call == "ls -la\ntimeout: 9"


@pytest.mark.parametrize(
    ("result", "outcome", "remark"),
    [
        ({"output": "no\n", "exit_code": 2, "error": None}, "failed", "exit 2"),
        (
            {"output": "", "exit_code": 1, "error": None, "exit_code_meaning": "No matches"},
            "done",
            "exit 1: No matches",
        ),
        ({"output": "", "exit_code": -1, "error": "no shell"}, "failed", "no shell"),
        ({"exit_code": 124, "error": "Command timed out after 9 seconds"}, "failed", "exit 124"),
        (
            {"exit_code": -1, "error": "BLOCKED: Command denied by user.", "status": "blocked"},
            "denied",
            "",
        ),
        ({"exit_code": -1, "error": "", "status": "pending_approval"}, "denied", ""),
        ("Tool 'terminal' does not exist. Available: todo", "failed", ""),
        ("all is well", "done", ""),
    ],
)
def test_how_a_call_ended(result: object, outcome: str, remark: str) -> None:
    ended = card("terminal", {"command": "x"}, result)
    assert (ended.outcome, ended.remark) == (outcome, remark)


def test_a_call_without_a_result_runs_waits_or_never_came_back() -> None:
    call = ("terminal", {"command": "rm -r x"})
    assert card(*call).outcome == "running"
    assert card(*call, asked=True).outcome == "waiting"
    assert card(*call, over=True, asked=True).outcome == "stopped"


def test_an_edit_counts_its_lines() -> None:
    diff = "--- a/note.txt\n+++ b/note.txt\n@@ -1,2 +1,3 @@\n-old\n+new\n+more\n same\n"
    patched = card("patch", {"path": "note.txt"}, {"success": True, "diff": diff})
    assert (patched.sign, patched.title, patched.remark) == ("✎", "note.txt", "+2 −1")
    assert patched.output == diff.removesuffix("\n")
    several = card("patch", {"patch": "*** Begin Patch\n*** Update File: a.py\n*** Add File: b.py"})
    assert several.title == "a.py b.py"
    written = card("write_file", {"path": "n.txt", "content": "1\n2\n"}, {"bytes_written": 4})
    assert (written.remark, written.call) == ("+2", "n.txt\ncontent:\n1\n2\n")


def test_todos_are_ticked() -> None:
    items = [
        {"id": "1", "content": "look", "status": "completed"},
        {"id": "2", "content": "leap", "status": "pending"},
    ]
    todo = card("todo", {"todos": items}, {"todos": items, "summary": {"total": 2}})
    assert (todo.sign, todo.title, todo.remark) == ("☐", "todo", "1 of 2 done")
    assert todo.output == "☑ look\n☐ leap"


def test_the_tools_of_another_agent_show_their_call() -> None:
    other = card("weather", {"city": "Bonn"}, {"sky": "grey\nwet", "degrees": 4})
    assert other.title == 'weather {"city": "Bonn"}'
    assert other.output == "sky:\ngrey\nwet\ndegrees: 4"
    assert card("weather", {}).title == "weather"
    odd = ToolPart(call_id="c", name="terminal", arguments="{broken", result="{also")
    assert (tool_card(odd).title, tool_card(odd).output) == ("terminal {broken", "{also")
