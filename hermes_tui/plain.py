"""``hermes-tui --plain``: the screen's use cases line by line.

For screen readers, pipes and dumb terminals. What is typed goes to the agent; a line that begins
with a slash is a command. Everything that happens is a line of its own that begins with a word in
brackets; the agent's words stream behind ``agent:``. Nothing is coloured, moved or redrawn.

On a terminal every line acts at once, as a key does on the screen. From a pipe the lines act in
order: each waits until the agent has spoken, ``/interrupt`` alone does not.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import difflib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hermes_tui import plain_lines as lines
from hermes_tui.actions import BY_ID
from hermes_tui.core.controller import Controller
from hermes_tui.core.errors import (
    EXIT_FAILED,
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TERMINATED,
    exit_code,
)
from hermes_tui.core.events import (
    ApprovalRequested,
    Change,
    EpisodeLoaded,
    Notice,
    RowsChanged,
    ToolPart,
    Turn,
    TurnChanged,
)
from hermes_tui.core.rows import EpisodeDetail, Stage
from hermes_tui.core.text import clean, one_line
from hermes_tui.plain_commands import BY_WORD, COMMANDS, Usage, called, place
from hermes_tui.plain_compare import PlainComparison
from hermes_tui_services.errors import HermesTuiError

if TYPE_CHECKING:
    from hermes_tui.core.config import Config

NUM_TOKENS = 40
"""Tokens that ``/tokens`` shows when it is not told how many."""

_EXIT_BY_SIGNAL = {signal.SIGTERM: EXIT_TERMINATED, signal.SIGHUP: EXIT_HUNG_UP}

_TOLD_STATES = frozenset({"claimed", "trained", "dropped", "unscored"})
"""Episode states worth a line; a score says itself what it did."""


class Plain:
    """One conversation over a controller, in lines.

    Args:
        controller: the use cases, over a backend that has not been started.
        out: where everything goes.
        interactive: whether a person types the lines at a terminal.
    """

    def __init__(self, controller: Controller, out: TextIO, *, interactive: bool) -> None:
        self.controller = controller
        controller.call = called
        self._out = out
        self._interactive = interactive
        self._lines: deque[str | None] = deque()
        self._wake = asyncio.Event()
        self._mid_line = False
        self._speeches: dict[str, lines.Speech] = {}
        self._turns: set[asyncio.Task[None]] = set()
        self._comparison = PlainComparison(controller, self._line)
        self._detail: EpisodeDetail | None = None
        self._known: dict[str, object] = {}
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
            await self.controller.start(self._report)
        except HermesTuiError as error:
            self._line(f"[error] {one_line(str(error))}")
            return exit_code(error)
        try:
            self._note_news(quiet=True)
            self.controller.listen(self._on_change)
            self._greet()
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                watching = tasks.create_task(self.controller.watch())
                await self._take_lines()
                for task in (watching, *self._turns):
                    task.cancel()  # a turn goes on in the stack
        finally:
            await self.controller.close()
        return EXIT_FAILED if self._failed and not self._interactive else EXIT_OK

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
        if not self._turns or self._interactive or self._question:
            return self._lines.popleft() if self._lines else _NOTHING
        turn = self.controller.state.running_turn(self.controller.state.selected)
        if turn and turn.parts and "/interrupt" in self._lines:  # before that nothing runs yet
            self._lines.remove("/interrupt")
            return "/interrupt"
        return _NOTHING

    @property
    def _question(self) -> ApprovalRequested | None:
        """The oldest question of the agent that waits for an answer."""
        self.controller.drop_expired()
        return next(iter(self.controller.state.asked.values()), None)

    async def _take(self, line: str | None) -> None:
        if (question := self._question) and not (line or "").startswith("/"):
            await self._answer(question, line)
            if line is not None:
                return
        text = (line or "").strip()
        if line is None:
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
            done: Awaitable[None] | None = getattr(self, f"do_{word}")(rest.strip())
            if done is not None:
                await done
        except Usage as error:
            self._failed = True
            self._line(f"[error] {error}")
        finally:
            self._commanding = False

    def _say(self, text: str) -> None:
        if reason := self.controller.refusal():
            self._failed = True
            self._line(f"[error] {reason}")
            return
        if not self._interactive:  # at a terminal it can be read already
            self._line(f"you: {clean(text)}")
        self._begin(self._speak(text))

    def _begin(self, speaking: Coroutine[object, object, None]) -> None:
        turn = self._tasks.create_task(speaking)
        self._turns.add(turn)
        turn.add_done_callback(self._end_turn)

    def _end_turn(self, turn: asyncio.Task[None]) -> None:
        self._turns.discard(turn)
        self._wake.set()

    async def _speak(self, text: str) -> None:
        if not await self.controller.send(text):
            self._failed = True
            return
        turn = next(s.turn for s in reversed(self._speeches.values()) if s.turn.user_text == text)
        self._failed |= turn.state == "failed"
        self._line(f"[turn] {lines.turn_words(turn)}")

    async def _answer(self, request: ApprovalRequested, line: str | None) -> None:
        """Answer what the agent asked; the end of the lines is a no."""
        choices = request.choices
        text = (line or "").strip()
        if line is None:
            text = "deny" if "deny" in choices else ""
        elif text.isdecimal() and 1 <= int(text) <= len(choices):
            text = choices[int(text) - 1]
        if text and not request.free and text not in choices:
            self._line(f"[error] answer with one of: {', '.join(map(clean, choices))}")
        elif text:  # else the agent's own deadline decides
            await self.controller.approve(request, text)

    # Telling -------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._mid_line = bool(text) and not text.endswith("\n")

    def _line(self, text: str) -> None:
        self._write(f"\n{text}\n" if self._mid_line else f"{text}\n")

    def _all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._line(text)

    def _report(self, stage: Stage) -> None:
        text = f": {one_line(stage.text)}" if stage.text else ""
        told = f"[start] {one_line(stage.process)} {stage.state}{text}"
        if self._known.get("start") != told:
            self._known["start"] = told
            self._line(told)

    def _greet(self) -> None:
        info = self.controller.state.info
        version = self.controller.state.trainer.policy_version
        serving = f", policy v{version}" if version is not None else ""
        self._line(f"[ready] {one_line(info.model)}{serving}. Type to the agent; /help for more.")

    def _on_change(self, change: Change) -> None:
        match change:
            case Notice(text=text, severity=severity):
                word = {"information": "notice"}.get(severity, severity)
                self._failed |= self._commanding and severity != "information"
                self._line(f"[{word}] {clean(text)}")
            case ApprovalRequested():
                self._ask(change)
            case TurnChanged(turn=turn):
                self._tell_turn(turn)
            case EpisodeLoaded(detail=detail):
                self._detail = detail
            case RowsChanged():
                self._note_news()

    def _tell_turn(self, turn: Turn) -> None:
        self._wake.set()
        speech = self._speeches.setdefault(turn.turn_id, lines.Speech(turn))
        if turn.session_id != self.controller.state.selected:
            return
        for text, begins in speech.news():
            self._write(f"\n{text}" if begins and self._mid_line else text)

    def _ask(self, request: ApprovalRequested) -> None:
        self._line(f"[approval] {clean(request.question)}")
        for number, choice in enumerate(request.choices, 1):
            self._line(f"[approval] {number}. {clean(choice)}")
        left = ""
        if request.expires_at is not None:
            left = (
                f"; no answer within {request.expires_at - self.controller.clock():.0f} s is a no"
            )
        self._line(f"[approval] {'type your answer' if request.free else 'which?'}{left}")
        self._wake.set()

    def _note_news(self, *, quiet: bool = False) -> None:
        """Tell what has changed in the rows since the last time."""
        for key, text in self._news():
            if self._known.get(key) == text:
                continue
            self._known[key] = text
            if text and not quiet:
                self._line(text)

    def _news(self) -> Iterable[tuple[str, str]]:
        state = self.controller.state
        for row in state.processes.values():
            reason = f": {one_line(row.reason)}" if row.reason and row.state != "ready" else ""
            yield f"process {row.name}", f"[process] {row.name} is {row.state}{reason}"
        for episodes in state.episodes.values():
            for episode in episodes.values():
                told = episode.state in _TOLD_STATES
                text = f"[episode] {self._name(episode.episode_id)}: {lines.episode_words(episode)}"
                yield episode.episode_id, text if told else ""
        for step in state.steps:
            yield f"step {step.step}", f"[step] {lines.step_words(step)}"
        if state.lost or self._known.get("lost"):
            gone = f"[stack] out of reach: {one_line(state.lost)}"
            yield "lost", gone if state.lost else "[stack] back again"

    def _name(self, episode_id: str) -> str:
        state = self.controller.state
        episode = state.episode(episode_id)
        assert episode
        return f"episode {state.ordinal(episode)} of “{state.title(episode.session_id)}”"

    # Commands ------------------------------------------------------------------------------

    def do_good(self, _: str) -> Awaitable[None]:
        """Score +1."""
        return self.controller.score(1.0)

    def do_bad(self, _: str) -> Awaitable[None]:
        """Score -1."""
        return self.controller.score(-1.0)

    def do_score(self, text: str) -> Awaitable[None]:
        """Score exactly."""
        try:
            reward = float(text.replace(",", ".").replace("−", "-"))
        except ValueError:
            raise Usage(f"/score takes a number, such as /score 0.3, not “{clean(text)}”") from None
        return self.controller.score(reward)

    def do_undo(self, _: str) -> Awaitable[None]:
        """Take the last score back."""
        return self.controller.undo()

    def do_new(self, _: str) -> None:
        """Begin a new conversation."""
        self.controller.new_session()
        self._line("[notice] a new session begins with your next message")

    def do_end(self, _: str) -> Awaitable[None]:
        """End the session."""
        if not self.controller.state.selected:
            raise Usage("no session is open; /sessions lists them")
        return self.controller.end_session()

    def do_interrupt(self, _: str) -> Awaitable[None]:
        """Stop the turn in flight."""
        if self._comparison.running:
            return self._comparison.interrupt()
        return self.controller.interrupt()

    async def do_answer(self, text: str) -> None:
        """Answer what the agent asks."""
        if (question := self._question) is None:
            raise Usage("the agent asks nothing now")
        await self._answer(question, text)

    def do_compare(self, text: str) -> None:
        """Say the same to several siblings."""
        asked = self._comparison.read(text)
        if asked is None:
            raise Usage("/compare takes how many, 2 to 9, and a message: /compare 3 Greet Ada")

        async def compare() -> None:
            self._failed |= not await self._comparison.ask(*asked)

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
        self._all(lines.session_lines(self.controller.state))

    async def do_open(self, text: str) -> None:
        """Open a session, and one of its episodes."""
        state = self.controller.state
        sessions = lines.newest_sessions(state)
        session_number, _, episode_number = text.partition(" ")
        session = sessions[place(session_number, len(sessions), "session")]
        episodes = state.episodes_of(session.session_id)
        episode_id = ""
        if episode_number:
            episode_id = episodes[place(episode_number, len(episodes), "episode")].episode_id
        await self.controller.open_session(session.session_id, episode_id)
        self.do_chat("")

    def do_chat(self, _: str) -> None:
        """Show the conversation."""
        state = self.controller.state
        self._all(lines.conversation_lines(state.turns.get(state.selected, [])))

    def do_result(self, _: str) -> None:
        """Show the whole answer of the newest tool call."""
        state = self.controller.state
        for turn in reversed(state.turns.get(state.selected, [])):
            for part in reversed(turn.parts):
                if isinstance(part, ToolPart) and part.result is not None:
                    self._all(lines.result_lines(part.result))
                    return
        raise Usage("no tool has answered in this session")

    def do_tokens(self, text: str) -> None:
        """Show sampled tokens."""
        if text and not (text.isdecimal() and int(text)):
            raise Usage(f"/tokens takes how many, such as /tokens 100, not “{clean(text)}”")
        if self._detail is None or self._detail.row.session_id != self.controller.state.selected:
            raise Usage("no tokens are recorded here yet")
        self._line(f"[tokens] {self._name(self._detail.row.episode_id)}")
        self._all(lines.token_lines(self._detail, int(text or NUM_TOKENS)))

    def do_export(self, folder: str) -> Awaitable[None]:
        """Write the shown trajectory to a file."""
        return self.controller.export(self.controller.state.shown, Path(folder or ".").absolute())

    def do_training(self, _: str) -> None:
        """Show what the trainer does, and the last step."""
        state = self.controller.state
        if not state.info.training:
            raise Usage("training is off: there is nothing to show")
        self._line(f"[trainer] {lines.trainer_words(state.trainer)}")
        self._all(f"[step] {lines.step_words(step)}" for step in state.steps[-1:])

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
        self._all(lines.process_lines(self.controller.state))

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

    def do_help(self, _: str) -> None:
        """Show the commands."""
        for command in COMMANDS:
            action = BY_ID[command.action]
            usage = f"/{command.word} {command.takes}".rstrip()
            self._line(f"{usage}: {action.title}. {action.help}")
        self._line("A line that begins with two slashes is said with one.")

    async def do_quit(self, how: str) -> None:
        """Leave; the stack runs on unless it is to stop."""
        if how not in ("", "stop"):
            raise Usage("/quit leaves the stack running; /quit stop ends it")
        if how == "stop":
            self._line("[notice] stopping everything")
            await self.controller.attempt(self.controller.shutdown())
        else:
            self._line("[notice] the stack runs on; `hermes-tui stop` ends it")
        self._left = True


_NOTHING = object()
"""No line whose time has come; None is the end of the lines."""


def run_plain(config: Config) -> int:
    """Talk line by line on standard input and output; return the exit code."""
    from hermes_tui.remote import make_controller

    try:
        return asyncio.run(_run(make_controller(config)))
    except BaseExceptionGroup as errors:
        if errors.split(BrokenPipeError)[1] is not None:
            raise
    except BrokenPipeError:
        pass
    # Whoever read our lines has gone; nothing more may be written, not even at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILED


async def _run(controller: Controller) -> int:
    plain = Plain(controller, sys.stdout, interactive=sys.stdin.isatty())
    loop = asyncio.get_running_loop()
    talking = asyncio.create_task(plain.run())
    told: list[int] = []

    def leave(code: int) -> None:
        told.append(code)
        talking.cancel()

    def interrupt() -> None:
        if told or not plain.interrupted():
            leave(EXIT_INTERRUPTED)

    for number, code in _EXIT_BY_SIGNAL.items():
        loop.add_signal_handler(number, leave, code)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    reader = threading.Thread(target=_read, args=(sys.stdin.fileno(), plain, loop), daemon=True)
    reader.start()
    try:
        return await talking
    except asyncio.CancelledError:
        if not told:
            raise
        return told[0]


def _read(fd: int, plain: Plain, loop: asyncio.AbstractEventLoop) -> None:
    """Hand on the lines of a file until its end.

    A thread with plain reads: an event loop can't wait for a file, and would make a terminal
    non-blocking for everyone who writes to it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""

    def put(line: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are leaving
            loop.call_soon_threadsafe(plain.put, line)

    with contextlib.suppress(OSError):  # a terminal that hung up has no more lines
        while chunk := os.read(fd, 65_536):
            *whole, rest = (rest + decoder.decode(chunk)).split("\n")
            for line in whole:
                put(line)
    if rest:
        put(rest)
    put(None)
