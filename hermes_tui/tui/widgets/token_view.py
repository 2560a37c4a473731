"""The token view: the prompt's tokens and the sampled ones, coloured by probability, live."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from hermes_tui.core.models import EpisodeDetail, Token
from hermes_tui.core.reasons import reason_text
from hermes_tui.core.sanitize import one_line, shorten, visible
from hermes_tui.core.units import signed
from hermes_tui.tui.keys import bindings
from hermes_tui.tui.messages import CopyRequested, CursorMoved, ExportRequested, FindRequested
from hermes_tui.tui.widgets.base import ActionOwner, ImmediateScroll, titled
from hermes_tui.tui.widgets.formatting import change, literal, number
from hermes_tui.tui.widgets.token_layout import Break, Item, TokenLayout, bar, level, trajectory
from hermes_tui.tui.widgets.unread_bar import UnreadBar

LEVELS = ("level0", "level1", "level2", "level3", "level4")
"""Component classes from an expected token to a very surprising one."""

_BARS = Style(dim=True)

FOLLOWING = -1
"""Value of the cursor while the view follows the newest token."""


class TokenView(ActionOwner, ImmediateScroll, ScrollView, can_focus=True):
    """Draws a trajectory line by line, without a widget per token.

    Follows the newest token until the person moves the cursor or scrolls up; ``end`` follows again.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {*(f"tokens--{name}" for name in LEVELS)} | {
        "tokens--prompt",
        "tokens--cursor",
        "tokens--rule",
        "tokens--differs",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("tokens"),
        Binding("up", "line(-1)", show=False),
        Binding("down", "line(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "first", show=False),
    ]

    def __init__(self, lines: TokenLayout | None = None) -> None:
        super().__init__(id="tokens-view")
        self.content = lines or TokenLayout()
        self.cursor = FOLLOWING
        self.episode_id = ""
        self.num_unread = 0
        """Tokens that arrived out of sight."""
        self._live: dict[str, list[Token]] = {}
        self._detail: EpisodeDetail | None = None
        self._last_find = ""

    # What is shown -------------------------------------------------------------------------

    @property
    def following(self) -> bool:
        """True while the view follows the newest token."""
        return self.cursor == FOLLOWING

    @property
    def current(self) -> Token | None:
        """The token under the cursor, else the newest; None when there is none."""
        items = self.content.items
        item = items[self.cursor] if items and -1 <= self.cursor < len(items) else None
        return item if isinstance(item, Token) else None

    @property
    def dropped(self) -> str:
        """Why the episode will never be trained; empty while it may be."""
        row = self._detail.row if self._detail else None
        return reason_text(row.dropped_reason) if row and row.state == "dropped" else ""

    def show(self, detail: EpisodeDetail) -> None:
        """Show a recorded episode, and the live tokens that are not recorded yet."""
        if detail.row.episode_id != self.episode_id:
            self.clear(detail.row.episode_id)
        self._detail = detail
        for completion in detail.completions:
            if completion.finish_reason:
                self._live.pop(completion.completion_id, None)
        top = self._top_item()
        self.content.replace(trajectory(detail, self._live))
        self._content_changed(top)

    def clear(self, episode_id: str = "") -> None:
        """Show nothing, and wait for tokens of an episode."""
        self.episode_id = episode_id
        self._detail = None
        self._live.clear()
        self.content.clear()
        self.cursor = FOLLOWING
        self._content_changed(None)

    def extend(self, completion_id: str, tokens: Sequence[Token]) -> None:
        """Append tokens that were just sampled."""
        self._live.setdefault(completion_id, []).extend(tokens)
        top = self._top_item()
        dropped = self.content.extend(tokens)
        if dropped and not self.following:
            self.cursor = max(self.cursor - dropped, 0)
            top = (max(top[0] - dropped, 0), top[1]) if top else None
        if not self.following:
            self.num_unread += len(tokens)
        self._content_changed(top if dropped else None, moved=bool(dropped))

    def _top_item(self) -> tuple[int, int] | None:
        """Return the item at the top edge, and how many of its rows are above the edge."""
        row = self.scroll_offset.y
        index = self.content.index_at(row, 0)
        return None if index is None else (index, row - self.content.row_of(index))

    def _content_changed(self, top: tuple[int, int] | None, *, moved: bool = True) -> None:
        self.virtual_size = Size(self.content.width, len(self.content.rows))
        if self.following:
            self.num_unread = 0
            self.scroll_to(y=len(self.content.rows), force=True)
        elif top and moved:
            self.scroll_to(y=self.content.row_of(top[0]) + top[1], force=True)
        self.refresh()
        self.post_message(CursorMoved(self.cursor))

    def on_resize(self, event: events.Resize) -> None:
        """Lay the tokens out at the new width; the top one stays at the top."""
        top = self._top_item()
        self.content.resize(max(self.scrollable_content_region.width, 1))
        self._content_changed(top)

    # Drawing -------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Draw one row: the text of a line, or the bars beneath it."""
        width = self.scrollable_content_region.width
        base = self.rich_style
        row = y + self.scroll_offset.y
        if not 0 <= row < len(self.content.rows):
            return Strip.blank(width, base)
        number_, is_bars = self.content.rows[row]
        line = self.content.lines[number_]
        if line.label:
            label = shorten(one_line(line.label), max(width - 4, 0))
            segments = [Segment(f"── {label} ".ljust(width, "─"), self._style("rule"))]
        else:
            segments = [
                Segment(
                    self._bar(run.index, run.width) if is_bars else run.text,
                    self._style_of(run.index, bars=is_bars),
                )
                for run in line.runs
            ]
        strip = Strip(segments)
        return strip.crop_extend(0, width, base).apply_style(base)

    def _bar(self, index: int, width: int) -> str:
        item = self.content.items[index]
        return (bar(item) if isinstance(item, Token) else " ").ljust(width)[:width]

    def _style_of(self, index: int, *, bars: bool) -> Style:
        item = self.content.items[index]
        grade = level(item) if isinstance(item, Token) else -1
        name = "prompt" if grade < 0 else LEVELS[grade]
        style = self._style(name)
        if bars:
            return style + _BARS
        if self.content.differs(index):
            style += self._style("differs")
        if index == self.cursor and self.has_focus:
            return style + self._style("cursor")
        return style

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"tokens--{name}", partial=True)

    # Moving --------------------------------------------------------------------------------

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stop following when the person scrolls up; follow again at the end."""
        super().watch_scroll_y(old_value, new_value)
        at_end = round(new_value) >= self.max_scroll_y
        if self.following and new_value < old_value and not at_end and self.content.items:
            self.move_cursor(self._last_visible(), follow=False)
        elif at_end and self.num_unread:
            self.num_unread = 0
            self.post_message(CursorMoved(self.cursor))

    def _last_visible(self) -> int:
        row = self.scroll_offset.y + self.scrollable_content_region.height - 1
        index = self.content.index_at(min(row, len(self.content.rows) - 1), self.content.width)
        return index or 0

    def move_cursor(self, index: int, *, follow: bool = True) -> None:
        """Put the cursor on a token; ``follow`` scrolls it into view."""
        items = self.content.items
        if not items:
            return
        self.cursor = min(max(index, 0), len(items) - 1)
        if follow:
            self._bring_into_view(self.content.row_of(self.cursor))
        self.refresh()
        self.post_message(CursorMoved(self.cursor))

    def _bring_into_view(self, row: int) -> None:
        height = self.scrollable_content_region.height
        rows = 2 if self.content.bars else 1
        top = self.scroll_offset.y
        if row < top:
            self.scroll_to(y=row, force=True)
        elif row + rows > top + height:
            self.scroll_to(y=row + rows - height, force=True)

    def _from_cursor(self) -> int:
        return len(self.content.items) - 1 if self.following else self.cursor

    def action_line(self, by: int) -> None:
        """Move the cursor to the line above or below, at the same column."""
        index = self._from_cursor()
        if not self.content.items:
            return
        row = self.content.row_of(index)
        line, _ = self.content.rows[row]
        column = next((r.column for r in self.content.lines[line].runs if r.index == index), 0)
        target = min(max(line + by, 0), len(self.content.lines) - 1)
        rows = self.content.rows
        to = next((r for r in range(len(rows)) if rows[r][0] == target), 0)
        found = self.content.index_at(to, column)
        if found is not None:
            self.move_cursor(found)

    def action_page(self, by: int) -> None:
        """Move the cursor a page up or down."""
        if not self.content.items:
            return
        height = max(self.scrollable_content_region.height - 1, 1)
        row = self.content.row_of(self._from_cursor()) + by * height
        found = self.content.index_at(min(max(row, 0), len(self.content.rows) - 1), 0)
        self.move_cursor(found or 0)

    def action_first(self) -> None:
        """Move the cursor to the first token."""
        self.move_cursor(0)

    def do_tokens_left(self) -> None:
        """Move to the token before."""
        self.move_cursor(self.content.step(self._from_cursor(), -1))

    def do_tokens_right(self) -> None:
        """Move to the token after."""
        self.move_cursor(self.content.step(self._from_cursor(), 1))

    def do_tokens_follow(self) -> None:
        """Follow the newest token."""
        self.cursor = FOLLOWING
        self._content_changed(None)

    def do_tokens_bars(self) -> None:
        """Show or hide the bars."""
        top = self._top_item()
        self.content.show_bars(not self.content.bars)
        self._content_changed(top)

    def do_tokens_find(self) -> None:
        """Ask what to find."""
        self.post_message(FindRequested(self._last_find, "tokens"))

    def find(self, text: str) -> bool:
        """Go to the next match, which may span tokens; return whether there is one."""
        self._last_find = text
        found = self.content.find(text, -1 if self.following else self.cursor)
        if found is not None:
            self.move_cursor(found)
        return found is not None

    def do_tokens_surprise(self) -> None:
        """Go to the next unlikely token."""
        self._to_surprise(1)

    def do_tokens_surprise_before(self) -> None:
        """Go to the unlikely token before."""
        self._to_surprise(-1)

    def _to_surprise(self, by: int) -> None:
        begin = -1 if self.following and by > 0 else self._from_cursor()
        found = self.content.surprise(begin, by)
        if found is None:
            self.notify("no token here was unlikely")
        else:
            self.move_cursor(found)

    def do_tokens_export(self) -> None:
        """Write the episode to a file."""
        self.post_message(ExportRequested(self.episode_id))

    def do_tokens_copy(self) -> None:
        """Copy the tokens as tab-separated rows."""
        self.post_message(CopyRequested(table(self.content.items), "the tokens as a table"))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on the token under the mouse."""
        offset = event.get_content_offset(self)
        if offset is not None:
            found = self.content.index_at(offset.y + self.scroll_offset.y, offset.x)
            if found is not None:
                self.move_cursor(found)


