"""The end of a process's log, beside the processes."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

from hermes_tui.core.log_buffer import LogLines
from hermes_tui.tui.widgets.formatting import line
from hermes_tui.tui.widgets.logs_pane import LEVEL_CHARS, brief

TONES = {
    "ERROR": "$text-error",
    "CRITICAL": "$text-error",
    "Traceback": "$text-error",
    "WARNING": "$text-warning",
    "DEBUG": "dim",
}
"""Colour of a line by a word near its beginning."""


class LogTail(Widget):
    """As many of a log's newest lines as fit; enter on the process opens the whole log."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(id="log-tail")
        self._lines = LogLines()
        self.display = False

    def sync(self, lines: LogLines) -> None:
        """Show the end of a log as it is now."""
        self._lines = lines
        self.border_title = line(lines.process or "log", "bold")
        self.refresh()

    def render(self) -> Content:
        """Draw the newest lines, each cut to the width."""
        width, height = self.content_size
        newest = [text for _, text in self._lines.since(max(self._lines.end - height, 0))]
        if not newest:
            return Content.styled("nothing is written yet", "dim")
        drawn = [line(brief(text, newest[-1]), _tone(text)) for text in newest[-height:]]
        return Content("\n").join([text.truncate(width, ellipsis=True) for text in drawn])


def _tone(text: str) -> str:
    head = text[:LEVEL_CHARS]
    return next((tone for word, tone in TONES.items() if word in head), "")
