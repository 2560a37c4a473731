"""The main screen's panes: how they are laid out, drawn and focused."""

from __future__ import annotations

from collections.abc import Awaitable

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.worker import WorkType

from hermes_tui.core.actions import PANES, Scope
from hermes_tui.core.changes import (
    Change,
    ChatTurn,
    EpisodeLoaded,
    LogGrew,
    Notice,
    PendingApproval,
    RowsChanged,
    TokensSampled,
    TurnChanged,
    TurnsLoaded,
)
from hermes_tui.core.controller import Controller
from hermes_tui.core.sanitize import clean
from hermes_tui.core.stack_status import SUPERVISOR
from hermes_tui.core.state import ViewState
from hermes_tui.tui.context import AppContext
from hermes_tui.tui.keys import hints
from hermes_tui.tui.screens.action_screen import ActionScreen
from hermes_tui.tui.widgets.approval_bar import ApprovalBar
from hermes_tui.tui.widgets.chat_pane import ChatPane
from hermes_tui.tui.widgets.chrome import Hints, PaneTabs, TooSmallNotice, TopBar
from hermes_tui.tui.widgets.logs_pane import LogsPane
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.sessions_pane import SessionsPane
from hermes_tui.tui.widgets.system_pane import SystemPane
from hermes_tui.tui.widgets.token_view import TokensPane
from hermes_tui.tui.widgets.training_pane import TrainingPane
from hermes_tui.tui.widgets.training_text import waits_for
from hermes_tui.tui.widgets.turn_view import TurnStatus

TICK_S = 0.2
"""Seconds between updates of countdowns, which run only while one is shown."""

SYSTEM_S = 2.0
"""Seconds between samples of machine and processes, taken only while they are shown."""

PAGES = frozenset({"training", "system", "logs"})
"""Panes that take the whole screen, but for the prompt."""

FOCUS: dict[Scope, str] = {
    "sessions": "#sessions",
    "chat": "#chat-view",
    "prompt": "#prompt",
    "tokens": "#tokens-view",
    "training": "#training",
    "system": "#processes",
    "logs": "#log-view",
}
"""Selector of the widget that takes the focus, by pane."""


