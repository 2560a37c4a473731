"""One of several replies that are compared."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content

from hermes_tui.core.changes import ChatTurn
from hermes_tui.tui.messages import SiblingClicked
from hermes_tui.tui.widgets.formatting import foreign
from hermes_tui.tui.widgets.transcript import FollowingScroll
from hermes_tui.tui.widgets.turn_view import Fate, TurnView

WAITING = "waits for your message"


class SiblingView(FollowingScroll):
    """A numbered reply as it streams; stays at its end until the person scrolls up.

    Args:
        place: its place, from 0.
    """

    def __init__(self, place: int) -> None:
        super().__init__(id=f"sibling-{place}", classes="sibling")
        self.place = place
        self._turn: TurnView | None = None

    def compose(self) -> ComposeResult:
        """Lay out nothing yet."""
        yield from ()

    def on_mount(self) -> None:
        """Show the number."""
        self.entitle("○", WAITING, picked=False)

    async def sync(self, turn: ChatTurn, fate: Fate, *, picked: bool) -> None:
        """Show the reply as it is now."""
        async with self.changing():
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

    def on_click(self) -> None:
        """Tell that it was clicked: that picks it."""
        self.post_message(SiblingClicked(self.place))
