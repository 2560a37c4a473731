"""Rows and turns as lines of plain text: no colour, no columns, the state in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from hermes_tui.core.changes import ChatTurn, Part, TextPart, ThoughtPart, ToolPart
from hermes_tui.core.models import (
    EpisodeDetail,
    EpisodeRow,
    SessionRow,
    StepRow,
    Token,
    TrainerRow,
)
from hermes_tui.core.reasons import reason_text, reasons_text
from hermes_tui.core.reward_text import reward_text
from hermes_tui.core.sanitize import clean, one_line, visible
from hermes_tui.core.stack_status import ProcessState, ProcessStatus
from hermes_tui.core.state import ViewState
from hermes_tui.core.step_words import sentence
from hermes_tui.core.tool_cards import tool_card
from hermes_tui.core.units import size

DENY = "deny"
"""The choice that is a no."""

YES_OR_NO: Mapping[str, Callable[[Sequence[str]], str]] = {
    **dict.fromkeys(("y", "yes"), lambda choices: next((c for c in choices if c != DENY), "")),
    **dict.fromkeys(("n", "no"), lambda choices: DENY if DENY in choices else ""),
}
"""What yes and no mean among an agent's choices: the first, which allows least, and the refusal."""

MAX_RESULT_LINES = 20
"""Lines of a tool's answer that are shown at once; ``/result`` shows all."""


def session_lines(state: ViewState) -> Iterator[str]:
    """Yield the sessions, newest first, each with the number that ``/open`` takes."""
    if not state.sessions:
        yield "no session yet: say something and one begins"
    for number, session in enumerate(newest_sessions(state), 1):
        marks = ["open here"] if session.session_id == state.selected else []
        if sibling := state.siblings().get(session.session_id):
            marks.append("sibling {} of {}".format(*sibling))
        marks += [f"about {one_line(session.topic)}"] if session.topic else []
        marks += [session.end_word] if session.ended else []
        remark = f" ({', '.join(marks)})" if marks else ""
        yield f"{number}. {state.title(session.session_id)}{remark}"
        for episode in state.episodes_of(session.session_id):
            yield f"   episode {state.ordinal(episode)}: {episode_text(episode)}"


def newest_sessions(state: ViewState) -> list[SessionRow]:
    """Return the sessions in the order of their numbers."""
    kept = [row for row in state.sessions.values() if row.session_id not in state.deleted]
    return sorted(kept, key=lambda row: row.created_at, reverse=True)


def episode_text(episode: EpisodeRow) -> str:
    """Return an episode's state, reward, version and staleness in words."""
    words = [episode.state]
    if episode.state == "trained" and episode.step is not None:
        words[0] = f"trained at step {episode.step}"
    elif episode.state == "dropped":
        reason = reason_text(episode.dropped_reason)
        words[0] = f"not trained: {reason or 'dropped'}"
    if episode.reward is not None:
        words.append(f"reward {reward_text(episode.reward)}")
    if episode.policy_version is not None:
        words.append(f"policy v{episode.policy_version}")
    if episode.staleness:
        words.append(f"{episode.staleness} versions behind")
    return ", ".join(words)


def turn_text(turn: ChatTurn) -> str:
    """Return how a turn ended and what it cost."""
    words: list[str] = [turn.state]
    if turn.state == "failed":
        words[0] = f"failed: {one_line(turn.error)}"
    if turn.num_tokens:
        words.append(f"{turn.num_tokens} tokens")
    if turn.seconds > 0:
        words.append(f"{turn.seconds:.1f} s")
    if turn.policy_version is not None:
        words.append(f"policy v{turn.policy_version}")
    if turn.untrainable:
        what = "not all of it will" if turn.num_trainable else "will not"
        words.append(f"{what} be trained: {reasons_text(turn.untrainable)}")
    return ", ".join(words)


def conversation_lines(turns: list[ChatTurn]) -> Iterator[str]:
    """Yield a whole conversation."""
    for turn in turns:
        yield f"you: {clean(turn.user_text)}"
        for part in turn.parts:
            yield from part_lines(part)
        yield f"[turn] {turn_text(turn)}"


def part_lines(part: Part) -> Iterator[str]:
    """Yield one piece of what the agent said and did."""
    if isinstance(part, ToolPart):
        yield tool_line(part)
        if part.result is not None:
            yield from result_lines(part, MAX_RESULT_LINES)
    elif isinstance(part, TextPart):
        if text := clean(part.text).strip():
            yield f"agent: {text}"
    else:
        yield f"[thought] {clean(part.text)}"


def tool_line(part: ToolPart) -> str:
    """Return what the agent called, such as ``[tool] terminal: ls -la``."""
    card = tool_card(part)
    named = card.title.split(" ", 1)[0] == one_line(part.name)
    return f"[tool] {card.title}" if named else f"[tool] {one_line(part.name)}: {card.title}"


def result_lines(part: ToolPart, most: int | None = None) -> Iterator[str]:
    """Yield how a tool call ended, unless all went well, and what it answered.

    Args:
        part: the call, with a result.
        most: lines to show before the rest is only counted; None shows all.
    """
    card = tool_card(part)
    if card.outcome != "done" or card.remark:
        remark = f": {card.remark}" if card.remark else ""
        yield f"[result] {card.outcome}{remark}"
    lines = clean(card.output).removesuffix("\n").split("\n") if card.output else []
    for line in lines[:most]:
        yield f"[result] {line}"
    if most is not None and len(lines) > most:
        yield f"[result] and {len(lines) - most} more lines; /result shows them"


