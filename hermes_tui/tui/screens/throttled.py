"""A screen that draws what arrives, together and not too often."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import ClassVar

from textual.css.query import NoMatches
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget

PAINT_S = 1 / 10
"""What arrives is drawn at most this often."""

PAINT_SHARE = 0.5
"""Drawing what arrives takes at most this share of the time: the rest is for keys."""


class ThrottledScreen(Screen[None]):
    """Paints some time after something has changed."""

    CANVAS: ClassVar[type[Widget]]
    """What is painted on: without it the screen is being taken down."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._painted_at = 0.0
        self._paint_took_s = 0.0
        self._paint_timer: Timer | None = None

    def paint_soon(self) -> None:
        """Paint at once when nothing was painted lately, else when its time has come."""
        if self._paint_timer is None and self.is_attached:
            pause = max(PAINT_S, self._paint_took_s / PAINT_SHARE)
            wait = pause - (time.monotonic() - self._painted_at)
            self._paint_timer = self.set_timer(max(wait, 0.001), self._paint)

    @abstractmethod
    async def paint(self) -> None:
        """Show what has changed."""

    async def _paint(self) -> None:
        self._painted_at = time.monotonic()
        self._paint_timer = None
        try:
            with self.app.batch_update():  # else what comes first is laid out and drawn alone
                await self.paint()
        except NoMatches:
            if self.query(self.CANVAS):
                raise
        self.call_after_refresh(self._note_painted, self._painted_at)

    def _note_painted(self, began: float) -> None:
        self._paint_took_s = time.monotonic() - began
