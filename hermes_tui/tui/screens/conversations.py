"""What a person does with whole conversations: search, retry, edit, rename, delete."""

from __future__ import annotations

from collections.abc import Callable

from textual.screen import ScreenResultType

from hermes_tui.core.changes import ChatTurn
from hermes_tui.core.compare_replies import Comparison
from hermes_tui.core.lessons import Lesson, is_lesson
from hermes_tui.core.models import StepRow
from hermes_tui.tui import messages
from hermes_tui.tui.screens.compare_replies import CompareScreen
from hermes_tui.tui.screens.dialogs import AskScreen, Dialog
from hermes_tui.tui.screens.layout import PanesScreen
from hermes_tui.tui.screens.lesson import LessonScreen
from hermes_tui.tui.screens.search import SearchScreen
from hermes_tui.tui.widgets.chat_pane import ChatPane
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui_services.api.wire import SearchHit


class NameScreen(AskScreen):
    """Asks for a session's name."""

    REPLACES = False

    def problem(self, text: str) -> str:
        """Return what is wrong with a name; empty when nothing is."""
        return (
            "" if 0 < len(text.strip()) <= MAX_NAME_CHARS else f"1 to {MAX_NAME_CHARS} characters"
        )


MAX_NAME_CHARS = 80
"""Longest name of a session: more than any list shows."""


class ConversationsScreen(PanesScreen):
    """Calls the controller for what concerns whole conversations."""

    _editing: ChatTurn | None = None
    """The turn whose message is edited in the prompt; None for none."""
    _hit: tuple[SearchHit, str] | None = None
    """What is gone to once its conversation is shown, and the text that was searched."""

    def _ask(
        self, dialog: Dialog[ScreenResultType], answer: Callable[[ScreenResultType | None], None]
    ) -> None:
        """Open a dialog, unless one is open: a key pressed twice opens one."""
        if self.is_active:
            self.app.push_screen(dialog, answer)

    # Search --------------------------------------------------------------------------------

    def do_search(self) -> None:
        """Ask for a text, and open the turn that is chosen of those with it."""

        def answer(chosen: tuple[SearchHit, str] | None) -> None:
            if chosen is not None:
                self._work(self._open_hit(*chosen))

        self._ask(SearchScreen(self.controller), answer)

    async def _open_hit(self, hit: SearchHit, text: str) -> None:
        await self.controller.open_session(hit.session_key)
        self.go("chat")
        self._hit, self._reload_chat = (hit, text), True
        self.paint_soon()

    async def paint(self) -> None:
        """Show what has changed, then what was searched for: its conversation is there now."""
        await super().paint()
        if self._hit is not None:
            (hit, text), self._hit = self._hit, None
            view = self.query_one(ChatPane).view
            if not (view.find_at(hit, text) or view.find(text)):
                self.notify("that turn is not kept here any more", markup=False)

    # Retry and edit ------------------------------------------------------------------------

    def on_retry_requested(self, _: messages.RetryRequested) -> None:
        """Answer the last message again, beside the reply there is."""
        turn = self.controller.branches.last_turn(self._state.selected)
        if turn is None:
            self.notify("there is no reply yet to try again", markup=False)
        elif turn.state == "failed" and not turn.parts:
            self.run_worker(self.controller.send(turn.user_text), group="turns")
        elif self.context.training:
            self._work(self._retry(turn))
        else:
            self.run_worker(self.controller.send_instead(turn, turn.user_text), group="turns")

    async def _retry(self, turn: ChatTurn) -> None:
        comparison = await Comparison.of_retry(self.controller, turn)
        if comparison is not None and self.is_active:
            self.app.run_worker(comparison.run(), group="compare")
            self._compare(comparison)

    def _compare(self, comparison: Comparison) -> None:
        def left(_: None) -> None:
            if comparison.retried and comparison.picked == {1}:  # the new reply is the better one
                self._work(self.controller.open_session(comparison.turns[1].session_id))

        self.app.push_screen(CompareScreen(self.controller, self.context, comparison), left)

    def on_edit_requested(self, _: messages.EditRequested) -> None:
        """Put the last message into the prompt; sent again, it begins a branch."""
        turn = self.controller.branches.last_turn(self._state.selected)
        if turn is None:
            self.notify("there is no message yet to edit", markup=False)
            return
        prompt = self.query_one(Prompt)
        prompt.do_prompt_clear()
        prompt.load_text(turn.user_text)
        prompt.move_cursor(prompt.document.end)
        self._edit(turn)
        self.go("prompt")

    def _edit(self, turn: ChatTurn | None) -> None:
        self._editing = turn
        box = self.query_one("#prompt-box").set_class(turn is not None, "-editing")
        box.border_title = "edits your last message" if turn else ""
        leave = self.context.keys.label("prompt_leave")
        box.border_subtitle = (
            f"enter says it in a branch · {leave} keeps it as it was" if turn else ""
        )

    def _leave_prompt(self) -> None:
        """Stop editing; else what leaving the prompt does."""
        if self._editing is None:
            super()._leave_prompt()
            return
        self._edit(None)
        self.query_one(Prompt).do_prompt_clear()

    def _say_edited(self, text: str) -> bool:
        """Say an edited message in a branch; return whether one was edited."""
        turn = self._editing
        if turn is None:
            return False
        self._edit(None)
        self.run_worker(self._send_instead(turn, text), group="turns")
        return True

    async def _send_instead(self, turn: ChatTurn, text: str) -> None:
        if not await self.controller.send_instead(turn, text):
            self.query_one(Prompt).take_back(text)

    # What did it learn? --------------------------------------------------------------------

    def do_lesson(self) -> None:
        """Show what the newest step changed."""
        step = next(filter(is_lesson, reversed(self._state.steps)), None)
        if step is None:
            self.notify("no step has trained anything yet", markup=False)
        else:
            self._work(self._show_lesson(step))

    async def _show_lesson(self, step: StepRow) -> None:
        lessons: list[Lesson] = []

        async def read() -> None:
            lessons.append(await self.controller.lessons.of(step))

        if not await self.controller.notifier.attempt(read()):
            return
        self.lesson_seen()

        def answer(take_back: bool | None) -> None:
            if take_back:
                self._work(self.controller.roll_back(lessons[0].before))

        self._ask(LessonScreen(lessons[0], self._state), answer)

    # Rename and delete ---------------------------------------------------------------------

    def on_rename_requested(self, _: messages.RenameRequested) -> None:
        """Ask for the marked session's name."""
        session_id = self._state.marked_session
        if not session_id or not self.context.training:
            about = (
                "no session is marked"
                if self.context.training
                else "training is off: names are kept by the trainer"
            )
            self.notify(about, markup=False)
            return

        def answer(name: str | None) -> None:
            if name is not None:
                self._work(self.controller.rename_session(session_id, name.strip()))

        title = self._state.title(session_id).removeprefix("↳ ")
        self._ask(NameScreen("Name of the session", title[:MAX_NAME_CHARS]), answer)

    def on_delete_requested(self, _: messages.DeleteRequested) -> None:
        """Delete the marked session; that can be taken back for some seconds."""
        self.controller.delete_session(self._state.marked_session)

    def do_session_restore(self) -> None:
        """Bring back what was deleted last."""
        self.controller.restore_session()
