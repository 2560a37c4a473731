"""The texts in the installed hermes-agent's own source: what its wording is held against."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "hermes-agent"
PARTS = ("agent/", "run_agent.py", "tools/")
"""The files that an agent's turn runs; not its terminal program, gateways and plugins."""


@functools.cache
def texts() -> tuple[str, ...]:
    """Return every text literal of an agent's turn; a replacement field reads ``{}``."""
    files = importlib.metadata.files(PACKAGE) or []
    paths = [file for file in files if str(file).startswith(PARTS) and file.suffix == ".py"]
    assert paths, f"{PACKAGE} has none of {PARTS}"
    return tuple(text for path in paths for text in _literals(Path(str(path.locate()))))


def version() -> str:
    """Return the version that is installed."""
    return importlib.metadata.version(PACKAGE)


def _literals(path: Path) -> Iterator[str]:
    inner: set[int] = set()
    # Parents come before their children, so the parts of an f-string are known by then.
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            inner.update(map(id, node.values))
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner
        ):
            yield node.value
