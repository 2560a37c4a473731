"""Where a long reply is cut into pieces, so that what it costs to add a word stays the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

CHUNK_CHARS = 1_000
"""A piece ends with the first paragraph after this much: what arrives costs Textual a look at
every paragraph of its piece."""

LIST_CHARS = 500
"""A list is cut between two items after this much: Textual draws a growing list all anew."""

BLOCK_CHARS = 2_000
"""Code, a table or a paragraph that is longer is cut at one of its lines: each is highlighted and
wrapped anew as a whole while it grows."""

STUBBORN_CHARS = 8_000
"""After this much a piece ends wherever it may be."""

Kind = Literal["start", "paragraph", "block", "item", "line", "code"]

_PARAGRAPH = re.compile(r"[^\s\-*+>|=\d]")
"""How a line begins that is no part of what stands above it: of a list, a quote, a table."""

_ITEM = re.compile(r"(?:([-*+])|\d{1,9}([.)]))[ \t]")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEAD = re.compile(r"\|.*\n\|[\s:|-]+\n")
_STOP = re.compile(r"(?:[.!?:;,] |[。！？；，])(?=[^\W\d_])")
"""Where a sentence may be cut so that what follows is read as a paragraph."""

_BEGINNING_CHARS = 12
"""So much of a line tells what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStart:
    """Where a piece of a reply begins."""

    offset: int = 0
    """Its first character."""
    kind: Kind = "start"
    """What it begins with. A block (a heading, code) brings the room above it; an item, a line and
    code go on with what the piece above ends with."""
    prefix: str = ""
    """What stands before its text, so that it is read as what it is: the line that opened a fence,
    the head of a table."""


def chunk_starts(text: str) -> list[ChunkStart]:
    """Return where each piece of a reply begins."""
    found = [ChunkStart()]
    while (start := next_chunk_start(text, found[-1])) is not None:
        found.append(start)
    return found


def next_chunk_start(text: str, chunk: ChunkStart) -> ChunkStart | None:
    """Return where the piece after the one that begins at a border begins.

    A border that was found stays where it is when the text grows.

    Returns: None while the piece goes on.
    """
    scan = _ChunkScanner(chunk)
    for at, line in _lines(text, chunk.offset):
        if at > chunk.offset:
            known = STUBBORN_CHARS if scan.fence else _BEGINNING_CHARS  # may the fence close here?
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
    """What is known of a piece at one of its lines."""

    def __init__(self, chunk: ChunkStart) -> None:
        self.fence = chunk.prefix if chunk.kind == "code" else ""
        """The line that opened the code that goes on here; empty outside code."""
        self._head = "" if self.fence else chunk.prefix
        self._above = ""
        self._item = ""

    def next_start(self, line: str, size: int) -> tuple[Kind, str] | None:
        """Return what a piece that begins with a line is and is led by; None for no border here.

        Args:
            line: the line, or enough of it.
            size: characters of the piece so far.
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
        """Return where a line that is too long is cut; None where it is not."""
        spare = STUBBORN_CHARS - size
        if not self.fence and not line.startswith("|"):
            for stop in _STOP.finditer(line, BLOCK_CHARS):
                if _is_balanced(line[: stop.end()]):
                    return min(stop.end(), spare)
        return spare if 0 < spare < len(line) else None

    def take(self, line: str) -> None:
        """Go on behind a line."""
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
    """Return what marks a line as an item of a list, without its number; empty for other lines."""
    found = _ITEM.match(line)
    return found[1] or found[2] if found else ""


def _is_balanced(text: str) -> bool:
    """Return whether code, bold words and links that begin in a text also end there."""
    even = text.count("`") % 2 == 0 and text.count("**") % 2 == 0
    return even and text.count("[") == text.count("]")
