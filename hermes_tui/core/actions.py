"""The registry of actions; bindings, footer, palette, help and docs/keys.md come from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Scope = Literal[
    "app", "screen", "prompt", "sessions", "chat", "tokens", "training", "system", "logs", "compare"
]
"""Where an action applies: everywhere, on the main screen, in one of its panes, or in Compare."""

PANES: Mapping[Scope, str] = {
    "sessions": "Sessions",
    "chat": "Chat",
    "prompt": "Prompt",
    "tokens": "Tokens",
    "training": "Training",
    "system": "System",
    "logs": "Logs",
}
"""The panes and their titles, in the order of the tab key."""

PAGES: frozenset[Scope] = frozenset({"training", "system", "logs"})
"""Panes that take the whole screen, but for the prompt."""

OF_TRAINING: frozenset[Scope] = frozenset({"tokens", "training"})
"""Panes that have nothing to show without a trainer."""


def panes_of(*, training: bool) -> tuple[Scope, ...]:
    """Return the panes of a stack, in the order of the tab key.

    Args:
        training: whether the stack has a trainer.
    """
    return tuple(pane for pane in PANES if training or pane not in OF_TRAINING)


TERMINAL_KEYS = frozenset({"ctrl+a", "ctrl+b", "ctrl+h", "ctrl+i", "ctrl+m", "ctrl+s", "f11"})
"""Keys that terminals and multiplexers use themselves. No default uses one, or alt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that a person can do."""

    id: str
    """Name in ``[tui.keymap]``; the method ``do_<id>`` of its owner does it."""
    title: str
    """Its name in the palette and the help."""
    keys: tuple[str, ...]
    """Default keys, by Textual's names; without one it is in the palette only."""
    help: str
    """One sentence for the help screen."""
    scope: Scope = "screen"
    """Where it applies."""
    section: str = "Talk"
    """Heading under which the help lists it."""
    hint: str = ""
    """Its word in the footer; empty for none."""
    numbered: bool = False
    """True when each key passes its number, 1, 2 …, to the method."""


