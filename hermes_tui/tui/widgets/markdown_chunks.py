"""Splits a long reply into chunks, so that the cost of adding a word does not grow with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

CHUNK_CHARS = 1_000
"""A chunk ends with the first paragraph after this many characters: each append makes Textual
visit every paragraph of the chunk."""

LIST_CHARS = 500
"""A list is split between two items after this many: Textual redraws a growing list as a whole."""

BLOCK_CHARS = 2_000
"""Longer code, tables and paragraphs are split at a line: Textual highlights and wraps each of them
as a whole while it grows."""

STUBBORN_CHARS = 8_000
"""After this many characters a chunk ends anywhere."""

Kind = Literal["start", "paragraph", "block", "item", "line", "code"]

_PARAGRAPH = re.compile(r"[^\s\-*+>|=\d]")
"""The beginning of a line that does not continue a list, a quote or a table."""

_ITEM = re.compile(r"(?:([-*+])|\d{1,9}([.)]))[ \t]")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEAD = re.compile(r"\|.*\n\|[\s:|-]+\n")
_STOP = re.compile(r"(?:[.!?:;,] |[。！？；，])(?=[^\W\d_])")
"""Where a sentence may end a chunk: what follows parses as a paragraph."""

_BEGINNING_CHARS = 12
"""Characters that show what kind of line it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStart:
    """The start of a chunk of a reply."""

    offset: int = 0
    """Index of its first character."""
    kind: Kind = "start"
    """What it begins with. A block (a heading, code) has its own space above. An item, a line and
    code continue what the chunk before ends with."""
    prefix: str = ""
    """Put before its text so that it parses alone: a fence's first line, a table's head."""


def chunk_starts(text: str) -> list[ChunkStart]:
    """Return the start of each chunk of a reply."""
    found = [ChunkStart()]
    while (start := next_chunk_start(text, found[-1])) is not None:
        found.append(start)
    return found


def next_chunk_start(text: str, chunk: ChunkStart) -> ChunkStart | None:
    """Return the start of the chunk after one; None while that one may still grow.

    A start that was returned once stays the same when the text grows.
    """
    scan = _ChunkScanner(chunk)
    for at, line in _lines(text, chunk.offset):
        if at > chunk.offset:
            known = (
                STUBBORN_CHARS if scan.fence else _BEGINNING_CHARS
            )  # a shorter line may still close the fence
            if not line.endswith("\n") and len(line) < known:
                return None
            if found := scan.next_start(line, at - chunk.offset):
                kind, prefix = found
                return ChunkStart(offset=at, kind=kind, prefix=prefix)
        if (inside := scan.within(line, at - chunk.offset)) is not None:
            return ChunkStart(
                offset=at + inside, kind="code" if scan.fence else "line", prefix=scan.fence
            )
        scan.take(line)
    return None


def _lines(text: str, start: int) -> Iterator[tuple[int, str]]:
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield start, text[start:end]
        start = end


class _ChunkScanner:
    """The parser's state at a line of a chunk: inside a fence, a list or a table."""

    def __init__(self, chunk: ChunkStart) -> None:
        self.fence = chunk.prefix if chunk.kind == "code" else ""
        """The line that opened the code block around this line; empty outside code."""
        self._head = "" if self.fence else chunk.prefix
        self._above = ""
        self._item = ""

    def next_start(self, line: str, size: int) -> tuple[Kind, str] | None:
        """Return kind and prefix of a chunk that starts at a line; None if none may start there.

        Args:
            line: the line, or at least its beginning.
            size: characters of the chunk so far.
        """
        if self.fence:
            return ("code", self.fence) if size >= BLOCK_CHARS and not self._closes(line) else None
        apart = not self._above.strip()
        marker = _marker(line)
        if size >= LIST_CHARS and marker and (apart or marker == self._item):
            return ("item" if marker == self._item else "paragraph", "")
        plain = _PARAGRAPH.match(line) is not None
        if size >= CHUNK_CHARS and apart and plain:
            return "block" if line.startswith(("#", "```", "~~~")) else "paragraph", ""
        if size >= BLOCK_CHARS and line.startswith("|") and _HEAD.fullmatch(self._head):
            return "line", self._head
        if size >= BLOCK_CHARS and not apart and plain and not _FENCE.match(line):
            return "line", ""
        return ("line", "") if size >= STUBBORN_CHARS else None

    def within(self, line: str, size: int) -> int | None:
        """Return where a line that is too long is split; None if it is not."""
        spare = STUBBORN_CHARS - size
        if not self.fence and not line.startswith("|"):
            for stop in _STOP.finditer(line, BLOCK_CHARS):
                if _is_balanced(line[: stop.end()]):
                    return min(stop.end(), spare)
        return spare if 0 < spare < len(line) else None

    def take(self, line: str) -> None:
        """Advance past a line."""
        if self.fence:
            self.fence = "" if self._closes(line) else self.fence
        elif _FENCE.match(line):
            self.fence = line
        if line.startswith("|"):
            self._head += line if self._head.count("\n") < 2 else ""
        else:
            self._head = ""
        marker = _marker(line)
        if marker or (line[:1].strip() and not self._above.strip()):
            self._item = marker
        self._above = line

    def _closes(self, line: str) -> bool:
        opened, closing = _FENCE.match(self.fence), line.strip()
        assert opened is not None
        return closing.startswith(opened[1]) and not closing.strip(opened[1][0])


def _marker(line: str) -> str:
    """Return a list item's marker without its number; empty for other lines."""
    found = _ITEM.match(line)
    return found[1] or found[2] if found else ""


def _is_balanced(text: str) -> bool:
    """True when all code, bold text and links that begin in a text also end in it."""
    even = text.count("`") % 2 == 0 and text.count("**") % 2 == 0
    return even and text.count("[") == text.count("]")
