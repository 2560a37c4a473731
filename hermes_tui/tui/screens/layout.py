"""The main screen's panes: how they are laid out, drawn and focused."""

from __future__ import annotations

from collections.abc import Awaitable

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.worker import WorkType

from hermes_tui.core.actions import OF_TRAINING, PAGES, PANES, Scope
from hermes_tui.core.changes import (
    Change,
    ChatTurn,
    EpisodeLoaded,
    LogGrew,
    Notice,
    PendingApproval,
    QueueChanged,
    RowsChanged,
    TokensSampled,
    TurnChanged,
    TurnsLoaded,
)
from hermes_tui.core.compare_replies import group_to_judge
from hermes_tui.core.controller import Controller
from hermes_tui.core.lessons import is_lesson
from hermes_tui.core.models import EpisodeRow
from hermes_tui.core.sanitize import clean
from hermes_tui.core.stack_status import SAMPLE_S, SUPERVISOR
from hermes_tui.core.state import ViewState
from hermes_tui.core.step_words import sentence
from hermes_tui.tui.context import AppContext
from hermes_tui.tui.keys import hints
from hermes_tui.tui.screens.action_screen import ActionScreen
from hermes_tui.tui.widgets.approval_bar import ApprovalBar
from hermes_tui.tui.widgets.chat_pane import ChatPane
from hermes_tui.tui.widgets.chrome import Hints, PaneTabs, TooSmallNotice, TopBar
from hermes_tui.tui.widgets.formatting import PART
from hermes_tui.tui.widgets.lesson_bar import LessonBar
from hermes_tui.tui.widgets.logs_pane import LogsPane
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.queue_bar import QueueBar
from hermes_tui.tui.widgets.score_bar import ScoreBar
from hermes_tui.tui.widgets.sessions_pane import SessionsBox, SessionsPane
from hermes_tui.tui.widgets.system_pane import SystemPane
from hermes_tui.tui.widgets.token_view import TokensPane
from hermes_tui.tui.widgets.training_pane import TrainingPane
from hermes_tui.tui.widgets.turn_view import SCORE_KEYS, TurnStatus

FULL_FRAC = 0.9
"""A context that is filled further is shown as a warning."""

TICK_S = 0.2
"""Seconds between updates of countdowns, which run only while one is shown."""

REFUSAL_S = 5.0
"""Seconds for which the line above the prompt says why an episode takes no score."""

