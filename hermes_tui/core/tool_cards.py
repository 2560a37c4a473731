"""Tool calls as a person reads them: what was called, how it ended, its output without JSON.

The names of tools and of their fields are those of hermes-agent 0.19; the calls of any other agent
show their name and arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hermes_tui.core.changes import ToolPart
from hermes_tui.core.sanitize import one_line

Outcome = Literal["running", "waiting", "done", "failed", "denied", "stopped"]
"""How a call ended. ``waiting`` is for a person's answer; a ``stopped`` one never came back."""

SHELLS = frozenset({"terminal", "process", "execute_code"})
"""Tools whose output is read from its end."""

EDITS = frozenset({"write_file", "patch"})
"""Tools that change files."""

_SIGNS = {
    **dict.fromkeys(SHELLS, "$"),
    **dict.fromkeys(EDITS, "✎"),
    "read_file": "≡",
    "search_files": "⌕",
    "todo": "☐",
    "clarify": "?",
}

_TITLES: Mapping[str, tuple[str, ...]] = {
    "terminal": ("command",),
    "process": ("action", "session_id"),
    "execute_code": ("code",),
    "write_file": ("path",),
    "patch": ("path",),
    "read_file": ("path",),
    "search_files": ("pattern", "path"),
    "clarify": ("question",),
}
"""The arguments that say what a tool does."""

_TODO_SIGNS = {"completed": "☑", "in_progress": "▸", "cancelled": "✗"}

_FAILED = frozenset({"error", "timeout", "interrupted", "disabled"})
_DENIED = frozenset({"blocked", "pending_approval"})
"""A result's ``status`` when it came to nothing."""

_DENIAL = ("BLOCKED", "denied by user")
"""An error that holds one of these was a refusal, a person's or a rule's."""

_BROKEN = re.compile(r"Error\b|Tool '[^']*' does not exist")
"""The beginning of a result in words that tells of a failure."""

_PATCHED = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$", re.MULTILINE)

_OUTPUT = ("output", "content", "diff", "user_response")
"""Where a result has its text."""

_QUIET = frozenset({"status", "success", "exit_code", "exit_code_meaning", "error", "approval"})
"""Fields of a result that the card's head says already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCard:
    """One tool call."""

    sign: str
    """One cell for the kind of tool."""
    title: str
    """What it does, on one line: a command, a path, else name and arguments."""
    outcome: Outcome
    """How it ended, or that it has not."""
    remark: str = ""
    """What came of it, in a few words: ``exit 2``, ``+2 −1``, ``2 of 3 done``."""
    call: str = ""
    """What was called, in full."""
    output: str = ""
    """What it answered, unescaped; empty for nothing."""
    from_end: bool = False
    """Whether the end of the output matters most, as with a command."""


def tool_card(part: ToolPart, *, over: bool = False, asked: bool = False) -> ToolCard:
    """Return a tool call as a card.

    Args:
        part: the call, and its result once there.
        over: whether its turn has ended, so that no result comes any more.
        asked: whether the agent waits for a person's answer in its session.
    """
    arguments = _object(part.arguments)
    result = _object(part.result or "")
    outcome: Outcome
    if part.result is None:
        outcome = "stopped" if over else "waiting" if asked else "running"
    else:
        outcome = _outcome(part.result, result)
    return ToolCard(
        sign=_SIGNS.get(part.name, "→"),
        title=_title(part, arguments),
        outcome=outcome,
        remark=_remark(part, arguments, result, outcome),
        call=_call(part, arguments),
        output="" if part.result is None else _output(part.result, result),
        from_end=part.name in SHELLS,
    )


def _object(text: str) -> dict[str, Any]:
    """Return the JSON object that a text is; empty when it is none."""
    if not text.startswith("{"):
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _outcome(text: str, result: Mapping[str, Any]) -> Outcome:
    error = str(result.get("error") or "")
    status = result.get("status")
    if status in _DENIED or any(sign in error for sign in _DENIAL):
        return "denied"
    if error or status in _FAILED or result.get("success") is False:
        return "failed"
    if result.get("exit_code") and not result.get("exit_code_meaning"):
        return "failed"
    return "failed" if _BROKEN.match(text) else "done"


def _title(part: ToolPart, arguments: Mapping[str, Any]) -> str:
    if part.name == "todo":
        return part.name
    words = [str(arguments[name]) for name in _TITLES.get(part.name, ()) if arguments.get(name)]
    if part.name == "patch" and not words:
        words = _PATCHED.findall(str(arguments.get("patch") or ""))
    if words:
        return one_line(" ".join(words))
    return one_line(f"{part.name} {part.arguments if part.arguments != '{}' else ''}")


def _remark(
    part: ToolPart, arguments: Mapping[str, Any], result: Mapping[str, Any], outcome: Outcome
) -> str:
    if outcome not in ("done", "failed"):
        return ""
    code = result.get("exit_code")
    if outcome == "failed":
        error = one_line(str(result.get("error") or ""))
        return f"exit {code}" if code and code != -1 else error
    if meaning := result.get("exit_code_meaning"):
        return f"exit {code}: {one_line(str(meaning))}"
    if part.name in EDITS:
        return _changed_lines(arguments, result)
    if part.name == "todo":
        items = _todos(arguments, result)
        done = sum(item.get("status") == "completed" for item in items)
        return f"{done} of {len(items)} done" if items else ""
    return ""


def _changed_lines(arguments: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return how many lines an edit added and removed; a file that is written anew only adds."""
    if diff := result.get("diff"):
        lines = [row for row in str(diff).split("\n") if not row.startswith(("+++", "---"))]
        added = sum(row.startswith("+") for row in lines)
        removed = sum(row.startswith("-") for row in lines)
        return f"+{added} −{removed}"
    if "content" in arguments:
        return f"+{_num_lines(str(arguments['content']))}"
    return ""


def _num_lines(text: str) -> int:
    return text.removesuffix("\n").count("\n") + 1 if text else 0


def _todos(arguments: Mapping[str, Any], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = result.get("todos") or arguments.get("todos") or ()
    return [item for item in found if isinstance(item, dict)]


def _call(part: ToolPart, arguments: Mapping[str, Any]) -> str:
    """Return a call in full: what its head says first, then its other arguments, unescaped."""
    if not arguments:
        return part.arguments
    if part.name == "todo":
        return ""  # the list is the output
    first = [name for name in _TITLES.get(part.name, ()) if name in arguments]
    lines = [_unescaped(arguments[name]) for name in first]
    lines += _fields({name: v for name, v in arguments.items() if name not in first})
    return "\n".join(lines)


def _output(text: str, result: Mapping[str, Any]) -> str:
    """Return what a tool answered, as it was before it became JSON."""
    if not result:
        return text
    if items := _todos({}, result):
        return "\n".join(
            f"{_TODO_SIGNS.get(str(item.get('status')), '☐')} {item.get('content', '')}"
            for item in items
        )
    blocks = [_unescaped(result["error"])] if result.get("error") else []
    blocks += [_unescaped(result[name]) for name in _OUTPUT if result.get(name)]
    others = {k: v for k, v in result.items() if k not in _OUTPUT and k not in _QUIET}
    if not blocks:  # beside a text its numbers say little
        blocks += _fields(others)
    return "\n".join(block.removesuffix("\n") for block in blocks)


def _fields(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield named values, those of several lines below their names."""
    for name, value in values.items():
        if value not in (None, "", [], {}):
            text = _unescaped(value)
            yield f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"


def _unescaped(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
