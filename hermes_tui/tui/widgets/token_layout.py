"""Lays tokens out in lines for the token view; draws nothing itself.

A bounded buffer: when it is full the oldest tokens are dropped, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, chop_cells

from hermes_tui.core.models import CompletionRow, EpisodeDetail, Token
from hermes_tui.core.reasons import CONTINUATION, reason_text
from hermes_tui.core.recorded_turns import goes_on
from hermes_tui.core.sanitize import visible

CAPACITY = 20_000
"""Most tokens that a view keeps: about 60 screens of a large terminal."""

LEVEL_BOUNDS = (0.8, 0.4, 0.15, 0.04)
"""Each probability that a token is below makes it one level more surprising."""

SURPRISING = 3
"""Least level of an unlikely token: a probability below 0.15."""

_SPARE_FRAC = 0.1
"""Share of the capacity to drop when it is full, so that dropping is rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A rule between tokens that do not follow each other."""

    label: str
    """The reason, as shown."""
    differs: bool = False
    """True if the token after it is the first that differs from the earlier recording."""


Item = Token | Break


@dataclass(slots=True, kw_only=True)
class Run:
    """A text of one token on one line."""

    index: int
    """The token's index in the buffer."""
    text: str
    """Its visible text, or the part of it on this line."""
    column: int
    """Its first cell."""
    width: int
    """Its width in cells."""


@dataclass(slots=True, kw_only=True)
class Line:
    """One line of text."""

    runs: list[Run] = field(default_factory=list)
    """Its tokens, left to right."""
    width: int = 0
    """Cells in use."""
    sampled: bool = False
    """True if any of its tokens was sampled."""
    label: str = ""
    """Label of a rule; empty for a line of tokens."""
    closed: bool = False
    """True if a newline or a rule ended it."""


