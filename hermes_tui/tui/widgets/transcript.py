"""A scrolled column of turns that follows the newest text, and keeps only near text laid out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.reactive import var
from textual.screen import Screen

from hermes_tui.tui.widgets.base import ImmediateScroll
from hermes_tui.tui.widgets.markdown_reply import ReplyChunk
from hermes_tui.tui.widgets.turn_view import TurnView

NEAR = 0.5
"""Chunks are awake within this distance of the visible part, in heights of the view."""

FAR = 1.0
"""Chunks sleep beyond this distance, in heights of the view."""


class TranscriptScroll(ImmediateScroll, VerticalScroll, can_focus=True):
    """Turns in a column. Follows the end until the person scrolls up.

    Chunks that are far from the visible part sleep: Textual (8.2.8) lays out every mounted widget
    for each paint, in sight or not.
    """

    virtual_size = var(
        Size(0, 0)
    )  # Textual's own (8.2.8) lays out the whole screen whenever it grows

    following: var[bool] = var(True)
    """True while the view follows the newest text."""

    has_later_turns: bool = False
    """True while newer turns are not mounted."""

    def __init__(self, *, id: str, classes: str = "") -> None:
        super().__init__(id=id, classes=classes)
        self._mounting = asyncio.Lock()
        self._settling = False
        self._holding = False
        self._held: tuple[TurnView | ReplyChunk, int] | None = None

    def on_mount(self) -> None:
        """Be called after each layout."""
        self.screen.screen_layout_refresh_signal.subscribe(self, self._stay, immediate=True)

    def views(self) -> Iterable[TurnView]:
        """Return the mounted turns, oldest first."""
        return self.query_children(TurnView)

    def follow(self) -> None:
        """Scroll to the newest text and follow it."""
        self.following = True
        self._hold_end()

    def _hold_end(self) -> None:
        """Anchor the view to its end while following: a layout then scrolls in the same paint.

        Textual's anchor alone would not do: once released it does not come back while text streams
        (https://github.com/Textualize/textual/issues/6677).
        """
        self._holding = True
        self.anchor(self.following and self.max_scroll_y > 0)
        if self.scroll_y < 0:  # an anchored view (Textual 8.2.8) moves short content to its bottom
            self.scroll_y = 0
        self._holding = False

    def on_resize(self) -> None:
        """Stay at the end while following."""
        self._hold_end()
        self.settle()

    def watch_virtual_size(self) -> None:
        """Stay at the end while following."""
        self._hold_end()

    def watch_following(self) -> None:
        """Let go of the end, or hold it."""
        self._hold_end()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stop following when the person scrolls up; follow again at the end."""
        super().watch_scroll_y(old_value, new_value)
        if not self._holding:  # the person scrolled
            if new_value >= self.max_scroll_y and not self.has_later_turns:
                self.following = True
            elif new_value < old_value:
                self.following = False
            self._hold(self.size.height if 0 < old_value - new_value <= self.size.height else 1)
        self.settle()

    def action_scroll_home(self) -> None:
        """Go to the first of what is mounted."""
        super().action_scroll_home()
        self._hold(1)

    def _hold(self, edge: int) -> None:
        """Remember a visible turn or chunk and its row, to keep it there through layouts.

        Args:
            edge: row of the view; the last turn or chunk that begins above it is held. Someone who
                scrolls up holds the foot: what is there was seen before and is awake.
        """
        self._held = None
        if self.following:
            return
        widgets: list[TurnView | ReplyChunk] = []
        for view in self.views():
            widgets += [view, *view.chunks]
        for widget in widgets:
            if widget.region and self._row_of(widget) < max(self.scroll_y, 0) + edge:
                self._held = widget, self._row_of(widget)

    def _stay(self, _: Screen[object]) -> None:
        """Keep the held turn or chunk in its row after a layout, and wake what came in sight.

        A layout that scrolls an anchored view calls no scroll watcher (Textual 8.2.8), so sleeping
        chunks may have come in sight unnoticed.
        """
        held, row = self._held or (None, 0)
        if held and held.is_attached and not self.following:
            moved = self._row_of(held) - row
            if moved and held.region:
                self._holding = True
                self.scroll_to(y=self.scroll_y + moved)
                self._holding = False
                self._held = held, row + moved
        if any(reply.asleep and self._is_within(NEAR, reply) for reply in self._chunks()):
            self.settle()

    def _chunks(self) -> list[ReplyChunk]:
        return [reply for view in self.views() for reply in view.chunks]

    def _row_of(self, widget: TurnView | ReplyChunk) -> int:
        """Return the row of the mounted conversation at which a turn or a chunk begins."""
        row = widget.virtual_region.y
        return row + widget.parent.virtual_region.y if isinstance(widget.parent, TurnView) else row

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Change what is mounted, one change at a time."""
        async with self._mounting:
            yield
        self.settle()

    @property
    def is_changing(self) -> bool:
        """True while a change of what is mounted is under way."""
        return self._mounting.locked()

    def settle(self) -> None:
        """Put far chunks to sleep and wake near ones after the next layout."""
        if not self._settling:
            self._settling = True
            self.call_after_refresh(self.run_worker, self._settle, group="settle")

    async def _settle(self) -> None:
        self._settling = False
        if not self.region:
            return  # nothing is seen
        async with self._mounting:
            near = [r for r in self._chunks() if r.asleep and self._is_within(NEAR, r)]
            for reply in near:
                await reply.wake()
            if near:
                self.settle()  # their real heights may differ from the guess
            if not self.screen.selections:  # sleeping text can't be copied
                for view in self.views():
                    await self._let_sleep(view)

    async def _let_sleep(self, view: TurnView) -> None:
        before: ReplyChunk | None = None
        for reply in view.chunks:
            if not self._is_within(FAR, reply):
                await reply.sleep()
            if before and before.can_merge(reply):
                await before.merge(reply)
            else:
                before = reply

    def _is_within(self, heights: float, reply: ReplyChunk) -> bool:
        """True when a chunk is at most so many heights of the view away from it."""
        top, height = self._row_of(reply), self.size.height
        rows = max(self.scroll_y - top - reply.size.height, top - self.scroll_y - height)
        return not reply.region or rows <= heights * height
