"""The main screen: handles the widgets' messages and the person's actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.binding import BindingType
from textual.screen import ScreenResultType
from textual.worker import WorkType

from hermes_tui.core.actions import BY_ID, panes_of
from hermes_tui.core.compare_replies import Comparison, unscored_groups
from hermes_tui.core.controller import Controller
from hermes_tui.core.models import EpisodeRow
from hermes_tui.core.reward_text import reward_text
from hermes_tui.core.sanitize import clean, one_line
from hermes_tui.core.stack_status import SUPERVISOR
from hermes_tui.tui import messages
from hermes_tui.tui.context import AppContext
from hermes_tui.tui.keys import bindings
from hermes_tui.tui.screens.compare_replies import GroupSizeScreen
from hermes_tui.tui.screens.confirm import ConfirmScreen, VersionScreen
from hermes_tui.tui.screens.conversations import ConversationsScreen
from hermes_tui.tui.screens.dialogs import AskScreen, Dialog, RewardScreen
from hermes_tui.tui.screens.layout import FOCUS
from hermes_tui.tui.screens.slash_commands import SlashCommands, is_command
from hermes_tui.tui.screens.step_dialogs import AnswersScreen, EpisodesScreen
from hermes_tui.tui.widgets.base import ActionOwner
from hermes_tui.tui.widgets.chat_pane import ChatView
from hermes_tui.tui.widgets.logs_pane import LogsPane
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.sessions_pane import SessionsPane
from hermes_tui.tui.widgets.token_view import TokenView
from hermes_tui.tui.widgets.training_pane import TrainingPane


class MainScreen(ConversationsScreen):
    """Calls the controller for messages and actions."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("screen")]

    def __init__(self, controller: Controller, context: AppContext) -> None:
        super().__init__(controller, context)
        self._comparison: Comparison | None = None

    # Messages of the widgets ----------------------------------------------------------------

    def on_message_typed(self, message: messages.MessageTyped) -> None:
        """Say it to the agent, or do what a slash asks for."""
        if is_command(message.text):
            self._run_command(message.text)
            return
        self.lesson_seen()
        if self._say_edited(message.text):
            return
        if reason := self.controller.refusal():
            self._refuse(message.text, reason)
            return
        if self.pane == "sessions" or self.has_class("-page"):
            self._show("chat")
        text = message.text.removeprefix("/") if message.text.startswith("//") else message.text
        self.run_worker(self._send(text), group="turns")

    def _run_command(self, text: str) -> None:
        try:
            doing = SlashCommands(self.controller, self._press).run(text)
        except ValueError as error:
            self._refuse(text, str(error))
            return
        if doing is not None:
            self._work(doing)

    def _press(self, action_id: str) -> Awaitable[None] | None:
        """Do any action; the app does its own once the message has reached it."""
        if BY_ID[action_id].scope != "app":
            return self.press(action_id)
        self.post_message(messages.ActionPressed(action_id))
        return None

    def _refuse(self, text: str, reason: str) -> None:
        """Say why a text was not taken, and put it back."""
        self.notify(clean(reason), severity="warning", markup=False)
        self.query_one(Prompt).take_back(text)

    async def _send(self, text: str) -> None:
        if not await self.controller.send(text):
            self.query_one(Prompt).take_back(text)

    def on_episode_picked(self, message: messages.EpisodePicked) -> None:
        """Open the session or the episode."""
        self._work(self.controller.open_session(message.session_id, message.episode_id))
        if self.has_class("-narrow"):
            self.go("tokens" if message.episode_id else "chat")

    def on_find_requested(self, message: messages.FindRequested) -> None:
        """Ask for a text, then go to it."""
        where = "conversation" if message.pane == "chat" else "tokens"
        views: dict[str, ChatView | TokenView] = {
            "chat": self.query_one(ChatView),
            "tokens": self.query_one(TokenView),
        }

        def find(text: str | None) -> None:
            if text and not views[message.pane].find(text):
                self.notify(f"“{clean(text)}” is not there", markup=False)

        hint = "the same again goes on"
        self._ask(AskScreen(f"Find in the {where}", message.last, hint), find)

    def on_filter_requested(self, message: messages.FilterRequested) -> None:
        """Ask which sessions to list."""

        def answer(text: str | None) -> None:
            if text is not None:
                self.query_one(SessionsPane).filter(text, self._state)

        hint = "part of a title, a topic, a state, a reward, a version; nothing lists all"
        self._ask(AskScreen("List the sessions with", message.text, hint), answer)

    def on_comparison_requested(self, _: messages.ComparisonRequested) -> None:
        """Open a comparison that was left, with what is picked in it."""
        group_id = self._group_again
        if not group_id:
            self.notify("no comparison waits for a score", markup=False)
        elif self._comparison and self._comparison.group_id == group_id:
            self._compare(self._comparison)
        else:
            self._work(self._reopen(group_id))

    def on_export_requested(self, message: messages.ExportRequested) -> None:
        """Write the shown episode to a file."""
        folder = self.context.folder / "exports"
        self._work(self.controller.export(message.episode_id, folder))

    def on_restart_requested(self, message: messages.RestartRequested) -> None:
        """Ask whether to restart the process."""
        if message.process == SUPERVISOR:
            self.notify("the supervisor owns the others: to start it anew, quit and stop all")
            return

        def answer(yes: bool | None) -> None:
            if yes:
                self._work(self.controller.restart(message.process))

        about = "Turns that need it break off; it comes back where it was."
        question = f"Restart {one_line(message.process)}?"
        self._ask(ConfirmScreen(question, about, "Restart"), answer)

    def on_log_opened(self, message: messages.LogOpened) -> None:
        """Read the log of a process."""
        self._follow_log(message.process)
        self.go("logs")

    def on_log_search_requested(self, message: messages.LogSearchRequested) -> None:
        """Ask what to find in the log, or which lines to show."""
        title = "Find in the log" if message.kind == "find" else "Show only lines with"
        find = self._find_in_log if message.kind == "find" else self._filter_log
        hint = "from the newest to older ones" if message.kind == "find" else "nothing shows all"
        self._ask(AskScreen(title, message.last, hint), find)

    def _find_in_log(self, text: str | None) -> None:
        if text and not self.query_one(LogsPane).view.find(text):
            self.notify(f"“{clean(text)}” is not there", markup=False)

    def _filter_log(self, text: str | None) -> None:
        if text is not None:
            self.query_one(LogsPane).view.show_only(text)
            self.query_one(LogsPane).sync(self._state.log)

    def on_rollback_requested(self) -> None:
        """Ask for the version to roll back to."""

        def answer(version: int | None) -> None:
            if version is not None:
                self._work(self.controller.roll_back(version))

        self._ask(VersionScreen(self._state), answer)

    def on_answers_requested(self) -> None:
        """Ask which versions' answers to compare."""

        def answer(versions: tuple[int, int] | None) -> None:
            if versions is not None:
                self._work(self.controller.compare_answers(*versions))

        self._ask(AnswersScreen(self._state), answer)

    def on_step_picked(self, message: messages.StepPicked) -> None:
        """List the step's episodes, and open the one that is chosen."""

        def answer(row: EpisodeRow | None) -> None:
            if row is not None:
                self._work(self.controller.open_session(row.session_id, row.episode_id))
                self.go("tokens")

        step = next((step for step in self._state.steps if step.step == message.step), None)
        if step is not None:
            self._ask(EpisodesScreen(self._state, step), answer)

    def on_version_picked(self, message: messages.VersionPicked) -> None:
        """Show the step that made a version."""
        self.go("training")
        self.query_one(TrainingPane).show_step(message.step)

    def on_hold_toggled(self) -> None:
        """Pause or resume training."""
        self._work(self.controller.toggle_training())

    # Actions -------------------------------------------------------------------------------

    def press(self, action_id: str) -> Awaitable[None] | None:
        """Do an action of this screen, or of a pane: that one takes the focus."""
        scope = BY_ID[action_id].scope
        if scope == "screen":
            return self.action_do(action_id)
        self.go(scope)
        if self.scope != scope:  # a pane that has nothing to show here said why
            return None
        owner = self.query_one(FOCUS[scope])
        assert isinstance(owner, ActionOwner)
        return owner.action_do(action_id)

    def _score(self, reward: float, action_id: str = "") -> None:
        self._work(self.controller.rewards.toggle(reward, action_id))

    def do_score_good(self) -> None:
        """Score +1, or take it back."""
        self._score(1.0, "score_good")

    def do_score_bad(self) -> None:
        """Score -1, or take it back."""
        self._score(-1.0, "score_bad")

    def do_score_zero(self) -> None:
        """Score 0, or take it back."""
        self._score(0.0, "score_zero")

    def do_score_tenths(self, tenths: int) -> None:
        """Score by tenths, or take it back."""
        self._score(tenths / 10)

    def do_score_negative_tenths(self, tenths: int) -> None:
        """Score by negative tenths, or take it back."""
        self._score(-tenths / 10)

    def do_score_exact(self) -> None:
        """Ask for the reward, then why; say so when the marked episode takes none."""
        rewards = self.controller.rewards
        episode = rewards.target.episode
        if rewards.target.refusal or episode is None:
            rewards.refuse(rewards.target.refusal)
            return

        dialog = RewardScreen(rewards.range, self._state.episode_name(episode), episode)

        def answer(line: str | None) -> None:
            now = rewards.target.episode
            if line is None:
                return
            if now is None or now.episode_id != episode.episode_id:
                self.notify("not scored: another episode is marked by now", severity="warning")
                return
            if judged := dialog.judged(line):
                self._work(rewards.score(judged.reward, judged.feedback))
            else:
                self._work(rewards.undo())

        self._ask_holding(dialog, answer, episode)

    def do_score_why(self) -> None:
        """Ask for a sentence that goes with the score."""
        rewards = self.controller.rewards
        if (episode := rewards.scored) is None:
            self.notify("score it first: a sentence goes with a score", markup=False)
            return

        def answer(text: str | None) -> None:
            if text is not None:
                self._work(rewards.explain(text, episode.episode_id))

        about = f"Why {reward_text(episode.reward or 0.0)}"
        hint = f"one sentence about {self._state.episode_name(episode)}; nothing takes it away"
        self._ask_holding(AskScreen(about, episode.feedback or "", hint), answer, episode)

    def _ask_holding(
        self,
        dialog: Dialog[ScreenResultType],
        answer: Callable[[ScreenResultType | None], None],
        episode: EpisodeRow,
    ) -> None:
        """Open a dialog; until it is answered, no step claims the episode's score."""
        if not self.is_active:
            return

        async def hold() -> None:
            await self.controller.rewards.hold(episode.episode_id)

        work: WorkType[None] = hold
        holding = self.run_worker(work, group="hold")

        def answered(given: ScreenResultType | None) -> None:
            holding.cancel()
            answer(given)

        self.app.push_screen(dialog, answered)

    def do_score_undo(self) -> None:
        """Take the last score back."""
        self._work(self.controller.rewards.undo())

    def do_prompt_enter(self) -> None:
        """Go to the prompt."""
        self.go("prompt")

    def do_session_new(self) -> None:
        """Begin a new conversation."""
        self.controller.new_session()
        self._show("chat")
        self.go("prompt")

    def do_session_end(self) -> None:
        """Ask whether to end the marked session: that can't be undone."""
        session_id = self._state.marked_session
        if not session_id:
            self._work(self.controller.end_session(session_id))  # reports that no session is open
            return

        def answer(yes: bool | None) -> None:
            if yes:
                self._work(self.controller.end_session(session_id))

        about = "Nothing more can be said in it. Its episodes stay, and can still be scored."
        question = f"End “{self._state.title(session_id)}”?"
        self._ask(ConfirmScreen(question, about, "End"), answer)

    def do_session_topic(self) -> None:
        """Ask what the marked session is about."""
        session_id = self._state.marked_session
        if refusal := self.controller.topic_refusal(session_id):
            self.notify(refusal, severity="warning", markup=False)
            return

        def answer(text: str | None) -> None:
            if text is not None:
                self._work(self.controller.set_topic(session_id, text))

        known = ", ".join(map(one_line, self._state.topics()))
        hint = f"scores are compared within a topic; there are: {known}"
        question = f"What “{self._state.title(session_id)}” is about"
        self._ask(AskScreen(question, self._state.sessions[session_id].topic, hint), answer)

    def do_compare_new(self) -> None:
        """Ask how many replies, then compare them; or go back to those that wait for a score."""
        before = self._comparison if self._comparison and self._comparison.turns else None
        group_id = next(iter(unscored_groups(self._state)), "")

        def answer(text: str | None) -> None:
            if text is None:
                return
            if text.strip():
                self._compare(Comparison(self.controller, int(text)))
            elif before is not None and not (before.scored and group_id):
                self._compare(before)
            else:
                self._work(self._reopen(group_id))

        self._ask(GroupSizeScreen(again=before is not None or bool(group_id)), answer)

    def _compare(self, comparison: Comparison) -> None:
        self._comparison = comparison
        super()._compare(comparison)

    async def _reopen(self, group_id: str) -> None:
        """Open a comparison that was begun before, here or in another view."""
        comparison = await Comparison.of_group(self.controller, group_id)
        if comparison is None:
            self.notify("nothing is kept of the replies that wait for a score")
        elif self.is_active:
            self._compare(comparison)

    def do_turn_interrupt(self) -> None:
        """Stop the turn in flight; without one do nothing."""
        self.interrupt()

    def do_pane_next(self) -> None:
        """Go to the next pane."""
        self._go_by(1)

    def do_pane_previous(self) -> None:
        """Go to the pane before."""
        self._go_by(-1)

    def _go_by(self, by: int) -> None:
        order = panes_of(training=self.context.training)
        self.go(order[(order.index(self.scope) + by) % len(order)])

    def do_pane_sessions(self) -> None:
        """Go to the sessions."""
        self.go("sessions")

    def do_pane_chat(self) -> None:
        """Go to the conversation."""
        self.go("chat")

    def do_pane_tokens(self) -> None:
        """Go to the tokens."""
        self.go("tokens")

    def do_pane_training(self) -> None:
        """Go to training."""
        self.go("training")

    def do_pane_system(self) -> None:
        """Go to the machine and the processes."""
        self.go("system")

    def do_pane_logs(self) -> None:
        """Go to the log."""
        self.go("logs")