class PanesScreen(ActionScreen):
    """Draws the controller's state: sessions, conversation, tokens, training and stack."""

    CANVAS = ChatPane
    AUTO_FOCUS = "#prompt"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012  (Textual's own declaration)
        (0, "-narrow"),
        (110, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-low"),
        (34, "-tall"),
        (56, "-towering"),
    ]

    def __init__(self, controller: Controller, context: AppContext) -> None:
        super().__init__(controller, context, id="main")
        self.pane: Scope = "chat"
        """The pane that a narrow terminal shows."""
        self._arrived: list[TokensSampled | EpisodeLoaded] = []
        self._changed_turns: set[str] = set()
        self._rows_changed = True
        self._reload_chat = True
        self._log_grew = False
        self._ticks: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lay out the panes."""
        yield TopBar(self.controller.clock)
        yield PaneTabs()
        with Horizontal(id="body"):
            yield SessionsPane(self.controller.clock)
            with Vertical(id="center"):
                yield ChatPane(self.context, self._status)
                yield ApprovalBar()
                with Vertical(id="prompt-box"):
                    yield Prompt(self.context.keys, lambda: self.go(self.pane))
            with Vertical(id="right"):
                yield TokensPane(training=self.context.training)
                yield TrainingPane(self.context.keys)
                yield SystemPane()
                yield LogsPane(id="logs")
        yield Hints()
        yield TooSmallNotice()

    def on_mount(self) -> None:
        """Follow the stack, and hint at the prompt's keys."""
        self.add_class("-pane-chat")
        self.controller.notifier.listen(self._on_change)
        self.run_worker(self.controller.watch(), group="watch")
        self._ticks = self.set_interval(TICK_S, self._tick, pause=True)
        self.set_interval(SYSTEM_S, self._look_at_system)
        self.on_descendant_focus()  # no focus event comes while the terminal itself has no focus
        self.paint_soon()

    # What arrives --------------------------------------------------------------------------

    def _on_change(self, change: Change) -> None:
        match change:
            case Notice(text=text, severity=severity):
                self.notify(clean(text), severity=severity, markup=False)
                return
            case PendingApproval():
                self._rows_changed = True
            case TurnChanged(turn=turn):
                self._changed_turns.add(turn.turn_id)
            case TurnsLoaded(session_id=session_id):
                self._reload_chat = self._reload_chat or session_id == self._state.selected
                self._rows_changed = True
            case TokensSampled() | EpisodeLoaded():
                self._take(change)
            case RowsChanged():
                self._rows_changed = True
            case LogGrew():
                self._log_grew = True
        self.paint_soon()

    def _take(self, change: TokensSampled | EpisodeLoaded) -> None:
        """Queue changes of the shown episode; tokens of one completion are joined."""
        if isinstance(change, EpisodeLoaded):
            if change.detail.row.episode_id == self._state.shown:
                self._arrived.append(change)
            return
        if change.episode_id != self._state.shown:
            return
        last = self._arrived[-1] if self._arrived else None
        if isinstance(last, TokensSampled) and last.completion_id == change.completion_id:
            self._arrived[-1] = TokensSampled(
                session_id=change.session_id,
                episode_id=change.episode_id,
                completion_id=change.completion_id,
                tokens=last.tokens + change.tokens,
            )
        else:
            self._arrived.append(change)

    async def paint(self) -> None:
        """Show what has changed."""
        chat = self.query_one(ChatPane)
        changed, self._changed_turns = self._changed_turns, set()
        rows, self._rows_changed = self._rows_changed, False
        reload, self._reload_chat = self._reload_chat, False
        if reload:
            await chat.view.show(self._state.turns.setdefault(self._state.selected, []))
        if reload or rows or changed:
            await chat.view.sync(None if rows else changed)
        if rows or reload:
            self._paint_rows()
        if self._log_grew:
            self._log_grew = False
            self.query_one(LogsPane).sync(self._state.log)
        self._paint_tokens(chat)

    def _paint_rows(self) -> None:
        state = self._state
        self.query_one(TopBar).sync(state)
        self.query_one(SessionsPane).sync(state)
        self.query_one(TrainingPane).sync(state)
        self.query_one(SystemPane).sync(state)
        self.query_one(ChatPane).sync_title(state)
        view = self.query_one(TokensPane).view
        if not state.shown and view.episode_id:
            view.clear()
        self._paint_approvals()
        if self._ticks and self._something_ticks():
            self._ticks.resume()

    def _paint_approvals(self) -> None:
        key = self.context.keys.label("approval_answer")
        pending = self._state.approval_queue
        where = self._state.where(pending[0]) if pending else ""
        self.query_one(ApprovalBar).show(pending, self.controller.clock(), key, where)

    def _paint_tokens(self, chat: ChatPane) -> None:
        arrived, self._arrived = self._arrived, []
        view = self.query_one(TokensPane).view
        for change in arrived:
            if isinstance(change, EpisodeLoaded):
                view.show(change.detail)
                continue
            if view.episode_id != change.episode_id:
                view.clear(change.episode_id)
            view.extend(change.completion_id, change.tokens)
            chat.count_unread(len(change.tokens))
        chat.count_unread(0)

    # Time ----------------------------------------------------------------------------------

    def _something_ticks(self) -> bool:
        state = self._state
        counting = any(
            self._status(turn).seconds_left > 0 for turn in state.turns.get(state.selected, ())[-1:]
        )
        return counting or state.step_started_at is not None or bool(state.pending_approvals)

    async def _tick(self) -> None:
        if not self.query(ChatPane):
            return
        self.controller.approvals.drop_expired()
        self._paint_approvals()
        self.query_one(TopBar).sync(self._state)
        await self.query_one(ChatPane).view.sync()
        if self._ticks and not self._something_ticks():
            self._ticks.pause()

    async def _look_at_system(self) -> None:
        shown = any(pane.display for pane in self.query(SystemPane))
        if shown and not self._state.lost:
            await self.controller.refresh_system()

    def _follow_log(self, process: str) -> None:
        async def follow() -> None:
            await self.controller.log.follow(process)

        # A function, not a coroutine: a worker that is cancelled before it starts never calls it,
        # while a coroutine would be reported as never awaited.
        work: WorkType[None] = follow
        self.run_worker(work, group="log", exclusive=True)

    def _status(self, turn: ChatTurn) -> TurnStatus:
        state = self._state
        episode = state.episode(turn.episode_id) if turn.episode_id else None
        return TurnStatus(
            episode=episode,
            seconds_left=self.controller.rewards.seconds_to_undo(episode),
            training=state.info.training,
            waiting=waits_for(state.trainer),
        )

    # Focus and room ------------------------------------------------------------------------

    @property
    def _state(self) -> ViewState:
        return self.controller.state

    @property
    def scope(self) -> Scope:
        """The pane that has the focus."""
        nodes = self.focused.ancestors_with_self if self.focused else ()
        ids = {f"#{node.id}" for node in nodes if node.id}
        return next((scope for scope, target in FOCUS.items() if target in ids), self.pane)

    def on_descendant_focus(self) -> None:
        """Hint at the focused pane's keys."""
        self.query_one(Hints).show(hints(self.scope), self.context.keys)

    def go(self, pane: Scope) -> None:
        """Show a pane and give it the focus."""
        if pane != "prompt":
            self._show(pane)
        self.set_focus(self.query_one(FOCUS[pane]))

    def _show(self, pane: Scope) -> None:
        # Each class update restyles the whole screen, so only the last change triggers one.
        self.remove_class(*(f"-pane-{scope}" for scope in PANES if scope != pane), update=False)
        self.set_class(pane in PAGES, "-page", update=False)
        self.add_class(f"-pane-{pane}")
        self.pane = pane
        self.query_one(PaneTabs).pane = pane
        self._look(pane)

    def _look(self, pane: Scope) -> None:
        """Follow a log and sample the machine only while they are shown: both cost time."""
        if pane not in ("system", "logs"):
            self.workers.cancel_group(self, "log")
        elif not any(w.group == "log" and w.is_running for w in self.workers if w.node is self):
            self._follow_log(self._state.log.process or SUPERVISOR)
            self._work(self.controller.refresh_system())

    def on_resize(self, event: events.Resize) -> None:
        """In a narrow terminal show the pane that has the focus."""
        self.query_one(TooSmallNotice).fit(event.size)
        if self.scope != "prompt":
            self._show(self.scope)

    def _work(self, doing: Awaitable[object]) -> None:
        self.run_worker(doing, group="actions")
