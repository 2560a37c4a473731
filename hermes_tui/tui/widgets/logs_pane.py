"""The log of one process: follow, find, filter. Lines are drawn without widgets."""

from __future__ import annotations

import bisect
import re
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.reactive import reactive
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hermes_tui.core.log_buffer import LogLines
from hermes_tui.core.sanitize import one_line
from hermes_tui.tui.keys import bindings
from hermes_tui.tui.messages import CopyRequested, LogSearchRequested
from hermes_tui.tui.widgets.base import ActionOwner, ImmediateScroll, titled
from hermes_tui.tui.widgets.unread_bar import UnreadBar

LEVELS = {
    "ERROR": "logs--error",
    "CRITICAL": "logs--error",
    "Traceback": "logs--error",
    "WARNING": "logs--warning",
    "DEBUG": "logs--dim",
}
"""Component class of a line by a word near its beginning."""

LEVEL_CHARS = 60
"""The level is searched in this many characters: after the time, before the message."""


_TIME = re.compile(r"\d{4}-(\d\d-\d\d)T(\d\d:\d\d:\d\d)\S*")


def brief(text: str, newest: str) -> str:
    """Return a line with a short time: without the date if it is the newest line's.

    A full time would fill a narrow terminal. Find, filter and copy use the full line.
    """
    time = _TIME.match(text)
    if time is None:
        return text
    same_day = newest.startswith(text[: time.end(1)])
    return ("" if same_day else f"{time[1]} ") + time[2] + text[time.end() :]


