"""``hermes-tui --plain``: the screen's use cases line by line.

For screen readers, pipes and dumb terminals. What is typed goes to the agent; a line that begins
with a slash is a command. Everything that happens is a line of its own that begins with a word in
brackets; the agent's words stream behind ``agent:``. Nothing is coloured, moved or redrawn.

On a terminal every line acts at once, as a key does on the screen. From a pipe the lines act in
order: each waits until the agent has spoken, ``/interrupt`` alone does not.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import deque
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import TextIO

from hermes_tui.config.paths import RunDir
from hermes_tui.core.changes import (
    Change,
    EpisodeLoaded,
    Notice,
    PendingApproval,
    ToolPart,
    TurnChanged,
    TurnEnded,
)
from hermes_tui.core.commands import BY_WORD, COMMANDS, called
from hermes_tui.core.controller import Controller
from hermes_tui.core.errors import EXIT_FAILED, EXIT_OK, exit_code
from hermes_tui.core.models import EpisodeDetail
from hermes_tui.core.reward_text import parse_reward
from hermes_tui.core.sanitize import clean, one_line
from hermes_tui.core.stack_status import SUPERVISOR
from hermes_tui.plain import formatting as lines
from hermes_tui.plain.commands import Usage, index_of
from hermes_tui.plain.compare_replies import PlainComparison
from hermes_tui.plain.conversations import ConversationCommands
from hermes_tui.plain.reporter import Reporter
from hermes_tui.supervisor.logs import tail_lines
from hermes_tui_common.errors import HermesTuiError

NUM_LOG_LINES = 20
"""Lines that ``/logs`` shows by default."""

NUM_TOKENS = 40
"""Tokens that ``/tokens`` shows by default."""

_NOTHING = object()
"""No line whose time has come; None is the end of the lines."""


class Plain(ConversationCommands):
    """One conversation over a controller, in lines.

    Args:
        controller: the use cases, over a backend that has not been started.
        out: where everything goes.
        interactive: whether a person types the lines at a terminal.
        stop_command: the command line that ends the stack, for the last words.
    """

    def __init__(
        self,
        controller: Controller,
        out: TextIO,
        *,
        interactive: bool,
        stop_command: str = "hermes-tui stop",
    ) -> None:
        self.controller = controller
        controller.notifier.action_label = called
        self._reporter = Reporter(controller, out)
        self._interactive = interactive
        self._stop_command = stop_command
        self._lines: deque[str | None] = deque()
        self._wake = asyncio.Event()
        self._turns: set[asyncio.Task[None]] = set()
        self._comparison = PlainComparison(controller, self._reporter.line)
        self._detail: EpisodeDetail | None = None
        self._commanding = False
        self._failed = False
        self._left = False

    # Running -------------------------------------------------------------------------------

    def put(self, line: str | None) -> None:
        """Take a line that was typed; None is the end of them."""
        self._lines.append(line)
        self._wake.set()

    async def run(self) -> int:
        """Talk until the lines end or the person leaves; return the exit code."""
        try:
            await self.controller.start(self._reporter.report_start)
        except HermesTuiError as error:
            self._reporter.line(f"[error] {one_line(str(error))}")
            return exit_code(error)
        try:
            self._reporter.report_rows(quiet=True)
            self.controller.notifier.listen(self._on_change)
            self._reporter.greet()
            if self._interactive:
                await self._reopen()
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                watching = tasks.create_task(self.controller.watch())
                await self._take_lines()
                for task in (watching, *self._turns):
                    task.cancel()  # a turn goes on in the stack
        finally:
            await self.controller.close()
        failed = self._failed or self._reporter.has_errors
        return EXIT_FAILED if failed and not self._interactive else EXIT_OK

    async def _reopen(self) -> None:
        """Go on with the session that was open when a view was left."""
        await self.controller.reopen()
        state = self.controller.state
        if not state.selected:
            return
        for turn in state.turns.get(state.selected, []):
            self._reporter.skip(turn)
        title = clean(state.title(state.selected))
        self._reporter.line(f"[notice] going on with “{title}”; /new begins a new session")
        for message in self.controller.outbox.of(state.selected):
            self._reporter.line(f"[queued] “{clean(message.text)}” goes before your next message")

    def interrupted(self) -> bool:
        """Take ctrl+c: stop the turn in flight. Return whether there was one."""
        running = self.controller.state.running_turn(self.controller.state.selected)
        if not (running or self._comparison.running):
            return False
        self._lines.appendleft("/interrupt")
        self._wake.set()
        return True

    async def _take_lines(self) -> None:
        while not self._left:
            if (line := self._next()) is not _NOTHING:
                assert line is None or isinstance(line, str)
                await self._take(line)
                continue
            self._wake.clear()
            await self._wake.wait()

    def _next(self) -> object:
        """Return the next line whose time has come, or _NOTHING."""
        turn = self.controller.state.running_turn(self.controller.state.selected)
        if self._interactive or self._question or not (self._turns or turn):
            return self._lines.popleft() if self._lines else _NOTHING
        if turn and turn.parts and "/interrupt" in self._lines:  # before that nothing runs yet
            self._lines.remove("/interrupt")
            return "/interrupt"
        return _NOTHING

    @property
    def _question(self) -> PendingApproval | None:
        """The question that the next line answers: of the open session, or of what was sent here.

        What another view caused elsewhere must not swallow a message; ``/answer`` answers it.
        """
        return next(filter(self._concerns_us, self._questions), None)

    @property
    def _questions(self) -> list[PendingApproval]:
        self.controller.approvals.drop_expired()
        return self.controller.state.approval_queue

    def _concerns_us(self, request: PendingApproval) -> bool:
        turn = self.controller.state.running_turn(request.session_id)
        opened = request.session_id == self.controller.state.selected
        return opened or (turn is not None and turn.source == "sent")

    async def _take(self, line: str | None) -> None:
        if (question := self._question) and not (line or "").startswith("/"):
            await self._answer(question, line)
            if line is not None:
                return
        text = (line or "").strip()
        if line is None:
            self._reporter.line(self._last_words)
            self._left = True
        elif text.startswith("/") and not text.startswith("//"):
            await self._command(text[1:])
        elif text:
            self._say(text.removeprefix("/"))

    async def _command(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        self._commanding = True
        try:
            if word not in BY_WORD:
                near = difflib.get_close_matches(word, BY_WORD, n=1)
                hint = f"did you mean /{near[0]}?" if near else "/help names them all"
                raise Usage(f"there is no command /{clean(word)}; {hint}")
            done: Awaitable[object] | None = getattr(self, f"do_{word}")(rest.strip())
            if done is not None:
                await done
        except Usage as error:
            self._failed = True
            self._reporter.line(f"[error] {error}")
        finally:
            self._commanding = False

    def _say(self, text: str) -> None:
        if reason := self.controller.refusal():
            self._failed = True
            self._reporter.line(f"[error] {reason}")
            return
        if self.controller.queues:
            self._reporter.line(
                "[queued] it goes when the agent has spoken; /unqueue takes it back"
            )
        elif not self._interactive:  # at a terminal it can be read already
            self._reporter.line(f"you: {clean(text)}")
        self._begin(self._speak(text))

    def _begin(self, speaking: Coroutine[object, object, None]) -> None:
        turn = self._tasks.create_task(speaking)
        self._turns.add(turn)
        turn.add_done_callback(self._end_turn)

    def _end_turn(self, turn: asyncio.Task[None]) -> None:
        self._turns.discard(turn)
        self._wake.set()

    async def _speak(self, text: str) -> None:
        self._failed |= not await self.controller.send(text)

    async def _answer(self, request: PendingApproval, line: str | None) -> None:
        """Answer what the agent asked; the end of the lines is a no."""
        choices = request.choices
        text = (line or "").strip()
        if line is None:
            text = lines.DENY if lines.DENY in choices else ""
            self._reporter.line("[notice] the input has ended: nobody answers, which is a no")
        elif not request.free and text.lower() in lines.YES_OR_NO:
            text = lines.YES_OR_NO[text.lower()](choices)
        elif text.isdecimal() and 1 <= int(text) <= len(choices):
            text = choices[int(text) - 1]
        if text and not request.free and text not in choices:
            known = ", ".join(map(clean, choices))
            self._reporter.line(f"[error] answer with yes, no or one of: {known}")
        elif text:  # else the agent's own deadline decides
            await self.controller.approvals.answer(request, text)

    def _on_change(self, change: Change) -> None:
        match change:
            case Notice(severity=severity):
                self._failed |= self._commanding and severity != "information"
            case PendingApproval() | TurnChanged():
                self._wake.set()  # what comes next may depend on it
            case TurnEnded(turn=turn):
                self._failed |= turn.state == "failed"
            case EpisodeLoaded(detail=detail):
                self._detail = detail
        self._reporter.change(change)

    # Commands ------------------------------------------------------------------------------

    def do_good(self, _: str) -> Awaitable[object]:
        """Score +1."""
        return self.controller.rewards.score(1.0)

    def do_bad(self, _: str) -> Awaitable[object]:
        """Score -1."""
        return self.controller.rewards.score(-1.0)

    def do_score(self, text: str) -> Awaitable[object]:
        """Score exactly."""
        try:
            reward = parse_reward(text)
        except ValueError:
            raise Usage(f"/score takes a number, such as /score 0.3, not “{clean(text)}”") from None
        return self.controller.rewards.score(reward)

    def do_why(self, text: str) -> Awaitable[object]:
        """Say why, with the score."""
        if not text:
            raise Usage("/why takes a sentence, such as /why too long and never to the point")
        return self.controller.rewards.explain(text)

    def do_w(self, text: str) -> Awaitable[object]:
        """Say why, with the score: short."""
        return self.do_why(text)

    def do_undo(self, _: str) -> Awaitable[object]:
        """Take the last score back."""
        return self.controller.rewards.undo()

    def do_unqueue(self, _: str) -> None:
        """Take the newest message that still waits out of the queue."""
        waiting = self.controller.outbox.of(self.controller.state.selected)
        if not waiting:
            raise Usage("no message waits")
        text = self.controller.outbox.remove(waiting[-1].message_id)
        self._reporter.line(f"[queued] taken back: {clean(text)}")

    def do_new(self, _: str) -> None:
        """Begin a new conversation."""
        self.controller.new_session()
        self._reporter.line("[notice] a new session begins with your next message")

    def do_end(self, _: str) -> Awaitable[None]:
        """End the session."""
        if not self.controller.state.selected:
            raise Usage("no session is open; /sessions lists them")
        return self.controller.end_session(self.controller.state.selected)

    async def do_topic(self, text: str) -> None:
        """Say what the session is about, or tell it."""
        state = self.controller.state
        if text:
            await self.controller.set_topic(state.selected, text)
        elif session := state.sessions.get(state.selected):
            self._reporter.line(f"[notice] this session is about {clean(session.topic)}")
        else:
            raise Usage("no session is open; /sessions lists them")

    def do_interrupt(self, _: str) -> Awaitable[None]:
        """Stop the turn in flight."""
        if self._comparison.running:
            return self._comparison.interrupt()
        return self.controller.interrupt()

    async def do_answer(self, text: str) -> None:
        """Answer what the agent asks."""
        if not self._questions:
            raise Usage("the agent asks nothing now")
        await self._answer(self._questions[0], text)

    def do_compare(self, text: str) -> None:
        """Say the same to several siblings."""
        request = self._comparison.read(text)
        if text and request is None:
            raise Usage("/compare takes how many, 2 to 9, and a message: /compare 3 Greet Ada")

        async def compare() -> None:
            comparison = self._comparison
            done = comparison.ask(*request) if request else comparison.reopen()
            self._failed |= not await done

        self._begin(compare())

    async def do_pick(self, text: str) -> None:
        """Pick the best replies, which scores them all."""
        if problem := await self._comparison.pick(text):
            raise Usage(problem)

    async def do_unpick(self, _: str) -> None:
        """Take the replies' scores back."""
        if problem := await self._comparison.undo():
            raise Usage(problem)

    def do_sessions(self, _: str) -> None:
        """List the sessions."""
        self._reporter.all(lines.session_lines(self.controller.state))

    async def do_open(self, text: str) -> None:
        """Open a session, and one of its episodes."""
        state = self.controller.state
        sessions = lines.newest_sessions(state)
        session_number, _, episode_number = text.partition(" ")
        session = sessions[index_of(session_number, len(sessions), "session")]
        episodes = state.episodes_of(session.session_id)
        episode_id = ""
        if episode_number:
            episode_id = episodes[index_of(episode_number, len(episodes), "episode")].episode_id
        await self.controller.open_session(session.session_id, episode_id)
        self.do_chat("")
        self._reporter.report_target()

    def do_chat(self, _: str) -> None:
        """Show the conversation."""
        state = self.controller.state
        turns = state.turns.get(state.selected, [])
        self._reporter.all(lines.conversation_lines(turns))
        for turn in turns:
            self._reporter.skip(turn)

    def do_result(self, _: str) -> None:
        """Show the whole answer of the newest tool call."""
        state = self.controller.state
        for turn in reversed(state.turns.get(state.selected, [])):
            for part in reversed(turn.parts):
                if isinstance(part, ToolPart) and part.result is not None:
                    self._reporter.all(lines.result_lines(part))
                    return
        raise Usage("no tool has answered in this session")

    def do_tokens(self, text: str) -> None:
        """Show sampled tokens."""
        if text and not (text.isdecimal() and int(text)):
            raise Usage(f"/tokens takes how many, such as /tokens 100, not “{clean(text)}”")
        if self._detail is None or self._detail.row.session_id != self.controller.state.selected:
            raise Usage("no tokens are recorded here yet")
        self._reporter.line(f"[tokens] {self._reporter.name(self._detail.row.episode_id)}")
        self._reporter.all(lines.token_lines(self._detail, int(text or NUM_TOKENS)))

    def do_export(self, folder: str) -> Awaitable[None]:
        """Write the shown trajectory to a file."""
        return self.controller.export(self.controller.state.shown, Path(folder or ".").absolute())

    def do_training(self, _: str) -> None:
        """Show what the trainer does, and the last step."""
        state = self.controller.state
        if not state.info.training:
            raise Usage("training is off: there is nothing to show")
        self._reporter.line(f"[trainer] {lines.trainer_text(state.trainer)}")
        if state.unmoved:
            self._reporter.line(f"[trainer] the last scores moved nothing: {state.unmoved}")
        for step in state.steps[-1:]:
            self._reporter.line(f"[step] {lines.step_text(step)}")
            self._reporter.all(f"[watch] {one_line(text)}" for text in step.warnings)

    def do_pause(self, _: str) -> Awaitable[None]:
        """Hold training."""
        return self._hold(held=True)

    def do_resume(self, _: str) -> Awaitable[None]:
        """Let training go on."""
        return self._hold(held=False)

    def _hold(self, *, held: bool) -> Awaitable[None]:
        if not self.controller.state.info.training:
            raise Usage("training is off: there is nothing to hold")
        return self.controller.hold_training(held)

    async def do_status(self, _: str) -> None:
        """Show the processes."""
        await self.controller.refresh_processes()
        self._reporter.all(lines.process_lines(self.controller.state))

    def do_rollback(self, version: str) -> Awaitable[None]:
        """Make a kept version current again."""
        known = [str(kept) for kept in self.controller.state.trainer.kept_versions]
        if version not in known:
            raise Usage(f"/rollback takes a kept version: {', '.join(known) or 'there is none'}")
        return self.controller.roll_back(int(version))

    def do_restart(self, name: str) -> Awaitable[None]:
        """Restart a process."""
        known = self.controller.state.processes
        if name not in known:
            raise Usage(f"/restart takes one of: {', '.join(known)}")
        return self.controller.restart(name)

    def do_logs(self, text: str) -> None:
        """Show the end of a log."""
        state = self.controller.state
        words = text.split()
        number = words.pop() if words and words[-1].isdecimal() else str(NUM_LOG_LINES)
        name = " ".join(words) or SUPERVISOR
        known = [SUPERVISOR, *state.processes]
        log = RunDir(Path(state.info.run_dir)).log(name) if name in known else None
        if log is None or not log.exists():
            raise Usage(f"/logs takes one of: {', '.join(known)}")
        self._reporter.all(f"[log] {line}" for line in tail_lines(log, int(number)))

    def do_help(self, _: str) -> None:
        """Show the commands."""
        for command in COMMANDS:
            usage = f"/{command.word} {command.takes}".rstrip()
            self._reporter.line(f"{usage}: {command.help}")
        self._reporter.line("A line that begins with two slashes is said with one.")

    async def do_quit(self, how: str) -> None:
        """Leave; the stack runs on unless it is to stop."""
        if how not in ("", "stop"):
            raise Usage("/quit leaves the stack running; /quit stop ends it")
        if how == "stop":
            self._reporter.line("[notice] stopping everything")
            await self.controller.notifier.attempt(self.controller.shutdown())
        else:
            self._reporter.line(self._last_words)
        self._left = True

    @property
    def _last_words(self) -> str:
        """What is said when the stack was not stopped from here."""
        state = self.controller.state
        if state.stopped:
            return f"[notice] {clean(state.lost)}"
        num_turns = sum(state.running_turn(session_id) is not None for session_id in state.turns)
        replies = {0: "", 1: ", and so does the reply"}.get(num_turns, ", and so do the replies")
        return f"[notice] the stack runs on{replies}; `{self._stop_command}` ends it"
