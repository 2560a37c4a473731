"""A column of turns that stays with the newest words, and draws only what is near."""

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
"""Replies are awake within this distance, in heights of the view."""

FAR = 1.0
"""Replies sleep beyond this distance, in heights of the view."""


class TranscriptScroll(ImmediateScroll, VerticalScroll, can_focus=True):
    """Turns, one below the other. Stays at the end until the person scrolls up.

    Only replies near to what is seen have their paragraphs: each paint lays out all that there is,
    in sight or not.
    """

    virtual_size = var(Size(0, 0))  # Textual's own has all laid out again when it grows

    following: var[bool] = var(True)
    """Whether the view stays with the newest words."""

    has_later_turns: bool = False
    """Whether the end of what is mounted is not the end of what there is."""

    def __init__(self, *, id: str, classes: str = "") -> None:
        super().__init__(id=id, classes=classes)
        self._mounting = asyncio.Lock()
        self._settling = False
        self._holding = False
        self._held: tuple[TurnView | ReplyChunk, int] | None = None

    def on_mount(self) -> None:
        """Learn of each layout."""
        self.screen.screen_layout_refresh_signal.subscribe(self, self._stay, immediate=True)

    def views(self) -> Iterable[TurnView]:
        """Return what is mounted of the conversation, oldest first."""
        return self.query_children(TurnView)

    def follow(self) -> None:
        """Go to the newest words and stay with them."""
        self.following = True
        self._hold_end()

    def _hold_end(self) -> None:
        """Have each layout also scroll to its end, while following: else it is drawn twice."""
        self._holding = True
        self.anchor(self.following and self.max_scroll_y > 0)
        if self.scroll_y < 0:  # what is shorter than the view sinks in it while anchored
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
        if not self._holding:  # else not the person's doing
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
        """Take note of a turn or reply that is seen, and where it is.

        Args:
            edge: the last one that begins above this row of the view is held. Its foot, for who
                goes up: what is there was seen before, and only what is above it may be asleep.
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
        """Keep what is read where it is, whatever became of what is above it.

        A layout that scrolls to its end tells nobody (Textual 8.2): what came in sight may sleep.
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
        """Return at which row of the whole conversation a turn or a reply begins."""
        row = widget.virtual_region.y
        return row + widget.parent.virtual_region.y if isinstance(widget.parent, TurnView) else row

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Change what is mounted, one at a time."""
        async with self._mounting:
            yield
        self.settle()

    @property
    def is_changing(self) -> bool:
        """Whether someone changes what is mounted."""
        return self._mounting.locked()

    def settle(self) -> None:
        """Have replies sleep or wake, once what changed has been laid out."""
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
                self.settle()  # they may take other room than was guessed
            if not self.screen.selections:  # what sleeps could not be copied
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
        """Return whether a reply is at most so many heights of the view away from it."""
        top, height = self._row_of(reply), self.size.height
        rows = max(self.scroll_y - top - reply.size.height, top - self.scroll_y - height)
        return not reply.region or rows <= heights * height