class LogView(ActionOwner, ImmediateScroll, ScrollView, can_focus=True):
    """Draws the kept lines that match the filter.

    Follows the newest line until the person scrolls up; ``end`` follows again. While it does not
    follow, the lines in view stay in place, even when older lines leave the buffer.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {*LEVELS.values(), "logs--found", "logs--current"}
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("logs")]
    following: reactive[bool] = reactive(True, init=False, repaint=False)

    def __init__(self) -> None:
        super().__init__(id="log-view")
        self.log_lines = LogLines()
        self.filter = ""
        """Only lines that contain it are shown, ignoring case."""
        self.search_text = ""
        """The text to find; every match is highlighted."""
        self.current: int | None = None
        """Number of the current match's line; None without one."""
        self.num_unread = 0
        """Lines that arrived out of sight."""
        self._shown: list[int] = []
        self._seen = 0
        self._widest = 0

    @property
    def num_shown(self) -> int:
        """How many lines match the filter."""
        return len(self._shown)

    def on_mount(self) -> None:
        """Be called after each layout."""
        self.screen.screen_layout_refresh_signal.subscribe(self, self._stay, immediate=True)

    def _stay(self, _: Screen[object]) -> None:
        """Stay at the end while following: a smaller view or a scrollbar would hide it."""
        if self.following and self.scroll_offset.y < self.max_scroll_y:
            self.scroll_to(y=self.max_scroll_y, force=True)

    # What is shown -------------------------------------------------------------------------

    def sync(self, lines: LogLines) -> None:
        """Show a log as it is now."""
        if lines is not self.log_lines:
            self.log_lines = lines
            self._begin()
        gone = bisect.bisect_left(self._shown, lines.num_dropped)
        del self._shown[:gone]
        new = [(number, text) for number, text in lines.since(self._seen) if self._matches(text)]
        self._seen = lines.end
        if not gone and not new:
            return
        self._shown += [number for number, _ in new]
        self._widest = max([self._widest, *(cell_len(text) for _, text in new)])
        self._changed(gone, len(new))

    def _begin(self) -> None:
        self._shown, self._seen, self._widest, self.current = [], 0, 0, None
        self.num_unread = 0
        self.following = True
        self._changed(0, 0)

    def _matches(self, text: str) -> bool:
        return self.filter.lower() in text.lower()

    def _changed(self, gone: int, new: int) -> None:
        top = self.scroll_offset.y
        self.virtual_size = Size(self._widest, len(self._shown))
        if self.following:
            self.scroll_to(y=len(self._shown), force=True)
        else:
            self.num_unread += new
            if gone:
                self.scroll_to(y=max(top - gone, 0), force=True)
        self.refresh()

    def show_only(self, text: str) -> None:
        """Show the lines that contain a text; empty shows all."""
        self.filter = one_line(text)
        lines = self.log_lines
        self._shown = [number for number, line in lines.since(0) if self._matches(line)]
        self.num_unread = 0
        self.following = True
        self._changed(0, 0)

    # Drawing -------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Draw one line of the log."""
        width, base = self.scrollable_content_region.width, self.rich_style
        row = y + self.scroll_offset.y
        if not 0 <= row < len(self._shown):
            return Strip.blank(width, base)
        number = self._shown[row]
        text = self.log_lines[number]
        style = self._style_of(text)
        shown = brief(text, self.log_lines[self._shown[-1]])
        strip = Strip(self._segments(shown, style, number == self.current))
        left = self.scroll_offset.x
        return strip.crop_extend(left, left + width, base).apply_style(base)

    def _style_of(self, text: str) -> Style:
        head = text[:LEVEL_CHARS]
        name = next((name for word, name in LEVELS.items() if word in head), None)
        return self._style(name) if name else Style.null()

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name, partial=True)

    def _segments(self, text: str, style: Style, current: bool) -> list[Segment]:
        search_text = self.search_text.lower()
        if not search_text:
            return [Segment(text, style)]
        mark = style + self._style("logs--current" if current else "logs--found")
        segments: list[Segment] = []
        begin, lower = 0, text.lower()
        while (found := lower.find(search_text, begin)) >= 0:
            end = found + len(search_text)
            segments += [Segment(text[begin:found], style), Segment(text[found:end], mark)]
            begin = end
        return [*segments, Segment(text[begin:], style)]

    # Moving --------------------------------------------------------------------------------

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stop following when the person scrolls up; follow again at the end."""
        super().watch_scroll_y(old_value, new_value)
        if round(new_value) >= self.max_scroll_y:
            self.num_unread = 0
            self.following = True
        elif new_value < old_value:
            self.following = False

    def do_logs_follow(self) -> None:
        """Follow the newest line."""
        self.num_unread = 0
        self.following = True
        self.scroll_to(y=len(self._shown), force=True)

    def do_logs_find(self) -> None:
        """Ask what to find."""
        self.post_message(LogSearchRequested("find", self.search_text))

    def do_logs_filter(self) -> None:
        """Ask what lines to show."""
        self.post_message(LogSearchRequested("filter", self.filter))

    def do_logs_copy(self) -> None:
        """Copy the shown lines."""
        text = "\n".join(self.log_lines[number] for number in self._shown)
        self.post_message(CopyRequested(text, f"{len(self._shown)} lines of the log"))

    def find(self, text: str) -> bool:
        """Go to the next older line that contains a text, from the newest; wraps around.

        Returns: whether there is one.
        """
        if one_line(text) != self.search_text:
            self.search_text, self.current = one_line(text), None
        self.refresh()
        wanted = self.search_text.lower()
        matches = [n for n in self._shown if wanted in self.log_lines[n].lower()]
        if not wanted or not matches:
            self.current = None
            return False
        before = [n for n in matches if self.current is None or n < self.current]
        self.current = (before or matches)[-1]
        self._show_line(bisect.bisect_left(self._shown, self.current))
        return True

    def _show_line(self, row: int) -> None:
        top, height = self.scroll_offset.y, self.scrollable_content_region.height
        if not top <= row < top + height:
            self.following = False
            self.scroll_to(y=max(row - height // 2, 0), force=True)


class LogsPane(Vertical):
    """The log of the process that was chosen, and how many lines arrived out of sight."""

    def compose(self) -> ComposeResult:
        """Lay out the pane."""
        yield LogView()
        yield UnreadBar("lines")

    def on_mount(self) -> None:
        """Show the empty pane."""
        titled(self, "logs")
        self.watch(self.view, "following", self._count)

    @property
    def view(self) -> LogView:
        """The lines."""
        return self.query_one(LogView)

    def sync(self, lines: LogLines) -> None:
        """Show a log as it is now."""
        self.view.sync(lines)
        self._count()

    def _count(self) -> None:
        view, lines = self.view, self.view.log_lines
        unread = self.query_one(UnreadBar)
        unread.reset() if view.following else unread.add(view.num_unread - unread.count)
        parts = [lines.process or "choose a process", f"{len(lines)} lines"]
        parts += [f"{lines.num_dropped} older left out"] if lines.num_dropped else []
        parts += [f"{view.num_shown} with “{view.filter}”"] if view.filter else []
        titled(self, "logs", " · ".join(parts) if lines.process else parts[0])
