"""One of several replies that are compared."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from hermes_tui.core.events import Turn
from hermes_tui.messages import SiblingClicked
from hermes_tui.widgets.text import foreign
from hermes_tui.widgets.turn import Fate, TurnView

WAITING = "waits for your message"


class SiblingView(VerticalScroll, can_focus=True):
    """A numbered reply as it streams; stays at its end until the person scrolls up.

    Args:
        place: its place, from 0.
    """

    def __init__(self, place: int) -> None:
        super().__init__(classes="sibling", id=f"sibling-{place}")
        self.place = place
        self.following = True
        """Whether it stays with the newest words."""
        self._turn: TurnView | None = None

    def compose(self) -> ComposeResult:
        """Lay out nothing yet."""
        yield from ()

    def on_mount(self) -> None:
        """Show the number."""
        self.entitle("○", WAITING, picked=False)

    async def sync(self, turn: Turn, fate: Fate, *, picked: bool) -> None:
        """Show the reply as it is now."""
        if self._turn is None:
            self._turn = TurnView(turn, fate)
            await self.mount(self._turn)
        await self._turn.sync(fate)
        signs = {"running": "◌ speaking", "failed": "✗ failed", "interrupted": "✗ interrupted"}
        sign, _, word = signs.get(turn.state, "● ended").partition(" ")
        self.entitle(sign, word, picked=picked)

    def entitle(self, sign: str, word: str, *, picked: bool) -> None:
        """Write number, state and whether it is picked into the border."""
        self.set_class(picked, "-picked")
        self.border_title = Content.assemble(
            (f"{self.place + 1}", "bold"), foreign(f" {sign} {word}")
        )
        self.border_subtitle = Content.styled("✓ picked", "bold") if picked else ""

    def watch_virtual_size(self) -> None:
        """Stay at the end while following."""
        if self.following:
            self.follow()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stop following when the person scrolls up; follow again at the end."""
        super().watch_scroll_y(old_value, new_value)
        if new_value >= self.max_scroll_y:
            self.following = True
        elif new_value < old_value:
            self.following = False

    def follow(self) -> None:
        """Go to the newest words and stay with them."""
        self.following = True
        self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)

    def on_click(self) -> None:
        """Tell that it was clicked: that picks it."""
        self.post_message(SiblingClicked(self.place))
