"""The words that may follow a slash, and the actions that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_tui.core.actions import BY_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One word that may follow a slash."""

    word: str
    """The word; in ``--plain`` the method ``do_<word>`` does it."""
    action: str
    """The screen's action that it stands for."""
    takes: str = ""
    """What may follow it."""
    about: str = ""
    """What it does, where that is not what the action's help says."""

    @property
    def help(self) -> str:
        """Return one sentence on it."""
        return self.about or BY_ID[self.action].help


COMMANDS: tuple[Command, ...] = (
    Command(word="good", action="score_good"),
    Command(word="bad", action="score_bad"),
    Command(word="score", action="score_exact", takes="NUMBER"),
    Command(
        word="why",
        action="score_exact",
        takes="SENTENCE",
        about="Say why, until a step takes the score: the sentence is kept with it. /w is short.",
    ),
    Command(word="undo", action="score_undo"),
    Command(word="new", action="session_new"),
    Command(word="end", action="session_end"),
    Command(
        word="topic",
        action="session_topic",
        takes="[TOPIC]",
        about="Say what the open session is about; alone: tell what it is about.",
    ),
    Command(
        word="unqueue",
        action="prompt_send",
        about="Take back the newest message that waits for the end of a turn.",
    ),
    Command(word="interrupt", action="turn_interrupt"),
    Command(word="answer", action="approval_answer", takes="ANSWER"),
    Command(
        word="compare",
        action="compare_new",
        takes="[HOW_MANY MESSAGE]",
        about="Say one message to a group of 2 to 9 siblings; each samples its own reply. Alone: "
        "go back to the newest group without a score.",
    ),
    Command(
        word="pick",
        action="compare_score",
        takes="NUMBER …",
        about="Score the replies: the named ones the highest reward, the others the lowest.",
    ),
    Command(word="unpick", action="compare_undo"),
    Command(word="sessions", action="pane_sessions", about="List the sessions and their episodes."),
    Command(
        word="open",
        action="sessions_open",
        takes="SESSION [EPISODE]",
        about="Open a session by its number in /sessions, and one of its episodes.",
    ),
    Command(word="search", action="search", takes="TEXT", about="List what was said with a text."),
    Command(
        word="retry",
        action="chat_retry",
        about="Answer the last message again beside the reply; /pick says which is better.",
    ),
    Command(
        word="edit",
        action="chat_edit",
        takes="MESSAGE",
        about="Say this in place of your last message, in a branch; what was said stays listed.",
    ),
    Command(
        word="rename",
        action="sessions_rename",
        takes="NAME",
        about="Give the open session a name.",
    ),
    Command(
        word="delete",
        action="sessions_delete",
        about="Forget the open session; /restore brings it back for six seconds.",
    ),
    Command(word="restore", action="session_restore"),
    Command(word="chat", action="pane_chat", about="Tell the open conversation once more."),
    Command(
        word="result", action="chat_fold", about="Tell all that the newest tool call answered."
    ),
    Command(
        word="tokens",
        action="pane_tokens",
        takes="[HOW_MANY]",
        about="List the newest tokens with logprob and version.",
    ),
    Command(word="export", action="tokens_export", takes="[FOLDER]"),
    Command(
        word="training",
        action="pane_training",
        about="Tell what the next step waits for, and the last step's numbers.",
    ),
    Command(
        word="learned",
        action="lesson",
        about="Tell what the newest step changed: tokens, and the same questions before and after.",
    ),
    Command(
        word="pause",
        action="training_hold",
        about="Hold training: scores are kept and no step begins.",
    ),
    Command(word="resume", action="training_hold", about="Let training go on."),
    Command(
        word="rollback",
        action="training_rollback",
        takes="VERSION",
        about="Let a kept version serve again, under a new number.",
    ),
    Command(word="status", action="pane_system", about="List the processes."),
    Command(
        word="restart",
        action="system_restart",
        takes="PROCESS",
        about="Restart a process; turns that need it break off.",
    ),
    Command(
        word="logs",
        action="pane_logs",
        takes="[PROCESS] [HOW_MANY]",
        about="Tell the last lines of a process's log, the supervisor's without a name.",
    ),
    Command(word="help", action="help", about="List the commands."),
    Command(
        word="quit",
        action="quit",
        takes="[stop]",
        about="Leave; the stack runs on, but with the word stop it ends, too.",
    ),
)
"""What can be done; judging by tenths is ``/score``."""

BY_WORD = {command.word: command for command in COMMANDS}
BY_WORD["w"] = BY_WORD["why"]


def called(action_id: str) -> str:
    """Return the command for an action, such as ``/undo``; empty when it has none."""
    return next((f"/{command.word}" for command in COMMANDS if command.action == action_id), "")
