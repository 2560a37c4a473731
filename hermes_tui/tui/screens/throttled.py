"""A screen that draws changes together, and at a limited rate."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from textual.css.query import NoMatches
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget

PAINT_S = 1 / 10
"""Least seconds between two paints."""

PAINT_SHARE = 0.5
"""Largest share of the time that painting may take; the rest is for keys."""


class ThrottledScreen(Screen[None]):
    """Joins changes into one paint, at most ten a second."""

    CANVAS: ClassVar[type[Widget]]
    """The widget that is drawn on. Without it the screen is being removed."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._painted_at = 0.0
        self._paint_took_s = 0.0
        self._paint_timer: Timer | None = None

    def paint_soon(self) -> None:
        """Paint now, or when the interval since the last paint has passed."""
        if self._paint_timer is None and self.is_attached:
            pause = max(PAINT_S, self._paint_took_s / PAINT_SHARE)
            wait = pause - (time.monotonic() - self._painted_at)
            self._paint_timer = self.set_timer(max(wait, 0.001), self._paint)

    @abstractmethod
    async def paint(self) -> None:
        """Show what has changed."""

    @contextmanager
    def unless_removed(self) -> Iterator[None]:
        """Skip what needs widgets that are gone, since the screen is on its way out."""
        try:
            yield
        except NoMatches:
            if self.query(self.CANVAS):
                raise

    async def _paint(self) -> None:
        self._painted_at = time.monotonic()
        self._paint_timer = None
        with self.unless_removed(), self.app.batch_update():  # one layout for all changes
            await self.paint()
        self.call_after_refresh(self._note_painted, self._painted_at)

    def _note_painted(self, began: float) -> None:
        self._paint_took_s = time.monotonic() - began
