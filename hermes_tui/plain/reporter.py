"""Reporting what happens, line by line; each line begins with a word in brackets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from hermes_tui.core.changes import (
    Change,
    ChatTurn,
    Notice,
    PendingApproval,
    QueueChanged,
    RowsChanged,
    TurnChanged,
    TurnEnded,
)
from hermes_tui.core.controller import Controller
from hermes_tui.core.models import StartStage
from hermes_tui.core.sanitize import clean, one_line
from hermes_tui.core.stack_status import ProcessState
from hermes_tui.plain import formatting as lines

_ERROR = "[error]"

_REPORTED_STATES = frozenset({"claimed", "trained", "dropped", "unscored"})
"""Episode states that get a line; a score has a notice of its own."""


class Reporter:
    """Writes a line for everything that changes.

    Args:
        controller: its state is reported.
        out: where everything goes.
    """

    def __init__(self, controller: Controller, out: TextIO) -> None:
        self._controller = controller
        self._out = out
        self.has_errors = False
        """Whether a line reported an error."""
        self._mid_line = False
        self._speeches: dict[str, lines.Speech] = {}
        self._known: dict[str, object] = {}

    def _write(self, text: str) -> None:
        text = clean(text)  # the last door: nothing that steers a terminal gets out
        self._out.write(text)
        self._out.flush()
        self._mid_line = bool(text) and not text.endswith("\n")

    def line(self, text: str) -> None:
        """Write a line of its own."""
        self.has_errors |= text.startswith(_ERROR)
        self._write(f"\n{text}\n" if self._mid_line else f"{text}\n")

    def all(self, texts: Iterable[str]) -> None:
        """Write several lines."""
        for text in texts:
            self.line(text)

    def report_start(self, stage: StartStage) -> None:
        """Report a stage of the start, unless it is the same as the last one."""
        text = f": {one_line(stage.text)}" if stage.text else ""
        fact = f"[start] {one_line(stage.process)} {stage.state}{text}"
        if self._known.get("start") != fact:
            self._known["start"] = fact
            self.line(fact)

    def greet(self) -> None:
        """Report that the stack is ready."""
        info = self._controller.state.info
        version = self._controller.state.trainer.policy_version
        serving = f", policy v{version}" if version is not None else ""
        self.line(f"[ready] {one_line(info.model)}{serving}. Type to the agent; /help for more.")
        self.all(f"[notice] {notice}" for notice in lines.notices(self._controller.state))

    def change(self, change: Change) -> None:
        """Report a change, if it is worth a line."""
        match change:
            case Notice(text=text, severity=severity):
                word = {"information": "notice"}.get(severity, severity)
                self.line(f"[{word}] {clean(text)}")
            case PendingApproval():
                self._ask(change)
            case TurnChanged(turn=turn):
                self._report_turn(turn)
            case TurnEnded(turn=turn):
                if turn.source == "sent" and turn.session_id == self._controller.state.selected:
                    self.line(f"[turn] {lines.turn_text(turn)}")
                self.report_target()
            case QueueChanged(sent=message) if message is not None:
                self.line(f"you: {clean(message.text)}")
            case RowsChanged():
                self.report_rows()

    def _report_turn(self, turn: ChatTurn) -> None:
        speech = self._speeches.setdefault(turn.turn_id, lines.Speech(turn))
        if turn.session_id != self._controller.state.selected:
            return
        elsewhere = turn.source != "sent"
        if elsewhere and turn.turn_id not in self._known:
            self._known[turn.turn_id] = ""
            self.line(f"you, in another view: {clean(turn.user_text)}")
        for text, begins in speech.news():
            self._write(f"\n{text}" if begins and self._mid_line else text)
        if elsewhere and turn.state != "running" and self._known[turn.turn_id] != turn.state:
            self._known[turn.turn_id] = turn.state
            self.line(f"[turn] {lines.turn_text(turn)}")

    def skip(self, turn: ChatTurn) -> None:
        """Count all that a turn has said so far as reported."""
        self._known.setdefault(turn.turn_id, turn.state)
        for _ in self._speeches.setdefault(turn.turn_id, lines.Speech(turn)).news():
            pass

    def report_target(self) -> None:
        """Report what a score is for now, or why there can be none; the same is told once."""
        state = self._controller.state
        target = self._controller.rewards.target
        episode = target.episode
        if not state.info.training or episode is None or state.running_turn(state.selected):
            return
        if target.untrainable:
            fact = clean(target.refusal)
        elif target.refusal or episode.state == "scored":
            return
        else:
            fact = f"/good, /bad and /score go to {clean(state.episode_name(episode))}"
        if self._known.get("target") != fact:
            self._known["target"] = fact
            self.line(f"[score] {fact}")

    def _ask(self, request: PendingApproval) -> None:
        if where := self._controller.state.where(request):
            self.line(f"[approval] in {clean(where)}; /answer answers it")
        self.line(f"[approval] {clean(request.question)}")
        for number, choice in enumerate(request.choices, 1):
            self.line(f"[approval] {number}. {clean(choice)}")
        left = ""
        if request.expires_at is not None:
            seconds = request.expires_at - self._controller.clock()
            left = f"; no answer within {seconds:.0f} s is a no"
        which = "type your answer" if request.free else "yes, no, or which?"
        self.line(f"[approval] {which}{left}")

    def report_rows(self, *, quiet: bool = False) -> None:
        """Report every fact about the rows that differs from the last one; quiet only notes it."""
        for key, fact, head in self._rows():
            if self._known.get(key) == fact:
                continue
            self._known[key] = fact
            if fact and not quiet:
                self.line(head + fact)

    def _rows(self) -> Iterable[tuple[str, str, str]]:
        """Yield (key, fact, prefix).

        A fact is printed when it differs from the last one for its key.

        Names belong to the prefix: a session's title alone is no change.
        """
        state = self._controller.state
        for row in state.processes.values():
            is_ready = row.state == ProcessState.READY  # its notices have lines of their own
            reason = f": {one_line(row.reason)}" if row.reason and not is_ready else ""
            yield f"process {row.name}", f"{row.name} is {row.state}{reason}", "[process] "
        for notice in lines.notices(state):
            yield f"notice {notice}", notice, "[notice] "
        for episodes in state.episodes.values():
            for episode in episodes.values():
                fact = lines.episode_text(episode) if episode.state in _REPORTED_STATES else ""
                yield episode.episode_id, fact, f"[episode] {self.name(episode.episode_id)}: "
        for step in state.steps:
            yield f"step {step.step}", lines.step_text(step), "[step] "
        careful = "; ".join(state.steps[-1].warnings) if state.steps else ""
        yield "watch", one_line(careful), "[watch] "
        if state.lost or self._known.get("lost"):
            gone = one_line(state.lost)
            gone = gone if state.stopped else f"out of reach, looked for again: {gone}"
            yield "lost", gone if state.lost else "back again", "[stack] "

    def name(self, episode_id: str) -> str:
        """Return what an episode is called."""
        state = self._controller.state
        episode = state.episode(episode_id)
        assert episode
        return state.episode_name(episode)