def table(items: Sequence[Item]) -> str:
    """Return tokens as tab-separated rows under a header; texts as Python literals."""
    rows = ["\t".join(_COLUMNS)]
    segment = 1
    for item in items:
        if isinstance(item, Break):
            segment += 1
            continue
        cells = [str(segment), str(item.token_id), repr(item.text)]
        cells += [
            _cell(item.logprob),
            "" if item.policy_version is None else f"{item.policy_version}",
        ]
        cells += [_cell(item.advantage), _cell(item.logprob_before), _cell(item.logprob_after)]
        rows.append("\t".join(cells))
    return "\n".join(rows) + "\n"


_COLUMNS = (
    "segment", "token_id", "text", "logprob", "policy_version", "advantage", "logprob_before",
    "logprob_after",
)  # fmt: skip


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


class Legend(Static):
    """The legend of colours and bars."""

    def on_mount(self) -> None:
        """Write it once; theme colours adapt by themselves."""
        styles = ("", "$text-success", "$text-accent", "$text-warning", "bold $text-error")
        bounds = ("≥.8", "≥.4", "≥.15", "≥.04", "<.04")
        parts: list[str | tuple[str, str]] = [("p  ", "dim")]
        for style, mark, bound in zip(styles, "█▅▃▁·", bounds, strict=True):
            parts += [(f"{mark} {bound}", style), "  "]
        self.update(Content.assemble(*parts))


