"""The compare screen: several replies to one message, side by side, to pick the best."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widgets import Static

from hermes_tui.core.actions import BY_ID, Scope
from hermes_tui.core.changes import Change, PendingApproval
from hermes_tui.core.compare_replies import MAX_SIBLINGS, MIN_SIBLINGS, Comparison
from hermes_tui.core.controller import Controller
from hermes_tui.core.sanitize import one_line
from hermes_tui.tui import messages
from hermes_tui.tui.context import AppContext
from hermes_tui.tui.keys import bindings, hints
from hermes_tui.tui.screens.action_screen import ActionScreen
from hermes_tui.tui.screens.dialogs import AskScreen, DismissOnce
from hermes_tui.tui.widgets.approval_bar import ApprovalBar
from hermes_tui.tui.widgets.chrome import Hints, TooSmallNotice, clickable
from hermes_tui.tui.widgets.formatting import literal
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.reply_column import ReplyColumn
from hermes_tui.tui.widgets.turn_view import TurnStatus

TICK_S = 0.2
"""Seconds between updates of countdowns."""

MIN_COLUMN = 36
"""Least width of a reply beside others, in cells."""


class GroupSizeScreen(AskScreen):
    """Asks how many replies to compare.

    Args:
        again: whether an empty answer returns to the last comparison.
    """

    def __init__(self, *, again: bool) -> None:
        self._again = again
        back = "; nothing goes back to the comparison before" if again else ""
        hint = f"from {MIN_SIBLINGS} to {MAX_SIBLINGS}: each samples its own reply{back}"
        super().__init__("How many replies to compare", "" if again else "3", hint)

    def problem(self, text: str) -> str:
        """Return what is wrong with a number of replies; empty if nothing."""
        if self._again and not text.strip():
            return ""
        number = int(text) if text.strip().isdecimal() else 0
        well = MIN_SIBLINGS <= number <= MAX_SIBLINGS
        return "" if well else f"a number from {MIN_SIBLINGS} to {MAX_SIBLINGS}"


class CompareScreen(DismissOnce, ActionScreen):
    """Draws one comparison. Leaving it ends none of its turns."""

    CANVAS = Hints
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("compare")]
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012

    def __init__(self, controller: Controller, context: AppContext, comparison: Comparison) -> None:
        super().__init__(controller, context, id="compare")
        self.comparison = comparison
        self.shown = 0
        """Index of the reply that a narrow terminal shows."""
        self._interrupted = False

    @property
    def scope(self) -> Scope:
        """Always the comparison, even while its prompt has the focus."""
        return "compare"

    def compose(self) -> ComposeResult:
        """Lay out the replies, and the prompt until a message is sent."""
        yield Static(id="compare-top")
        yield Static(id="compare-tabs")
        with Container(id="siblings"):
            for index in range(self.comparison.size):
                yield ReplyColumn(index)
        yield ApprovalBar()
        with Vertical(id="prompt-box"):
            yield Prompt(self.context.keys, self.do_compare_leave)
        yield Hints()
        yield TooSmallNotice()

    def on_mount(self) -> None:
        """Follow the comparison."""
        self.controller.notifier.listen(self._on_change)
        self.set_interval(TICK_S, self._tick)
        self._show_prompt(not self.comparison.text)
        self.paint_soon()

    def on_unmount(self) -> None:
        """Stop following it."""
        self.controller.notifier.unlisten(self._on_change)

    # Drawing -------------------------------------------------------------------------------

    def _on_change(self, _: Change) -> None:
        self.paint_soon()

    async def _tick(self) -> None:
        if self.controller.state.pending_approvals or self.controller.state.trainer.groups:
            self.paint_soon()

    async def paint(self) -> None:
        """Show what has changed."""
        await self._paint_replies()
        self._paint_edges()

    async def _paint_replies(self) -> None:
        comparison = self.comparison
        for view in self.query(ReplyColumn):
            if view.index < len(comparison.turns):
                picked = view.index in comparison.picked
                await view.sync(
                    comparison.turns[view.index], self._status(view.index), picked=picked
                )

    def _paint_edges(self) -> None:
        comparison = self.comparison
        top = Content.assemble(
            ("Compare", "bold $text-primary"),
            (f" · {comparison.size} replies", "dim"),
            literal(f" · {one_line(comparison.text)}" if comparison.text else ""),
        )
        self.query_one("#compare-top", Static).update(top)
        self.query_one("#compare-tabs", Static).update(self._tabs())
        keys = self.context.keys
        pending = self.controller.state.approval_queue
        clock = self.controller.clock()
        where = self._where(pending[0]) if pending else ""
        self.query_one(ApprovalBar).show(pending, clock, keys.label("approval_answer"), where)
        talking = self.query_one("#prompt-box").display
        self.query_one(Hints).show(hints("prompt" if talking else "compare", self.scope), keys)

    def _where(self, request: PendingApproval) -> str:
        for number, turn in enumerate(self.comparison.turns, 1):
            if turn.session_id == request.session_id:
                return f"reply {number}"
        return self.controller.state.where(request)

    def _tabs(self) -> Content:
        turns = self.comparison.turns
        tabs: list[Content] = []
        for index in range(self.comparison.size):
            state = turns[index].state if turns else ""
            sign = "✓" if index in self.comparison.picked else {"running": "◌"}.get(state, "●")
            style = "bold reverse" if index == self.shown else "dim"
            tabs.append(clickable(f" {index + 1} {sign} ", f"screen.show({index})", style))
        return Content(" ").join(tabs)

    def _status(self, index: int) -> TurnStatus:
        controller, episode = self.controller, self.comparison.episode(index)
        picked, score = index in self.comparison.picked, self.context.keys.label("compare_score")
        picks = f"{score} scores, {index + 1} unpicks it" if picked else f"{index + 1} picks it"
        return TurnStatus(
            episode=episode,
            training=controller.state.info.training,
            waiting=controller.rewards.when(episode) if episode else "",
            judged_by=picks,
            picked=picked,
            undo=controller.notifier.action_label("compare_undo"),
        )

    # Room ----------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        """Lay the replies out in as many columns as fit."""
        self.query_one(TooSmallNotice).fit(event.size)
        size = self.comparison.size
        fit = min(max(event.size.width // MIN_COLUMN, 1), size)
        rows = -(-size // fit)
        grid = self.query_one("#siblings").styles
        narrow = event.size.width < 110
        grid.grid_size_columns = 1 if narrow else -(-size // rows)
        grid.grid_size_rows = 1 if narrow else rows
        self.action_show(self.shown)

    def action_show(self, index: int) -> None:
        """Focus one reply; a narrow terminal shows only that."""
        self.shown = index
        for view in self.query(ReplyColumn):
            view.set_class(view.index == index, "-shown")
        if not self.query_one("#prompt-box").display:
            self.set_focus(self.query_one(f"#sibling-{index}"))
        self.paint_soon()

    def _show_prompt(self, wanted: bool) -> None:
        self.query_one("#prompt-box").display = wanted
        if wanted:
            self.set_focus(self.query_one(Prompt))
        else:
            self.action_show(self.shown)

    # Messages of the widgets ----------------------------------------------------------------

    def on_message_typed(self, message: messages.MessageTyped) -> None:
        """Send the message to all siblings."""
        message.stop()
        self._show_prompt(False)
        # A worker of the app: the replies go on when the person leaves this screen.
        self.app.run_worker(self._ask(message.text), group="compare")

    async def _ask(self, text: str) -> None:
        if not await self.comparison.ask(text) and self.is_attached:
            self._show_prompt(True)
            self.query_one(Prompt).take_back(text)

    def on_sibling_clicked(self, message: messages.SiblingClicked) -> None:
        """Pick what was clicked."""
        message.stop()
        self.do_compare_pick(message.index + 1)

    # Actions -------------------------------------------------------------------------------

    def press(self, action_id: str) -> Awaitable[None] | None:
        """Do an action of the comparison, or of its prompt."""
        owner = self.query_one(Prompt) if BY_ID[action_id].scope == "prompt" else self
        return owner.action_do(action_id)

    def do_compare_pick(self, number: int) -> None:
        """Pick a reply by its number, or take that back."""
        if number <= len(self.comparison.turns):
            self.comparison.toggle(number - 1)
            self.action_show(number - 1)

    def do_compare_score(self) -> None:
        """Score: the picked ones are good, the others bad."""
        self.run_worker(self.comparison.score(), group="actions")

    def do_compare_undo(self) -> None:
        """Take the scores back."""
        self.run_worker(self.comparison.undo(), group="actions")

    def do_compare_interrupt(self) -> None:
        """Stop those that still speak."""
        self.interrupt()

    def interrupt(self) -> bool:
        """Stop those that still speak; return False when none does, or they were stopped before."""
        if not self.comparison.num_running or self._interrupted:
            return False
        self._interrupted = True
        self.run_worker(self.comparison.interrupt(), group="actions")
        return True

    def do_compare_next(self) -> None:
        """Go to the next reply."""
        self.action_show((self.shown + 1) % self.comparison.size)

    def do_compare_previous(self) -> None:
        """Go to the reply before."""
        self.action_show((self.shown - 1) % self.comparison.size)

    def do_compare_end(self) -> None:
        """Go to the end of the reply, and stay there."""
        self.query_one(f"#sibling-{self.shown}", ReplyColumn).follow()

    def do_compare_leave(self) -> None:
        """Go back; replies that still come go on."""
        self.dismiss()