def token_lines(detail: EpisodeDetail, most: int) -> Iterator[str]:
    """Yield an episode's newest sampled tokens, one a line, oldest first."""
    tokens = [token for completion in detail.completions for token in completion.tokens]
    if len(tokens) > most:
        yield f"the newest {most} of {len(tokens)} sampled tokens"
    yield from (_token_line(token) for token in tokens[-most:])


def _token_line(token: Token) -> str:
    words = [f"“{visible(token.text)}”", f"id {token.token_id}"]
    if token.logprob is not None:
        words.append(f"logprob {token.logprob:.2f}")
        words.append(f"probability {math.exp(token.logprob):.3f}")
    if token.policy_version is not None:
        words.append(f"policy v{token.policy_version}")
    if token.advantage is not None:
        words.append(f"advantage {token.advantage:+.2f}")
    if token.logprob_before is not None and token.logprob_after is not None:
        words.append(f"{token.logprob_before:.2f} before and {token.logprob_after:.2f} after")
    words += [f"or “{visible(text)}” {math.exp(lp):.3f}" for text, lp in token.alternatives]
    return ", ".join(words)


def process_lines(state: ViewState) -> Iterator[str]:
    """Yield the stack's processes."""
    for row in state.processes.values():
        yield process_text(row)


def process_text(row: ProcessStatus) -> str:
    """Return one process in words."""
    words = [f"{row.name}: {row.state}"]
    words += [f"pid {row.pid}"] if row.pid else []
    words += [size(row.rss_bytes)] if row.rss_bytes else []
    words += [f"up {row.uptime_s:.0f} s"] if row.uptime_s else []
    words += [f"restarted {row.restarts}x"] if row.restarts else []
    words += [one_line(row.reason)] if row.reason else []
    return ", ".join(words)


def notices(state: ViewState) -> list[str]:
    """Return what was found damaged or lost since the processes started, each once."""
    ready = [row for row in state.processes.values() if row.state == ProcessState.READY]
    said = [notice for row in ready for notice in (row.reason or "").splitlines()]
    return list(dict.fromkeys(map(one_line, (*said, *state.trainer.notices))))


def trainer_text(trainer: TrainerRow) -> str:
    """Return what the trainer does, and what its next step waits for."""
    words = [trainer.state or "not known yet"]
    if trainer.policy_version is not None:
        words.append(f"policy v{trainer.policy_version} serves")
    words.append(f"{trainer.num_scored} of {trainer.batch_size} scored")
    words += ["the learner is not there"] if trainer.learner_lost else []
    words += [one_line(text) for text in dict.fromkeys((trainer.reason, trainer.problem)) if text]
    return ", ".join(words)


def step_text(step: StepRow) -> str:
    """Return a step in words: what it did, and its main numbers."""
    words = [f"step {step.step}: {sentence(step)}"]
    for title, name in (
        ("reward", "reward_mean"),
        ("advantage", "advantage_mean"),
        ("logprob before", "logprob_before"),
        ("after", "logprob_after"),
    ):
        if name in step.values:
            words.append(f"{title} {step.values[name]:+.3f}")
    if "seconds.total" in step.values:
        words.append(f"took {step.values['seconds.total']:.1f} s")
    return ", ".join(words)


class Speech:
    """Remembers how much of a turn has been printed; a turn grows while it runs.

    Args:
        turn: the turn.
    """

    def __init__(self, turn: ChatTurn) -> None:
        self.turn = turn
        self._part = 0
        self._num_printed = 0
        self._answered: set[int] = set()

    def news(self) -> Iterator[tuple[str, bool]]:
        """Yield (text, whether it begins a line) for all that is new."""
        parts = self.turn.parts
        while self._part < len(parts):
            part = parts[self._part]
            if isinstance(part, ToolPart):
                if not self._num_printed:
                    yield f"{tool_line(part)}\n", True
                self._num_printed = 1
            else:
                yield from self._new_words(part)
            if self._part == len(parts) - 1:
                break
            self._part, self._num_printed = self._part + 1, 0
        for index, part in enumerate(parts):
            if isinstance(part, ToolPart) and part.result is not None:
                if index not in self._answered:
                    for line in result_lines(part, MAX_RESULT_LINES):
                        yield f"{line}\n", True
                self._answered.add(index)

    def _new_words(self, part: TextPart | ThoughtPart) -> Iterator[tuple[str, bool]]:
        """Yield what is new of a part, without blanks around it: those at its end may yet be more.

        A model often begins with a newline, or says nothing but one before it calls a tool.
        """
        start, end = self._num_printed, len(part.text.rstrip())
        if not start:
            start = len(part.text) - len(part.text.lstrip())
        if end <= start:
            return
        if not self._num_printed:
            yield "agent: " if isinstance(part, TextPart) else "[thought] ", True
        yield clean(part.text[start:end]), False
        self._num_printed = end