class TokenDetail(Static):
    """Details of the token under the cursor."""

    nothing = "tokens appear here as the model speaks"
    """What it says while there is no token."""

    def show(self, token: Token | None, *, differs: bool = False, dropped: str = "") -> None:
        """Show a token, or the empty text for None.

        Args:
            token: the token.
            differs: True for the first token that differs from the earlier recording.
            dropped: why its episode will never be trained; empty while it may be.
        """
        if token is None:
            self.update(Content.styled(self.nothing, "dim"))
            return
        training = f"not trained: {dropped}" if dropped else "not trained yet"
        content = _describe(token, self.content_size.width, training)
        if differs:
            content += Content.styled("\nthe first that differs from what was recorded", "dim")
        self.update(content)


def _describe(token: Token, width: int, training: str) -> Content:
    head = Content.assemble(
        _label("token"), literal(f"“{visible(token.text)}”", "bold"), ("  id ", "dim"),
        str(token.token_id),
    )  # fmt: skip
    if token.logprob is None:
        return Content("\n").join(
            [head, Content.assemble(_label(""), ("from the prompt, not sampled", "dim"))]
        )
    p = math.exp(token.logprob) if token.logprob == token.logprob else math.nan
    version = "–" if token.policy_version is None else f"v{token.policy_version}"
    lines = [
        head,
        Content.assemble(
            _label("logprob"), signed(token.logprob), ("  p ", "dim"), f"{p:.3f}",
            ("  by ", "dim"), version,
            ("  adv ", "dim"), signed(token.advantage),
        ),
        _change(token, training),
        *_others(token, width),
    ]  # fmt: skip
    return Content("\n").join(lines)


