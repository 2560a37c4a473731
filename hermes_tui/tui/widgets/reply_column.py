"""One of the replies on the compare screen."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content

from hermes_tui.core.changes import ChatTurn
from hermes_tui.tui.messages import SiblingClicked
from hermes_tui.tui.widgets.formatting import literal
from hermes_tui.tui.widgets.transcript import TranscriptScroll
from hermes_tui.tui.widgets.turn_view import TurnStatus, TurnView

WAITING = "waits for your message"


class ReplyColumn(TranscriptScroll):
    """A numbered reply as it streams; follows its end until the person scrolls up.

    Args:
        index: its index among the siblings, from 0.
    """

    def __init__(self, index: int) -> None:
        super().__init__(id=f"sibling-{index}", classes="sibling")
        self.index = index
        self._turn: TurnView | None = None

    def compose(self) -> ComposeResult:
        """Lay out nothing yet."""
        yield from ()

    def on_mount(self) -> None:
        """Show the number."""
        self.entitle("○", WAITING, picked=False)

    async def sync(self, turn: ChatTurn, status: TurnStatus, *, picked: bool) -> None:
        """Show the reply as it is now."""
        async with self.changing():
            if self._turn is None:
                self._turn = TurnView(turn, status)
                await self.mount(self._turn)
            await self._turn.sync(status)
        signs = {"running": "◌ speaking", "failed": "✗ failed", "interrupted": "✗ interrupted"}
        sign, _, word = signs.get(turn.state, "● ended").partition(" ")
        self.entitle(sign, word, picked=picked)

    def entitle(self, sign: str, word: str, *, picked: bool) -> None:
        """Show number, state and whether it is picked in the border."""
        self.set_class(picked, "-picked")
        self.border_title = Content.assemble(
            (f"{self.index + 1}", "bold"), literal(f" {sign} {word}")
        )
        self.border_subtitle = Content.styled("✓ picked", "bold") if picked else ""

    def on_click(self) -> None:
        """Report the click, which picks it."""
        self.post_message(SiblingClicked(self.index))
