"""The words that may follow a slash in ``--plain``, and the actions that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_tui.core.text import clean


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One word that may follow a slash."""

    word: str
    """The word; the method ``do_<word>`` does it."""
    action: str
    """The screen's action that it stands for: that one's help is its help."""
    takes: str = ""
    """What may follow it."""


COMMANDS: tuple[Command, ...] = (
    Command(word="good", action="score_good"),
    Command(word="bad", action="score_bad"),
    Command(word="score", action="score_exact", takes="NUMBER"),
    Command(word="undo", action="score_undo"),
    Command(word="new", action="session_new"),
    Command(word="end", action="session_end"),
    Command(word="interrupt", action="turn_interrupt"),
    Command(word="answer", action="approval_answer", takes="ANSWER"),
    Command(word="compare", action="compare_new", takes="HOW_MANY MESSAGE"),
    Command(word="pick", action="compare_score", takes="NUMBER …"),
    Command(word="unpick", action="compare_undo"),
    Command(word="sessions", action="pane_sessions"),
    Command(word="open", action="sessions_open", takes="SESSION [EPISODE]"),
    Command(word="chat", action="pane_chat"),
    Command(word="result", action="chat_fold"),
    Command(word="tokens", action="pane_tokens", takes="[HOW_MANY]"),
    Command(word="export", action="tokens_export", takes="[FOLDER]"),
    Command(word="training", action="pane_training"),
    Command(word="pause", action="training_hold"),
    Command(word="resume", action="training_hold"),
    Command(word="rollback", action="training_rollback", takes="VERSION"),
    Command(word="status", action="pane_system"),
    Command(word="restart", action="system_restart", takes="PROCESS"),
    Command(word="help", action="help"),
    Command(word="quit", action="quit", takes="[stop]"),
)
"""What can be done; judging by tenths is ``/score``."""

BY_WORD = {command.word: command for command in COMMANDS}


class Usage(Exception):
    """A command was given something that it can't use."""


def called(action_id: str) -> str:
    """Return how an action is asked for here."""
    return next((f"/{command.word}" for command in COMMANDS if command.action == action_id), "")


def place(text: str, count: int, what: str) -> int:
    """Return the index that a typed number means.

    Raises: Usage: there is no such number.
    """
    if text.isdecimal() and 1 <= int(text) <= count:
        return int(text) - 1
    known = f"there are 1 to {count}" if count else "there is none"
    raise Usage(f"no {what} “{clean(text)}”: {known}; /sessions lists them")