class TokenLayout:
    """Lays tokens out at a width, and finds them by row and column.

    Args:
        width: cells per line, at least 1.
        capacity: tokens to keep.
    """

    def __init__(self, width: int = 40, capacity: int = CAPACITY) -> None:
        self.width = max(width, 1)
        self.capacity = capacity
        self.bars = True
        """True if lines with sampled tokens have a row of bars beneath them."""
        self.items: list[Item] = []
        self.lines: list[Line] = []
        self.rows: list[tuple[int, bool]] = []
        """For each screen row the index of its line, and True if it is the row of bars."""
        self.num_dropped = 0
        """Items that were dropped because the buffer was full."""
        self.num_sampled = self.num_prompt = self.num_breaks = 0
        """How many items are sampled tokens, prompt tokens and breaks."""

    def clear(self) -> None:
        """Forget everything."""
        self.num_dropped = 0
        self._begin([])

    def _begin(self, items: list[Item]) -> None:
        """Start again with these items."""
        self.items = items
        self.num_sampled = self.num_prompt = self.num_breaks = 0
        for item in items:
            self._count(item, 1)
        self._lay_out_again()

    def _count(self, item: Item, by: int) -> None:
        if isinstance(item, Break):
            self.num_breaks += by
        elif item.sampled:
            self.num_sampled += by
        else:
            self.num_prompt += by

    def extend(self, items: Iterable[Item]) -> int:
        """Append items; return how many were dropped at the front."""
        for item in items:
            self.items.append(item)
            self._count(item, 1)
            self._append(len(self.items) - 1)
        excess = len(self.items) - self.capacity
        if excess <= 0:
            return 0
        excess += int(self.capacity * _SPARE_FRAC)
        for item in self.items[:excess]:
            self._count(item, -1)
        del self.items[:excess]
        self.num_dropped += excess
        self._drop_from_layout(excess)
        return excess

    def replace(self, items: Sequence[Item]) -> None:
        """Replace the items; if they only continue the old ones, only the rest is laid out."""
        if len(items) > self.capacity:  # leaves room for the next tokens
            items = items[int(self.capacity * _SPARE_FRAC) - self.capacity :]
        old = self.items
        if len(old) <= len(items) and all(
            _same_shape(a, b) for a, b in zip(old, items, strict=False)
        ):
            known = len(old)
            self.items[:] = items[:known]
            self.extend(items[known:])
            return
        self._begin(list(items))

    def resize(self, width: int) -> None:
        """Lay everything out at another width."""
        if width != self.width and width > 0:
            self.width = width
            self._lay_out_again()

    def show_bars(self, bars: bool) -> None:
        """Show or hide the rows of bars."""
        self.bars = bars
        self._lay_out_again()

    def row_of(self, index: int) -> int:
        """Return the screen row on which an item begins; 0 when there is none."""
        low, high = 0, len(self.lines) - 1
        while low < high:  # lines are in the order of their first items
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._first(middle) <= index else (low, middle - 1)
        while low > 0 and self._first(low) == index and self._holds(low - 1, index):
            low -= 1
        return self._row_of_line(low)

    def index_at(self, row: int, column: int) -> int | None:
        """Return the token at a screen position, the last one before it, or None."""
        if not 0 <= row < len(self.rows):
            return None
        runs = self.lines[self.rows[row][0]].runs
        before = [run.index for run in runs if run.column <= column]
        return before[-1] if before else (runs[0].index if runs else None)

    def step(self, index: int, by: int) -> int:
        """Return the index of the token ``by`` tokens away; rules are stepped over."""
        direction = 1 if by > 0 else -1
        position = index
        while by:
            nxt = position + direction
            while 0 <= nxt < len(self.items) and isinstance(self.items[nxt], Break):
                nxt += direction
            if not 0 <= nxt < len(self.items):
                break
            position, by = nxt, by - direction
        return position

    def find(self, text: str, after: int) -> int | None:
        """Return the next token after an index whose text, with what follows, begins to match.

        The search is over the whole text, so that a word of several tokens is found; it wraps.
        """
        starts, whole = [], ""
        for item in self.items:
            starts.append(len(whole))
            whole += item.text if isinstance(item, Token) else "\0"
        if not text or not starts:
            return None
        whole, text = whole.casefold(), text.casefold()
        begin = starts[after + 1] if after + 1 < len(starts) else 0
        hit = whole.find(text, begin)
        hit = whole.find(text) if hit < 0 else hit
        if hit < 0:
            return None
        return max(i for i, start in enumerate(starts) if start <= hit)

    def surprise(self, after: int, by: int = 1) -> int | None:
        """Return the next sampled token that was unlikely, or None; the search wraps.

        Args:
            after: where to begin.
            by: 1 searches onwards, -1 backwards.
        """
        size = len(self.items)
        for distance in range(1, size + 1):
            index = (after + by * distance) % size
            item = self.items[index]
            if isinstance(item, Token) and level(item) >= SURPRISING:
                return index
        return None

    def differs(self, index: int) -> bool:
        """Return whether a token is the first that differs from what was recorded before."""
        before = self.items[index - 1] if index else None
        return isinstance(before, Break) and before.differs

    # Layout --------------------------------------------------------------------------------

    def _drop_from_layout(self, excess: int) -> None:
        """Drop the first items from the layout; lay out again only up to the next newline.

        Lines after a newline stay as they are, whatever comes before them.
        """
        first = next(
            (
                number
                for number in range(1, len(self.lines))
                if self.lines[number - 1].closed and self._begins_item(number, excess)
            ),
            None,
        )
        if first is None:
            self._lay_out_again()
            return
        kept, shown = self.lines[first:], self.rows[self._row_of_line(first) :]
        begin = kept[0].runs[0].index - excess
        self.lines, self.rows = [], []
        for index in range(begin):
            self._append(index)
        by = len(self.lines) - first
        self.rows += [(line + by, bars) for line, bars in shown]
        for line in kept:
            for run in line.runs:
                run.index -= excess
        self.lines += kept

    def _begins_item(self, line: int, least: int) -> bool:
        """True if a line starts with the start of an item whose index is at least ``least``."""
        runs = self.lines[line].runs
        return bool(runs) and runs[0].index >= least and not self._holds(line - 1, runs[0].index)

    def _lay_out_again(self) -> None:
        self.lines, self.rows = [], []
        for index in range(len(self.items)):
            self._append(index)

    def _append(self, index: int) -> None:
        item = self.items[index]
        if isinstance(item, Break):
            self._new_line().label = item.label or " "
            self.lines[-1].closed = True
            return
        if not self.lines:
            self._new_line()
        for text, newline in _split_lines(item.text):
            self._append_text(index, text, item.sampled)
            self.lines[-1].closed = self.lines[-1].closed or newline

    def _append_text(self, index: int, text: str, sampled: bool) -> None:
        width = cell_len(text)
        line = self.lines[-1]
        if line.closed or (line.runs and line.width + width > self.width):
            line = self._new_line()
        if width > self.width:
            *parts, text = chop_cells(text, self.width)
            for part in parts:
                self._put(line, index, part, sampled)
                line = self._new_line()
            width = cell_len(text)
        self._put(line, index, text, sampled)

    def _put(self, line: Line, index: int, text: str, sampled: bool) -> None:
        width = cell_len(text)
        line.runs.append(Run(index=index, text=text, column=line.width, width=width))
        line.width += width
        if sampled and not line.sampled:
            line.sampled = True
            if self.bars:
                self.rows.append((len(self.lines) - 1, True))

    def _new_line(self) -> Line:
        self.lines.append(Line())
        self.rows.append((len(self.lines) - 1, False))
        return self.lines[-1]

    def _first(self, line: int) -> int:
        runs = self.lines[line].runs
        if runs:
            return runs[0].index
        return self._first(line - 1) + 1 if line else 0

    def _holds(self, line: int, index: int) -> bool:
        return any(run.index == index for run in self.lines[line].runs)

    def _row_of_line(self, line: int) -> int:
        low, high = 0, len(self.rows)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.rows[middle][0] < line else (low, middle)
        return low