FOCUS: dict[Scope, str] = {
    "sessions": "#sessions-list",
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
        self._interrupted = ""
        """The newest turn that was asked to stop, by its id."""
        self._seen_step: int | None = None
        """The newest step that was there at first, or was looked at; None before the first look."""
        self._refusal = ""
        """Why the last score key did nothing."""
        self._refused_until = 0.0
        """Until when that is shown, in seconds since the epoch."""
        self._ticks: Timer | None = None
        self._second = 0
        """The clock's second when waits for siblings were last painted."""

    def compose(self) -> ComposeResult:
        """Lay out the panes."""
        yield TopBar(self.controller.clock)
        yield PaneTabs(self.context.keys, training=self.context.training)
        with Horizontal(id="body"):
            yield SessionsBox(self.controller.clock, self.context.keys, self._point)
            with Vertical(id="center"):
                yield ChatPane(self.context, self._status)
                yield ApprovalBar()
                yield QueueBar()
                yield ScoreBar()
                yield LessonBar()
                with Vertical(id="prompt-box"):
                    yield Prompt(self.context.keys, self._leave_prompt, self._take_queued)
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
        self.set_class(not self.context.training, "-untrained")
        self.controller.notifier.listen(self._on_change)
        self.run_worker(self.controller.watch(), group="watch")
        self._ticks = self.set_interval(TICK_S, self._tick, pause=True)
        self.set_interval(SAMPLE_S, self._look_at_system)
        self.on_descendant_focus()  # no focus event comes while the terminal itself has no focus
        self.paint_soon()

    # What arrives --------------------------------------------------------------------------

    def _on_change(self, change: Change) -> None:
        match change:
            case Notice(episode_id=episode_id) if episode_id:
                # The line above the prompt says the same.
                self._rows_changed, self._refused_until = True, 0.0
            case Notice(refuses_score=True, text=text):
                # Not a toast: that would lie over the prompt, where the next keys may go.
                self._refusal = text
                self._refused_until = self.controller.clock() + REFUSAL_S
                self._rows_changed = True
            case Notice(text=text, severity=severity, replaces=replaces):
                if replaces:
                    self.app.clear_notifications()
                self.notify(clean(text), severity=severity, markup=False)
                return
            case PendingApproval():
                self.app.bell()  # whoever looks elsewhere hears it
                self._rows_changed = True
            case TurnChanged(turn=turn):
                self._changed_turns.add(turn.turn_id)
                if turn.reading and self._ticks:
                    self._ticks.resume()
            case TurnsLoaded(session_id=session_id):
                self._reload_chat = self._reload_chat or session_id == self._state.selected
                self._rows_changed = True
            case TokensSampled() | EpisodeLoaded():
                self._take(change)
            case RowsChanged() | QueueChanged():
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
        if rows or reload or changed:
            self._paint_context()
        if self._log_grew:
            self._log_grew = False
            self.query_one(LogsPane).sync(self._state.log)
            self.query_one(SystemPane).tail.sync(self._state.log)
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
        self._paint_score()
        self._paint_lesson()
        self._paint_queue()
        self._paint_hints()
        if self._ticks and self._something_ticks():
            self._ticks.resume()

    def _paint_context(self) -> None:
        """Show how much of the model's context the conversation fills."""
        turns = self._state.turns.get(self._state.selected, ())
        used = next((t.context_tokens for t in reversed(turns) if t.context_tokens), 0)
        room = self._state.info.context_tokens
        box = self.query_one("#prompt-box")
        about = f"context {used:,} of {room:,} · {used / room:.0%}" if used and room else ""
        if box.border_subtitle != about and not box.has_class("-editing"):
            box.set_class(bool(room) and used > FULL_FRAC * room, "-full")
            box.border_subtitle = about

    def _paint_approvals(self) -> None:
        key = self.context.keys.label("approval_answer")
        pending = self._state.approval_queue
        where = self._state.where(pending[0]) if pending else ""
        self.query_one(ApprovalBar).show(pending, self.controller.clock(), key, where)

    def _paint_score(self) -> None:
        """Say why a score was refused; else count down while one can be taken back."""
        rewards = self.controller.rewards
        scored = rewards.scored
        if self.controller.clock() < self._refused_until:
            target = rewards.target.episode
            name = self._state.episode_name(target) if target else ""
            nameless = self._refusal.removeprefix(f"{name} ")
            self.query_one(ScoreBar).show(self._refusal, nameless, refused=True)
            return
        if scored is None or not rewards.seconds_to_undo(scored):
            self.query_one(ScoreBar).show()
            return
        score, when, _ = rewards.countdown(scored).split(PART)
        needed = [score, when, self._takes_back(scored)]
        short = [score.removeprefix("scored "), when, self._takes_back(scored, short=True)]
        name = self._state.episode_name(scored)
        why = self._says_why(scored)
        forms = [[name, *needed, why], [*needed, why], needed, short]
        if scored != self._state.open_episode:  # the conversation shows another one
            brief = f"episode {self._state.ordinal(scored)}"
            forms = [forms[0], [name, *needed], [name, *short], [brief, *short]]
            forms.append([brief, short[0], short[-1]])
        self.query_one(ScoreBar).show(*map(PART.join, forms))

    def _takes_back(self, scored: EpisodeRow, *, short: bool = False) -> str:
        """Return which keys take a score back from where the focus is.

        Args:
            scored: the episode that has the score.
            short: name one key, in few words.
        """
        undo, action_id = self._outside_prompt("score_undo"), SCORE_KEYS.get(scored.reward or 0.0)
        if action_id is None or not self._is_target(scored):
            return f"{undo} takes it back"
        again = self.context.keys.label(action_id)
        if short:
            return f"{again} takes it back"
        others = "" if self.scope == "prompt" else f" or {undo}"
        return f"{again} again{others} takes it back"

    def _says_why(self, scored: EpisodeRow) -> str:
        """Return which key says why an episode has its score, or changes what was said."""
        exact = self.context.keys.label("score_exact")
        if self.scope == "prompt" and self._is_target(scored):
            is_exact = bool(scored.feedback) or scored.reward not in SCORE_KEYS
            return f"{exact} changes it" if is_exact else f"{exact} says why"
        said = "changes the sentence" if scored.feedback else "says why"
        return f"{self._outside_prompt('score_why')} {said}"

    def _is_target(self, scored: EpisodeRow) -> bool:
        """True when the keys that score are about this episode."""
        target = self.controller.rewards.target.episode
        return target is not None and target.episode_id == scored.episode_id

    def _outside_prompt(self, action_id: str) -> str:
        """Return an action's key; in the prompt letters are text, so one leaves it first."""
        keys = self.context.keys
        key = keys.label(action_id)
        return f"{keys.label('prompt_leave')}, {key}" if self.scope == "prompt" else key

    def _paint_lesson(self) -> None:
        """Say what a step that has ended since changed, until somebody looks or goes on talking."""
        newest = next(filter(is_lesson, reversed(self._state.steps)), None)
        number = newest.step if newest else -1
        if self._seen_step is None:
            self._seen_step = number
        key = self.context.keys.label("lesson")
        if newest is None or number <= self._seen_step:
            self.query_one(LessonBar).show()
        else:
            self.query_one(LessonBar).show(sentence(newest), key if self.scope != "prompt" else "")

    def lesson_seen(self) -> None:
        """Take the line about the newest step away."""
        self._seen_step = self._state.steps[-1].step if self._state.steps else -1
        self._paint_lesson()

    def _paint_queue(self) -> None:
        outbox, session_id = self.controller.outbox, self._state.selected
        waiting = [message.text for message in outbox.of(session_id)]
        # After a failed turn, or when the view comes back, the next message sends them along.
        held = "waits for your next message · " if outbox.is_held(session_id) else ""
        self.query_one(QueueBar).show(waiting, f"{held}↑ edits")

    def _take_queued(self) -> str:
        """Take the newest queued message out of the queue, to be edited; return its text."""
        waiting = self.controller.outbox.of(self._state.selected)
        return self.controller.outbox.remove(waiting[-1].message_id) if waiting else ""

    def _paint_hints(self) -> None:
        """Hint at the focused pane's keys, without those that do nothing now."""
        rewards = self.controller.rewards
        target = rewards.target
        without, words = set[str](), dict[str, str]()
        if self._state.running_turn(self._state.selected):
            words |= {"prompt_send": "queue", "prompt_leave": "interrupt"}
        else:
            without.add("turn_interrupt")
        if target.refusal or target.episode is None:
            without |= {"score_good", "score_bad", "score_exact"}
        elif target.episode.state == "scored":
            again = SCORE_KEYS.get(target.episode.reward or 0.0)
            words |= {again: "take back"} if again else {}
        if rewards.scored is None:
            without |= {"score_undo", "score_why"}
        if not self.context.training:
            without.add("compare_new")
        if not self._group_again:
            without.add("compare_again")
        scope = self.scope
        if scope == "prompt":
            without.add("turn_interrupt")  # leaving the prompt does it
        self.query_one(Hints).show(hints(scope, without=without), self.context.keys, words)

    @property
    def _group_again(self) -> str:
        """The group whose comparison is opened again; empty for none."""
        cursor = self.query_one(SessionsPane).cursor_session
        return group_to_judge(self._state, cursor, self._state.selected)

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
        state, rewards = self._state, self.controller.rewards
        counting = rewards.seconds_to_undo(rewards.scored) > 0 or self._group_waits
        refusing = self.controller.clock() < self._refused_until
        working = state.step_started_at is not None or self._reading is not None
        return counting or refusing or working or bool(state.pending_approvals)

    @property
    def _reading(self) -> ChatTurn | None:
        """The open session's turn while the model reads its prompt."""
        turn = self._state.running_turn(self._state.selected)
        return turn if turn is not None and turn.reading else None

    @property
    def _group_waits(self) -> bool:
        now = self.controller.clock()
        return any(group.ready_at > now for group in self._state.trainer.groups)

    async def _tick(self) -> None:
        if not self.query(ChatPane):
            return
        self.controller.approvals.drop_expired()
        self._paint_approvals()
        self._paint_score()
        self.query_one(TopBar).sync(self._state)
        if turn := self._reading:
            self._changed_turns.add(turn.turn_id)
            self.paint_soon()
        if (second := int(self.controller.clock())) != self._second and self._state.trainer.groups:
            self._second, self._rows_changed = second, True
            self.paint_soon()
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
        rewards = self.controller.rewards
        judged = rewards.judge(episode) if episode else None
        marked = episode is not None and episode == state.marked_episode
        turns = state.turns.get(turn.session_id, ())
        # What is drawn may be of a list that was read anew since.
        of_it = (t for t in reversed(turns) if t.episode_id == turn.episode_id)
        is_last = next(of_it, turn).turn_id == turn.turn_id
        asked = {ask.session_id for ask in state.pending_approvals.values()}
        return TurnStatus(
            episode=episode,
            training=state.info.training,
            waiting=rewards.when(episode) if episode else "",
            untrainable=judged.untrainable if judged else "",
            marked=marked,
            takes_keys=marked and is_last,
            asked=turn.state == "running" and turn.session_id in asked,
            answer=self.context.keys.label("approval_answer"),
            now=self.controller.clock(),
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

    def _point(self) -> None:
        """Have score keys be about the row under the cursor while the list has the focus."""
        pointed = ("", "")
        if self.scope == "sessions" and self.focused:
            pointed = self.query_one(SessionsPane).under_cursor
        if self.controller.rewards.point_at(*pointed):
            self._rows_changed = True
            self.paint_soon()

    def on_descendant_focus(self) -> None:
        """Name the keys that do something from here, and mark the pane's tab."""
        with self.unless_removed():
            self._point()
            self._paint_hints()
            self._paint_score()
            self._paint_lesson()
            if self.scope != "prompt":
                self.query_one(PaneTabs).pane = self.scope

    def go(self, pane: Scope) -> None:
        """Show a pane and give it the focus; without a trainer two of them have nothing to show."""
        if pane in OF_TRAINING and not self.context.training:
            what = "no tokens are recorded" if pane == "tokens" else "nothing is learned"
            self.notify(f"training is off: {what}; training.enabled = true turns it on")
            return
        if pane != "prompt":
            self._show(pane)
        self.set_focus(self.query_one(FOCUS[pane]))

    def _leave_prompt(self) -> None:
        """Interrupt the agent while it speaks; else give the keys to the pane that is shown."""
        if not self.interrupt():
            self.go(self.pane)

    def interrupt(self) -> bool:
        """Stop the turn in flight; return False when there is none, or it was stopped before."""
        turn = self._state.running_turn(self._state.selected)
        if turn is None or turn.turn_id == self._interrupted:
            return False
        self._interrupted = turn.turn_id
        self._work(self.controller.interrupt())
        return True

    @property
    def draft(self) -> str:
        """What stands in the prompt."""
        return self.query_one(Prompt).message

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
        if pane == "system":
            self._work(self.controller.refresh_system())
        system = self.query_one(SystemPane)
        if pane == "system":
            self.call_after_refresh(self._follow_cursor, system)
        elif pane != "logs":
            self.workers.cancel_group(self, "log")
        elif not any(w.group == "log" and w.is_running for w in self.workers if w.node is self):
            self._follow_log(self._state.log.process or SUPERVISOR)

    def _follow_cursor(self, system: SystemPane) -> None:
        """Read the log of the process under the cursor, if it is shown beside it."""
        if self.pane == "system" and system.has_tail and system.processes.cursor_key:
            self._follow_log(system.processes.cursor_key)

    def on_log_followed(self) -> None:
        """Show the log of another process beside the processes."""
        self._follow_cursor(self.query_one(SystemPane))

    def on_resize(self, event: events.Resize) -> None:
        """In a narrow terminal show the pane that has the focus."""
        self.query_one(TooSmallNotice).fit(event.size)
        if self.scope != "prompt":
            self._show(self.scope)

    def _work(self, doing: Awaitable[object]) -> None:
        self.run_worker(doing, group="actions")
