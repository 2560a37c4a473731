"""Comparing replies line by line: one message to siblings, then the numbers of the best."""

from __future__ import annotations

from collections.abc import Callable

from hermes_tui.core.compare_replies import (
    MAX_SIBLINGS,
    MIN_SIBLINGS,
    Comparison,
    unscored_groups,
)
from hermes_tui.core.controller import Controller
from hermes_tui.core.sanitize import clean
from hermes_tui.plain import formatting as lines


class PlainComparison:
    """The comparison that is judged, if any.

    Args:
        controller: the use cases.
        print_line: prints a line.
    """

    def __init__(self, controller: Controller, print_line: Callable[[str], None]) -> None:
        self._controller = controller
        self._print_line = print_line
        self._comparison: Comparison | None = None

    @property
    def running(self) -> bool:
        """Whether any sibling is still replying."""
        return self._comparison is not None and self._comparison.num_running > 0

    @staticmethod
    def read(text: str) -> tuple[int, str] | None:
        """Return (siblings, message) of ``3 greet Ada``; None when it reads otherwise."""
        count, _, message = text.partition(" ")
        if not (count.isdecimal() and MIN_SIBLINGS <= int(count) <= MAX_SIBLINGS):
            return None
        return (int(count), message.strip()) if message.strip() else None

    async def ask(self, count: int, text: str) -> bool:
        """Ask this many siblings, and print their replies when the last one has ended.

        Returns: False when they could not be started.
        """
        self._comparison = comparison = Comparison(self._controller, count)
        if not await comparison.ask(text):
            self._comparison = None
            return False
        self._show(comparison)
        return True

    async def judge(self, comparison: Comparison) -> None:
        """Run the replies that were begun, and print all of them when the last one has ended."""
        self._comparison = comparison
        await comparison.run()
        self._show(comparison)

    async def reopen(self) -> bool:
        """Go back to the newest group without a score; return whether there is one."""
        for group_id in unscored_groups(self._controller.state):
            if comparison := await Comparison.of_group(self._controller, group_id):
                self._comparison = comparison
                self._print_line(f"[compare] you: {clean(comparison.text)}")
                self._show(comparison)
                return True
        self._print_line("[error] no comparison waits for a score: /compare 3 MESSAGE begins one")
        return False

    def _show(self, comparison: Comparison) -> None:
        """Show the replies, and how to pick."""
        for number, turn in enumerate(comparison.turns, 1):
            self._print_line(f"[reply {number}] {lines.turn_text(turn)}")
            for part in turn.parts:
                for line in lines.part_lines(part):
                    self._print_line(line)
        self._print_line("[compare] /pick 2 picks the second, /pick 1 3 picks two that are as good")

    async def pick(self, text: str) -> str:
        """Give the picked ones the highest reward; return what was wrong with the text."""
        comparison = self._comparison
        if comparison is None:
            return "nothing is compared: /compare 3 MESSAGE asks three siblings"
        numbers = text.replace(",", " ").split()
        known = {str(number) for number in range(1, comparison.size + 1)}
        if not numbers or not known.issuperset(numbers):
            return f"/pick takes numbers from 1 to {comparison.size}, such as /pick 2"
        comparison.picked = {int(number) - 1 for number in numbers}
        await comparison.score()
        return ""

    async def undo(self) -> str:
        """Take the rewards back; return why that is not possible."""
        if self._comparison is None:
            return "nothing is compared: there is nothing to take back"
        await self._comparison.undo()
        return ""

    async def interrupt(self) -> None:
        """Stop those that are still replying."""
        if self._comparison is not None:
            await self._comparison.interrupt()
