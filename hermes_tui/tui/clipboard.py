"""Copy text, and say what is known of where it went."""

from __future__ import annotations

import asyncio
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from textual.app import App

TOOLS = (
    ("pbcopy",),
    ("wl-copy",),
    ("xclip", "-selection", "clipboard"),
    ("xsel", "--clipboard", "--input"),
    ("clip.exe",),
)
"""Programs that take text on standard input, tried in this order."""

_TOOL_S = 2.0
"""Deadline of such a program."""


async def copy(app: App[None], text: str, folder: Path) -> str:
    """Copy text in every way there is; return in one short line where it went.

    OSC 52 asks the terminal, and no terminal confirms it. So a local tool is used as well, and
    without one the text also goes to a file. Over SSH no tool is used: it would fill the clipboard
    of the remote machine.
    """
    app.copy_to_clipboard(text)
    for tool in () if _is_remote() else TOOLS:
        if _usable(tool[0]) and await _feed(tool, text):
            return f"copied with {tool[0]}"
    file = await asyncio.to_thread(_to_file, text, folder)
    return f"to {_terminal()} (unconfirmed), {file}"


def _is_remote() -> bool:
    return any(os.environ.get(name) for name in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"))


def _terminal() -> str:
    """Return who was asked by OSC 52 to take the text. None of them confirms it."""
    if os.environ.get("TMUX"):
        return "tmux"
    return "screen" if os.environ.get("STY") else "the terminal"


def _to_file(text: str, folder: Path) -> str:
    stamp = datetime.now(tz=UTC).strftime("%m%d-%H%M%S-%f")[:-3]
    path = folder / f"{stamp}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"no file ({error.strerror})"
    return f"{folder.name}/{path.name}"


def _usable(program: str) -> bool:
    if program in ("xclip", "xsel") and not os.environ.get("DISPLAY"):
        return False
    if program == "wl-copy" and not os.environ.get("WAYLAND_DISPLAY"):
        return False
    return shutil.which(program) is not None


async def _feed(tool: tuple[str, ...], text: str) -> bool:
    try:
        process = await asyncio.create_subprocess_exec(
            *tool,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(_TOOL_S):
            await process.communicate(text.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        return False
    return process.returncode == 0