def _label(word: str) -> tuple[str, str]:
    return f"{word:<8}", "dim"


def _change(token: Token, training: str) -> Content:
    if token.logprob_before is None or token.logprob_after is None:
        return Content.assemble(_label("step"), literal(training, "dim"))
    moved = change(token.logprob_before, token.logprob_after)
    return Content.assemble(_label("step"), moved)


def _others(token: Token, width: int) -> list[Content]:
    """Return the likeliest alternatives, as many as fit whole; at least the first."""
    if not token.alternatives:
        return []
    others = Content.assemble(_label("others"))
    for index, (text, logprob) in enumerate(token.alternatives):
        gap = "  " if index else ""
        one = literal(f"{gap}“{visible(text)}” {number(math.exp(logprob), 2)}")
        if index and others.cell_length + one.cell_length > width:
            break
        others += one
    return [others]


class TokensPane(Vertical):
    """The token view, how much arrived out of sight, and the token under the cursor.

    Args:
        training: whether the stack has a trainer: else no tokens are recorded.
    """

    def __init__(self, *, training: bool) -> None:
        super().__init__(id="tokens")
        self._training = training

    def compose(self) -> ComposeResult:
        """Lay out the pane."""
        yield TokenView()
        yield UnreadBar("tokens")
        yield TokenDetail(id="token-detail")
        yield Legend(id="token-legend")

    def on_mount(self) -> None:
        """Show an empty pane."""
        titled(self, "tokens")
        detail = self.query_one(TokenDetail)
        if not self._training:
            detail.nothing = "training is off: no tokens are recorded"
        detail.show(None)

    @property
    def view(self) -> TokenView:
        """The token view itself."""
        return self.query_one(TokenView)

    def on_cursor_moved(self, message: CursorMoved) -> None:
        """Update the token's details and the count of unread tokens."""
        message.stop()
        view = self.view
        differs = not view.following and view.content.differs(view.cursor)
        self.query_one(TokenDetail).show(view.current, differs=differs, dropped=view.dropped)
        unread = self.query_one(UnreadBar)
        if view.num_unread:
            unread.add(view.num_unread - unread.count)
        else:
            unread.reset()
        titled(self, "tokens", self._summary())

    def _summary(self) -> str:
        content = self.view.content
        parts = [f"{content.num_breaks + 1} segments"] if content.num_breaks else []
        if content.num_prompt or content.num_sampled:
            parts.append(f"{content.num_prompt:,} prompt + {content.num_sampled:,} sampled")
        parts += [f"{content.num_dropped} older left out"] if content.num_dropped else []
        return " · ".join(parts)
