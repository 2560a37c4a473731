"""What the agent may do without a question, and which files its file tools reach.

Hermes asks before commands that look dangerous. A shell expands what it is given, so no list of
words can tell: ``X=rm; $X -rf dir`` passes. What counts here is what the command could reach. In a
cage that shows nothing of the user's, that list is a courtesy. Without one, or where the agent may
change files of the user's, every command asks.

Private names of hermes-agent 0.19.0; ``agent`` checks that they are there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hermes_tui_services.api.config import WorkerRole
from hermes_tui_services.worker.hermes.home import hermes_config

EVERY_COMMAND = "every command"
"""What is allowed with "for this session" where every command asks."""

NO_CAGE = "it runs without a cage: it can read and change whatever you can"
YOUR_FILES = "it can change files of yours (services.agent.write_paths)"
"""Why every command asks."""


def install(modules: dict[str, Any], role: WorkerRole) -> None:
    """Set Hermes' questions and file tools up for a worker.

    Args:
        modules: Hermes' modules, by name.
        role: how the worker is caged, and what is the user's.
    """
    approval = modules["tools.approval"]
    # Hermes reads its configuration again when the file changes, and a tool could change it.
    settings = hermes_config(role.agent)["approvals"]
    approval._get_approval_config = lambda: settings
    approval._command_matches_permanent_allowlist = lambda command: False
    approval.save_permanent_allowlist = lambda patterns: None
    if reason := always_asks(role):
        approval.detect_dangerous_command = lambda command: (True, EVERY_COMMAND, reason)
        _ask_about_input(approval, modules["tools.process_registry"].process_registry)
    _keep_inside(modules["tools.file_tools"], role)


def always_asks(role: WorkerRole) -> str:
    """Return why every command asks; empty: only those that look dangerous do."""
    if role.cage == "none":
        return NO_CAGE
    return YOUR_FILES if role.agent.write_paths else ""


def _ask_about_input(approval: Any, registry: Any) -> None:
    """Ask about what is typed into a running program as about a command: it may be a shell."""
    write = registry.write_stdin

    def guarded(session_id: str, data: str) -> dict[str, Any]:
        decision = approval.check_all_command_guards(data, "local")
        if not decision["approved"]:
            return {"status": "error", "error": decision["message"]}
        written: dict[str, Any] = write(session_id, data)
        return written

    registry.write_stdin = guarded


def _keep_inside(file_tools: Any, role: WorkerRole) -> None:
    """Refuse paths outside of the session's directory and the user's extra ones, links followed."""
    writable = [Path(path).expanduser().resolve() for path in role.agent.write_paths]
    readable = [Path(path).expanduser().resolve() for path in role.agent.read_paths]

    def refusal(path: object, task_id: str, extra: Sequence[Path]) -> str | None:
        session_dir = file_tools._registered_task_cwd_override(task_id)
        try:
            meant = Path(file_tools._resolve_path_for_task(str(path), task_id)).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a zero byte
            return f"{path}: {error}"
        places = [*([Path(session_dir).resolve()] if session_dir else ()), *extra]
        if any(meant.is_relative_to(place) for place in places):
            return None
        return f"{path} is outside of the session's directory, {session_dir}"

    def guarded(tool: Callable[..., str], default: str | None) -> Callable[..., str]:
        def call(*args: Any, **kwargs: Any) -> str:
            path = kwargs.get("path", default)
            task_id = kwargs.get("task_id", "default")
            if error := refusal(path, task_id, [*readable, *writable]):
                return json.dumps({"error": error})
            return tool(*args, **kwargs)

        return call

    sensitive = file_tools._check_sensitive_path

    def refuse_write(path: str, task_id: str = "default") -> str | None:
        known: str | None = sensitive(path, task_id)
        return known or refusal(path, task_id, writable)

    file_tools._check_sensitive_path = refuse_write
    file_tools.read_file_tool = guarded(file_tools.read_file_tool, None)
    file_tools.search_tool = guarded(file_tools.search_tool, ".")