def _same_shape(old: Item, new: Item) -> bool:
    """True if two items take the same cells."""
    if isinstance(old, Token) and isinstance(new, Token):
        return old.text == new.text and old.sampled == new.sampled
    return old == new


def _split_lines(text: str) -> list[tuple[str, bool]]:
    """Return a token's visible text cut after each newline, with whether one ends it."""
    parts = text.split("\n")
    cut = [(visible(part + "\n"), True) for part in parts[:-1]]
    return [*cut, (visible(parts[-1]), False)] if parts[-1] or not cut else cut


def level(token: Token) -> int:
    """Return how surprising a token was: 0 expected … 4 very surprising; -1 for prompt tokens."""
    if token.logprob is None:
        return -1
    if math.isnan(token.logprob):
        return 4
    probability = math.exp(min(token.logprob, 0.0))
    return sum(probability < bound for bound in LEVEL_BOUNDS)


def bar(token: Token) -> str:
    """Return a token's probability as one of eight bars; a space for prompt tokens."""
    if token.logprob is None:
        return " "
    if math.isnan(token.logprob):
        return "?"
    probability = math.exp(min(token.logprob, 0.0))
    if probability < LEVEL_BOUNDS[-1]:
        return "·"  # told from a low bar without colour
    return "▁▂▃▄▅▆▇█"[min(int(probability * 8), 7)]


def trajectory(detail: EpisodeDetail, live: dict[str, list[Token]]) -> list[Item]:
    """Return an episode as one sequence: what each completion added to the one before.

    Args:
        detail: the episode as it was recorded.
        live: live tokens by completion id; they are shown until the recorded ones are as many.
    """
    items: list[Item] = []
    length = 0
    for number, completion in enumerate(detail.completions):
        shared = min(completion.shared_tokens, len(completion.prompt)) if number else 0
        before = detail.completions[number - 1] if number else None
        label = _break_label(completion, before, shared, length) if before else ""
        if label:
            differs = completion.kind == "turn" and shared < length
            items.append(Break(label=label, differs=differs))
        items.extend(completion.prompt[shared:])
        arrived = live.get(completion.completion_id, [])
        tokens = completion.tokens if len(completion.tokens) >= len(arrived) else arrived
        items.extend(tokens)
        if completion.kind == "turn":
            length = len(completion.prompt) + len(tokens)
    return items


def _break_label(completion: CompletionRow, before: CompletionRow, shared: int, length: int) -> str:
    if completion.kind == "choice":
        return f"{reason_text('other_choice')}: trained only with a score of its own"
    if completion.kind != "turn":
        was_cut = before.finish_reason not in ("stop", "tool_calls")
        is_continuation = was_cut and goes_on(completion, before)
        what = CONTINUATION if is_continuation else reason_text("aux_call")
        return f"{what}: never trained"
    if shared < length:
        why = f": {completion.difference}" if completion.difference else ""
        return f"new segment after {shared} tokens{why}"
    return ""
