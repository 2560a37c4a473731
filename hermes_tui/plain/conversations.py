"""The commands about whole conversations: search, retry, edit, rename, delete."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine

from hermes_tui.core.changes import ChatTurn
from hermes_tui.core.compare_replies import Comparison
from hermes_tui.core.controller import Controller
from hermes_tui.core.lessons import is_lesson, moved
from hermes_tui.core.sanitize import clean, one_line, visible
from hermes_tui.plain import formatting as lines
from hermes_tui.plain.commands import Usage
from hermes_tui.plain.compare_replies import PlainComparison
from hermes_tui.plain.reporter import Reporter

NUM_TOKENS = 5
"""Tokens that ``/learned`` names."""


class ConversationCommands:
    """A mixin of ``Plain``."""

    controller: Controller
    _reporter: Reporter
    _comparison: PlainComparison
    _failed: bool

    @abstractmethod
    def _begin(self, speaking: Coroutine[object, object, None]) -> None:
        """Run what says something to the agent."""

    async def do_search(self, text: str) -> None:
        """List the turns of all sessions that contain a text."""
        if not text:
            raise Usage("/search takes a text, such as /search the blue file")
        state = self.controller.state
        numbers = {
            session.session_id: number
            for number, session in enumerate(lines.newest_sessions(state), 1)
        }
        hits = await self.controller.search(text)
        for hit in hits:
            number = numbers.get(hit.session_key)
            where = f"session {number}" if number else "a session that is not listed"
            said = one_line(f"{hit.before}{hit.match}{hit.after}")
            self._reporter.line(f"[found] {where}: {said}")
        if not hits:
            self._reporter.line(f"[found] nothing with “{clean(text)}”")

    def do_retry(self, _: str) -> None:
        """Answer the last message again; with a trainer the two replies are compared."""
        turn = self._last_turn()

        async def retry() -> None:
            if self.controller.state.info.training:
                comparison = await Comparison.of_retry(self.controller, turn)
                self._failed |= comparison is None
                if comparison is not None:
                    await self._comparison.judge(comparison)
            else:
                self._failed |= not await self.controller.send_instead(turn, turn.user_text)

        self._begin(retry())

    def do_edit(self, text: str) -> None:
        """Say something else in place of the last message, in a branch."""
        turn = self._last_turn()
        if not text:
            raise Usage("/edit takes the message as it should have been")

        async def edit() -> None:
            self._failed |= not await self.controller.send_instead(turn, text)

        self._begin(edit())

    def _last_turn(self) -> ChatTurn:
        turn = self.controller.branches.last_turn(self.controller.state.selected)
        if turn is None:
            raise Usage("there is no reply yet, or it is still coming")
        return turn

    async def do_learned(self, _: str) -> None:
        """Tell what the newest step changed."""
        state = self.controller.state
        step = next(filter(is_lesson, reversed(state.steps)), None)
        if step is None:
            raise Usage("no step has trained anything yet")
        lesson = await self.controller.lessons.of(step)
        self._reporter.line(f"[step] {lines.step_text(step)}")
        for token in lesson.most_moved[:NUM_TOKENS]:
            by = moved(token) or 0.0
            how = "likelier" if by > 0 else "less likely"
            self._reporter.line(f"[learned] “{visible(token.text)}” {how}: {by:+.3f}")
        for row in lesson.answers:
            said = row.text if not row.reason else f"no answer: {row.reason}"
            asked = one_line(row.prompt)
            self._reporter.line(f"[learned] v{row.policy_version}, “{asked}”: {one_line(said)}")

    async def do_rename(self, text: str) -> None:
        """Give the open session a name."""
        if not text:
            raise Usage("/rename takes a name")
        if not self.controller.state.info.training:
            raise Usage("training is off: names are kept by the trainer")
        await self.controller.rename_session(self._open_session(), text)

    def do_delete(self, _: str) -> None:
        """Delete the open session."""
        self.controller.delete_session(self._open_session())

    def do_restore(self, _: str) -> None:
        """Bring back what was deleted last."""
        self.controller.restore_session()

    def _open_session(self) -> str:
        if not self.controller.state.selected:
            raise Usage("no session is open; /sessions lists them")
        return self.controller.state.selected
