"""A tool call or a thought of the agent, folded to one line."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from hermes_tui.core.changes import ThoughtPart, ToolPart
from hermes_tui.core.sanitize import one_line, shorten
from hermes_tui.tui.widgets.formatting import literal

MAX_RESULT_LINES = 200
"""Most lines of a tool's result to draw: a file of 35,000 lines must not stall the screen."""


class FoldedBlock(Vertical):
    """A tool call with its result, or a thought; a click unfolds it."""

    def __init__(self, part: ToolPart | ThoughtPart) -> None:
        super().__init__(classes="folded-block")
        self._part = part
        self.folded = True

    def compose(self) -> ComposeResult:
        """Lay out the heading and the body."""
        yield Static(classes="folded-head")
        body = Static(classes="folded-body")
        body.display = False
        yield body

    def on_mount(self) -> None:
        """Show the first state."""
        self.sync(self._part)

    def sync(self, part: ToolPart | ThoughtPart) -> None:
        """Show the call or the thought as it is now."""
        self._part = part
        if not self.is_mounted:
            return
        head = literal("▸ " if self.folded else "▾ ") + _folded_head(part)
        _update(self.query_one(".folded-head", Static), head)
        if not self.folded:
            _update(self.query_one(".folded-body", Static), _folded_body(part))

    def fold(self, folded: bool) -> None:
        """Hide or show the body."""
        self.folded = folded
        self.query_one(".folded-body").display = not folded
        self.sync(self._part)

    def on_click(self, event: events.Click) -> None:
        """Fold or unfold."""
        event.stop()
        self.fold(not self.folded)


def _dim(text: str) -> Content:
    return Content.styled(text, "dim")


def _update(widget: Static, content: Content) -> None:
    if widget.content != content:  # an update costs a new layout
        widget.update(content)


def _num_lines(text: str) -> int:
    return text.count("\n") + 1 if text else 0


def _folded_head(part: ToolPart | ThoughtPart) -> Content:
    if isinstance(part, ThoughtPart):
        return _dim(f"thought · {_num_lines(part.text)} lines")
    arguments = shorten(one_line(part.arguments), 60)
    outcome = "running" if part.result is None else f"{_num_lines(part.result)} lines"
    return literal(f"{one_line(part.name)} {arguments}") + _dim(f" · {outcome}")


def _folded_body(part: ToolPart | ThoughtPart) -> Content:
    if isinstance(part, ThoughtPart):
        return literal(part.text)
    lines = [literal(part.arguments)]
    if part.result is not None:
        shown = part.result.split("\n", MAX_RESULT_LINES)
        rest = shown.pop() if len(shown) > MAX_RESULT_LINES else ""
        lines += [_dim("answered"), literal("\n".join(shown))]
        lines += [_dim(f"… {_num_lines(rest)} more lines")] if rest else []
    return Content("\n").join(lines)