ACTIONS: tuple[Action, ...] = (
    # Judge
    Action(
        id="score_good",
        title="Score +1.0",
        keys=("f3", "plus", "equals_sign"),
        help="Judge the marked episode good: its tokens become likelier. Again takes it back.",
        section="Judge",
        hint="good",
    ),
    Action(
        id="score_bad",
        title="Score -1.0",
        keys=("f4", "minus"),
        help="Judge the marked episode bad: its tokens become less likely. Again takes it back.",
        section="Judge",
        hint="bad",
    ),
    Action(
        id="score_exact",
        title="Score exactly …",
        keys=("f2", "r"),
        help="Type any reward of the range, and a sentence that says why.",
        section="Judge",
        hint="exact",
    ),
    Action(
        id="score_zero",
        title="Score 0.0",
        keys=("0",),
        help="Judge the marked episode neither good nor bad.",
        section="Judge",
    ),
    Action(
        id="score_tenths",
        title="Score +0.1 … +0.9",
        keys=tuple("123456789"),
        help="Judge by tenths.",
        section="Judge",
        numbered=True,
    ),
    Action(
        id="score_negative_tenths",
        title="Score -0.1 … -0.9",
        keys=(
            "exclamation_mark",
            "at",
            "number_sign",
            "dollar_sign",
            "percent_sign",
            "circumflex_accent",
            "ampersand",
            "asterisk",
            "left_parenthesis",
        ),
        help="Judge by negative tenths: shift and a digit, where the layout has them.",
        section="Judge",
        numbered=True,
    ),
    Action(
        id="score_undo",
        title="Take the score back",
        keys=("u",),
        help="Undo the last score. That works until a training step has claimed its episode.",
        section="Judge",
        hint="undo",
    ),
    Action(
        id="score_why",
        title="Say why",
        keys=("w",),
        help="Add a sentence to the score; while you type it the countdown waits.",
        section="Judge",
        hint="why",
    ),
    Action(
        id="lesson",
        title="What did it learn?",
        keys=("K",),
        help="What the newest step changed: its tokens, and the same questions before and after.",
        section="Judge",
    ),
    # Talk
    Action(
        id="prompt_send",
        title="Send the message",
        keys=("enter",),
        help="Send it, or queue it while the agent replies; /help lists what a slash begins.",
        scope="prompt",
        hint="send",
    ),
    Action(
        id="prompt_newline",
        title="New line in the message",
        keys=("ctrl+j", "shift+enter"),
        help="Go on in a new line; so does a backslash before enter.",
        scope="prompt",
        hint="new line",
    ),
    Action(
        id="prompt_clear",
        title="Clear the message",
        keys=("ctrl+l",),
        help="Empty the prompt; the up key brings the text back.",
        scope="prompt",
    ),
    Action(
        id="prompt_leave",
        title="Leave the prompt",
        keys=("escape",),
        help="Interrupt the agent while it replies; else give the keys to the panes.",
        scope="prompt",
        hint="leave",
    ),
    Action(
        id="prompt_enter",
        title="Go to the prompt",
        keys=("i", "enter"),
        help="Type to the agent.",
        hint="type",
    ),
    Action(
        id="session_new",
        title="New session",
        keys=("n",),
        help="Begin a new conversation; it starts with its first message.",
        hint="new",
    ),
    Action(
        id="search",
        title="Search all conversations",
        keys=("ctrl+f",),
        help="Find what was said in any session, and go there.",
        hint="search",
    ),
    Action(
        id="session_restore",
        title="Bring a deleted session back",
        keys=("U",),
        help="Undo the last deletion, within six seconds.",
    ),
    Action(
        id="session_end",
        title="End the session …",
        keys=("e",),
        help="Close the selected session and its open episode, after a question.",
    ),
    Action(
        id="session_topic",
        title="Set the session's topic …",
        keys=("T",),
        help="Say what the marked session is about: baselines are kept per topic.",
    ),
    Action(
        id="turn_interrupt",
        title="Interrupt the agent",
        keys=("escape", "x"),
        help="Stop the reply that arrives; what was said so far stays.",
        hint="interrupt",
    ),
    Action(
        id="approval_answer",
        title="Answer what the agent asks",
        keys=("ctrl+o", "a"),
        help="Allow what it wants to do once, for this session, or not; or say what is meant.",
        scope="app",
    ),
    # Move
    Action(
        id="pane_next",
        title="Next pane",
        keys=("tab",),
        help="Move on to the next pane.",
        section="Move",
    ),
    Action(
        id="pane_previous",
        title="Previous pane",
        keys=("shift+tab",),
        help="Move back to the pane before.",
        section="Move",
    ),
    Action(
        id="pane_sessions",
        title="Go to Sessions",
        keys=("s", "f5"),
        help="Every session and its episodes.",
        section="Move",
    ),
    Action(
        id="pane_chat",
        title="Go to Chat",
        keys=("c", "f6"),
        help="The conversation.",
        section="Move",
    ),
    Action(
        id="pane_tokens",
        title="Go to Tokens",
        keys=("t", "f7"),
        help="The prompt's tokens and the sampled ones.",
        section="Move",
    ),
    Action(
        id="pane_training",
        title="Go to Training",
        keys=("l", "f8"),
        help="Plots over the steps, the last step's numbers, the canary's answers.",
        section="Move",
    ),
    Action(
        id="pane_system",
        title="Go to System",
        keys=("p", "f9"),
        help="The machine and the processes.",
        section="Move",
    ),
    Action(
        id="pane_logs",
        title="Go to Logs",
        keys=("L", "f12"),
        help="What a process writes to its log.",
        section="Move",
    ),
    # Sessions
    Action(
        id="sessions_open",
        title="Open the session or episode",
        keys=("enter",),
        help="Show its conversation and its tokens.",
        scope="sessions",
        section="Sessions",
        hint="open",
    ),
    Action(
        id="sessions_filter",
        title="Filter the sessions",
        keys=("slash",),
        help="List only those whose title, topic, state, reward or version has a text.",
        scope="sessions",
        section="Sessions",
        hint="filter",
    ),
    Action(
        id="sessions_clear",
        title="List all sessions",
        keys=("backspace",),
        help="Clear the filter.",
        scope="sessions",
        section="Sessions",
    ),
    Action(
        id="sessions_rename",
        title="Rename the session …",
        keys=("R",),
        help="Give the session under the cursor a name.",
        scope="sessions",
        section="Sessions",
        hint="rename",
    ),
    Action(
        id="sessions_delete",
        title="Delete the session",
        keys=("D",),
        help="Forget its conversation and tokens; it can be brought back for six seconds.",
        scope="sessions",
        section="Sessions",
        hint="delete",
    ),
    # Chat
    Action(
        id="chat_find",
        title="Find in the conversation",
        keys=("slash",),
        help="Go to the newest turn that contains a text; repeat it for older ones.",
        scope="chat",
        section="Chat",
        hint="find",
    ),
    Action(
        id="chat_retry",
        title="Try the last reply again",
        keys=("R",),
        help="Answer the last message again beside the reply; the better one is picked in Compare.",
        scope="chat",
        section="Chat",
        hint="retry",
    ),
    Action(
        id="chat_edit",
        title="Edit your last message",
        keys=("E",),
        help="Say it in other words, in a branch; the conversation as it was stays in the list.",
        scope="chat",
        section="Chat",
        hint="edit",
    ),
    Action(
        id="chat_before",
        title="Mark the piece before",
        keys=("left_square_bracket", "comma"),
        help="Mark the tool call, code block or turn before.",
        scope="chat",
        section="Chat",
    ),
    Action(
        id="chat_after",
        title="Mark the next piece",
        keys=("right_square_bracket", "full_stop"),
        help="Mark the next tool call, code block or turn.",
        scope="chat",
        section="Chat",
        hint="mark",
    ),
    Action(
        id="chat_fold",
        title="Fold or unfold a tool call",
        keys=("o",),
        help="Show or hide all of the marked tool call; with none marked, of the newest.",
        scope="chat",
        section="Chat",
        hint="fold",
    ),
    Action(
        id="chat_fold_all",
        title="Fold or unfold all tool calls",
        keys=("O",),
        help="Show or hide the arguments and results of all tool calls.",
        scope="chat",
        section="Chat",
    ),
    Action(
        id="chat_copy",
        title="Copy what is marked",
        keys=("y",),
        help="Copy the marked code, tool output or turn; with none marked, the last reply.",
        scope="chat",
        section="Chat",
        hint="copy",
    ),
    Action(
        id="chat_follow",
        title="Follow the conversation",
        keys=("end",),
        help="Go to the newest text, and stay at the end while more arrives.",
        scope="chat",
        section="Chat",
        hint="follow",
    ),
    # Tokens
    Action(
        id="tokens_left",
        title="Token before",
        keys=("left",),
        help="Move the cursor to the token before.",
        scope="tokens",
        section="Tokens",
    ),
    Action(
        id="tokens_right",
        title="Token after",
        keys=("right",),
        help="Move the cursor to the next token.",
        scope="tokens",
        section="Tokens",
    ),
    Action(
        id="tokens_find",
        title="Find a token",
        keys=("slash",),
        help="Search the tokens' texts; repeat it for the next match.",
        scope="tokens",
        section="Tokens",
        hint="find",
    ),
    Action(
        id="tokens_bars",
        title="Show or hide the bars",
        keys=("b",),
        help="The bar under a token shows its probability, as its colour does.",
        scope="tokens",
        section="Tokens",
        hint="bars",
    ),
    Action(
        id="tokens_copy",
        title="Copy the tokens as a table",
        keys=("y",),
        help="Copy tab-separated rows: id, text, logprob, version, advantage, before and after.",
        scope="tokens",
        section="Tokens",
        hint="copy",
    ),
    Action(
        id="tokens_surprise",
        title="Next unlikely token",
        keys=("right_square_bracket", "full_stop"),
        help="Go to the next sampled token whose probability was below 0.15.",
        scope="tokens",
        section="Tokens",
        hint="unlikely",
    ),
    Action(
        id="tokens_surprise_before",
        title="Unlikely token before",
        keys=("left_square_bracket", "comma"),
        help="Go back to the sampled token before whose probability was below 0.15.",
        scope="tokens",
        section="Tokens",
    ),
    Action(
        id="tokens_export",
        title="Write the trajectory to a file",
        keys=("E",),
        help="Write the shown episode as JSON Lines: ids, logprobs, masks, versions, reward.",
        scope="tokens",
        section="Tokens",
    ),
    Action(
        id="tokens_follow",
        title="Follow the tokens",
        keys=("end",),
        help="Go to the newest token, and stay at the end while more arrive.",
        scope="tokens",
        section="Tokens",
        hint="follow",
    ),
    # Compare
    Action(
        id="compare_new",
        title="Compare replies …",
        keys=("g",),
        help="Send one message to a group of sessions, and pick the best of their replies.",
        section="Compare",
        hint="group",
    ),
    Action(
        id="compare_again",
        title="Open the comparison again",
        keys=("G",),
        help="Go back to siblings that lack a score: those of the marked session, else the newest.",
        scope="sessions",
        section="Compare",
        hint="compare again",
    ),
    Action(
        id="compare_pick",
        title="Pick a reply",
        keys=tuple("123456789"),
        help="Pick the reply of that number, or take that back; several are a tie.",
        scope="compare",
        section="Compare",
        hint="pick",
        numbered=True,
    ),
    Action(
        id="compare_score",
        title="Score the replies",
        keys=("enter",),
        help="The picked ones get the highest reward, +1.0, and the others the lowest, -1.0.",
        scope="compare",
        section="Compare",
        hint="score",
    ),
    Action(
        id="compare_undo",
        title="Take the replies' scores back",
        keys=("u",),
        help="Undo the scores, until the trainer has claimed the group.",
        scope="compare",
        section="Compare",
        hint="undo",
    ),
    Action(
        id="compare_leave",
        title="Leave the comparison",
        keys=("escape",),
        help="Go back; replies that are not finished go on, and their sessions stay in the list.",
        scope="compare",
        section="Compare",
        hint="leave",
    ),
    Action(
        id="compare_previous",
        title="Reply before",
        keys=("left", "shift+tab"),
        help="Go to the reply before.",
        scope="compare",
        section="Compare",
    ),
    Action(
        id="compare_next",
        title="Next reply",
        keys=("right", "tab"),
        help="Go to the next reply.",
        scope="compare",
        section="Compare",
        hint="next",
    ),
    Action(
        id="compare_end",
        title="Follow the reply",
        keys=("end",),
        help="Go to the reply's newest text, and stay at the end while more arrives.",
        scope="compare",
        section="Compare",
    ),
    Action(
        id="compare_interrupt",
        title="Interrupt the replies",
        keys=("x",),
        help="Stop the replies that are not finished.",
        scope="compare",
        section="Compare",
        hint="interrupt",
    ),
    # Training
    Action(
        id="training_hold",
        title="Hold training, or go on",
        keys=("h",),
        help="While held, scores are kept and no step begins.",
        scope="training",
        section="Training",
        hint="hold",
    ),
    Action(
        id="training_rollback",
        title="Roll back to an earlier version …",
        keys=("b",),
        help="Choose one of the kept versions; its weights serve again, under a new number.",
        scope="training",
        section="Training",
        hint="roll back",
    ),
    Action(
        id="training_episodes",
        title="Show the step's episodes",
        keys=("enter",),
        help="List what the shown step trained; enter opens an episode's tokens.",
        scope="training",
        section="Training",
        hint="episodes",
    ),
    Action(
        id="training_step_before",
        title="Step before",
        keys=("left_square_bracket", "comma"),
        help="Show the figures of the step before.",
        scope="training",
        section="Training",
        hint="step before",
    ),
    Action(
        id="training_step_after",
        title="Step after",
        keys=("right_square_bracket", "full_stop"),
        help="Show the figures of the step after.",
        scope="training",
        section="Training",
        hint="after",
    ),
    Action(
        id="training_answers",
        title="Compare the answers of two versions …",
        keys=("v",),
        help="Choose the two versions whose answers to the canary's questions are compared.",
        scope="training",
        section="Training",
        hint="versions",
    ),
    # System
    Action(
        id="system_logs",
        title="Read the log of the process",
        keys=("enter",),
        help="Show what the process under the cursor writes.",
        scope="system",
        section="System",
        hint="logs",
    ),
    Action(
        id="system_restart",
        title="Restart the process …",
        keys=("R",),
        help="Restart the process under the cursor, after a question.",
        scope="system",
        section="System",
        hint="restart",
    ),
    # Logs
    Action(
        id="logs_find",
        title="Find in the log",
        keys=("slash",),
        help="Go to the newest line with a text; the same again goes on to older ones.",
        scope="logs",
        section="Logs",
        hint="find",
    ),
    Action(
        id="logs_filter",
        title="Filter the log",
        keys=("f",),
        help="Show only the lines that contain a text; an empty one shows all.",
        scope="logs",
        section="Logs",
        hint="filter",
    ),
    Action(
        id="logs_follow",
        title="Follow the log",
        keys=("end",),
        help="Go to the newest line and stay with it.",
        scope="logs",
        section="Logs",
        hint="follow",
    ),
    Action(
        id="logs_copy",
        title="Copy the log",
        keys=("y",),
        help="Copy the lines that are shown.",
        scope="logs",
        section="Logs",
    ),
    # Program
    Action(
        id="help",
        title="Help",
        keys=("f1", "question_mark"),
        help="What the keys do, the focused pane first.",
        scope="app",
        section="Program",
        hint="help",
    ),
    Action(
        id="palette",
        title="Command palette",
        keys=("ctrl+p",),
        help="Find any action by its name.",
        scope="app",
        section="Program",
        hint="palette",
    ),
    Action(
        id="theme",
        title="Change the theme",
        keys=(),
        help="Choose the colours; the choice is remembered.",
        scope="app",
        section="Program",
    ),
    Action(
        id="copy_or_quit",
        title="Copy, interrupt, or quit",
        keys=("ctrl+c",),
        help="Copy the selection; else interrupt the agent; else, twice in a row, quit.",
        scope="app",
        section="Program",
    ),
    Action(
        id="quit",
        title="Quit",
        keys=("ctrl+q", "f10"),
        help="Leave: stop everything, or leave the stack running.",
        scope="app",
        section="Program",
        hint="quit",
    ),
)

BY_ID: Mapping[str, Action] = {action.id: action for action in ACTIONS}
