"""The newest lines of a log, as a view keeps them: bounded, numbered, searchable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hermes_tui.core.sanitize import clean

MAX_LINES = 5_000
"""Lines that are kept; the log files keep more, and ``hermes-tui logs`` reads those."""

MAX_LINE_CHARS = 4_000
"""A longer line is cut: no screen is that wide, and a line of megabytes would stall it."""

TAB_CELLS = 4


@dataclass(slots=True, kw_only=True)
class LogLines:
    """A ring of lines, each with a number that stays its own while older lines fall out."""

    process: str = ""
    """Whose log; empty while none is read."""
    num_dropped: int = 0
    """How many lines have fallen out: the number of the oldest kept one."""
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LINES))

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def end(self) -> int:
        """The number that the next line will have."""
        return self.num_dropped + len(self._lines)

    def append(self, line: str) -> None:
        """Take a line without what a terminal obeys; its indentation stays."""
        if len(self._lines) == MAX_LINES:
            self.num_dropped += 1
        text = clean(line[:MAX_LINE_CHARS]).replace("\n", " ")
        self._lines.append(text.expandtabs(TAB_CELLS).rstrip())

    def __getitem__(self, number: int) -> str:
        """Return a line by its number; empty when it has fallen out, or is still to come."""
        index = number - self.num_dropped
        return self._lines[index] if 0 <= index < len(self._lines) else ""

    def since(self, number: int) -> Iterator[tuple[int, str]]:
        """Yield number and text of each kept line from a number on."""
        first = max(number, self.num_dropped)
        for index in range(first - self.num_dropped, len(self._lines)):
            yield self.num_dropped + index, self._lines[index]
