"""A tool call or a thought of the agent, folded to a card."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from hermes_tui.core.changes import ThoughtPart, ToolPart
from hermes_tui.core.sanitize import clean, one_line
from hermes_tui.core.tool_cards import ToolCard, tool_card
from hermes_tui.tui.widgets.formatting import PART, literal

MAX_RESULT_LINES = 200
"""Most lines of a tool's result to draw: a file of 35,000 lines must not stall the screen."""

LAST_LINES = 3
"""Lines of a command's output that are shown while it is folded."""

OUTCOMES = {
    "running": ("◌ running", "dim"),
    "waiting": ("◆ waits for you", "bold $text-warning"),
    "done": ("✓", "$text-success"),
    "failed": ("✗ failed", "$text-error"),
    "denied": ("⊘ denied", "$text-warning"),
    "stopped": ("◇ no answer", "dim"),
}
"""Glyph, word and colour of how a call ended; a mere ✓ needs no word."""


class BlockHead(Static):
    """A block's first line; where it is narrow the title is cut, not how the call ended."""

    def __init__(self) -> None:
        super().__init__(classes="folded-head")
        self._title = Content()
        self._end = Content()

    def show(self, title: Content, end: Content) -> None:
        """Show what was called, and how it ended."""
        self._title, self._end = title, end
        self.refresh()

    def render(self) -> Content:
        """Draw it at the current width."""
        room = max(self.content_size.width - self._end.cell_length, 8)
        return self._title.truncate(room, ellipsis=True) + self._end


class FoldedBlock(Vertical):
    """A tool call with its result, or a thought; a click unfolds it."""

    def __init__(self, part: ToolPart | ThoughtPart) -> None:
        super().__init__(classes="folded-block")
        self.part = part
        """What it shows."""
        self.folded = True
        self._over = False
        self._asked = False
        self._drawn: tuple[object, ...] = ()
        """What the drawn state was made from: reading a long result for each token would cost."""

    def compose(self) -> ComposeResult:
        """Lay out the head, and the body below it."""
        yield BlockHead()
        yield Static(classes="folded-body")

    def on_mount(self) -> None:
        """Show the first state."""
        self.sync(self.part, over=self._over, asked=self._asked)

    def sync(
        self, part: ToolPart | ThoughtPart, *, over: bool = False, asked: bool = False
    ) -> None:
        """Show the call or the thought as it is now.

        Args:
            part: the call or the thought.
            over: whether its turn has ended.
            asked: whether the agent waits for a person's answer in its session.
        """
        self.part, self._over, self._asked = part, over, asked
        if not self.is_mounted:
            return
        size = len(part.text) if isinstance(part, ThoughtPart) else part.result is not None
        drawn = (self.folded, size, over, asked)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        if isinstance(part, ThoughtPart):
            head, end = _dim("thought"), _dim(f"{PART}{_lines(part.text)}")
            body = Content() if self.folded else literal(part.text)
        else:
            card = tool_card(part, over=over, asked=asked)
            head, end = _title(card), _end(card, part.seconds)
            body = _last_lines(card) if self.folded else _whole(card)
            self.set_class(card.outcome in ("failed", "denied"), "-bad")
        fold = Content.styled("▸ " if self.folded else "▾ ", "dim")
        self.query_one(BlockHead).show(fold + head, end)
        below = self.query_one(".folded-body", Static)
        below.display = bool(body)
        below.update(body)

    def fold(self, folded: bool) -> None:
        """Hide or show the body."""
        self.folded = folded
        self.sync(self.part, over=self._over, asked=self._asked)

    @property
    def words(self) -> str:
        """What it holds, to be copied: the output, before there is one the call."""
        if isinstance(self.part, ThoughtPart):
            return self.part.text
        card = tool_card(self.part)
        return card.output or card.call or card.title

    def on_click(self, event: events.Click) -> None:
        """Fold or unfold."""
        event.stop()
        self.fold(not self.folded)


def _dim(text: str) -> Content:
    return Content.styled(text, "dim")


def _lines(text: str) -> str:
    num = text.count("\n") + 1 if text else 0
    return f"{num} line{'' if num == 1 else 's'}"


def _title(card: ToolCard) -> Content:
    return Content.assemble((card.sign, "bold"), " ", literal(card.title))


def _end(card: ToolCard, seconds: float | None) -> Content:
    """Return how a call ended, such as ``✓ +2 −1 · 0.3 s``."""
    word, tone = OUTCOMES[card.outcome]
    parts = [card.remark] if card.remark else []
    if card.outcome == "done" and card.output and not (card.remark or card.from_end):
        parts = [_lines(card.output.removesuffix("\n"))]
    parts += [f"{seconds:.1f} s"] if seconds is not None else []
    gap = " " if word == "✓" else PART
    return Content("  ") + literal(gap.join(filter(None, (word, PART.join(parts)))), tone)


def _last_lines(card: ToolCard) -> Content:
    """Return the end of a command's output, and of one that failed the reason."""
    if card.outcome in ("failed", "denied") or card.from_end:
        lines = [row for row in clean(card.output).rstrip().split("\n") if row.strip()]
        shown = lines[:1] if card.outcome == "denied" else lines[-LAST_LINES:]
        return literal("\n".join(shown))
    return Content()


def _whole(card: ToolCard) -> Content:
    """Return the call in full, and below it what it answered."""
    blocks = [literal(card.call)] if one_line(card.call) != card.title else []
    if card.output:
        lines = card.output.rstrip("\n").split("\n")
        more = len(lines) - MAX_RESULT_LINES
        shown = lines[-MAX_RESULT_LINES:] if card.from_end else lines[:MAX_RESULT_LINES]
        answer = [literal("\n".join(shown))]
        if more > 0:
            note = _dim(f"… {more} {'lines before' if card.from_end else 'more lines'}")
            answer.insert(0 if card.from_end else 1, note)
        blocks.append(Content("\n").join(answer))
    return Content("\n").join(blocks)
