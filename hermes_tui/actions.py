"""Every action a person can take: one registry feeds bindings, footer, palette, help and docs.

``python -m hermes_tui.actions`` prints the table of docs/keys.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding
from textual.keys import format_key

Scope = Literal[
    "app", "screen", "prompt", "sessions", "chat", "tokens", "training", "system", "logs", "compare"
]
"""Where an action applies: everywhere, on the main screen, in one pane of it, or in Compare."""

PANES: Mapping[Scope, str] = {
    "sessions": "Sessions",
    "chat": "Chat",
    "prompt": "Prompt",
    "tokens": "Tokens",
    "training": "Training",
    "system": "System",
    "logs": "Logs",
}
"""The panes in the order of the tab key, with their titles."""

MAX_HINTS = 8
"""Hints that the footer shows at most."""

TERMINAL_KEYS = frozenset(
    {"ctrl+a", "ctrl+b", "ctrl+h", "ctrl+i", "ctrl+j", "ctrl+m", "ctrl+s", "f11"}
)
"""Keys that terminals and multiplexers own; no default uses one, nor any with alt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that a person can do."""

    id: str
    """Name in ``[tui.keymap]``; the method ``do_<id>`` of its owner does it."""
    title: str
    """What the palette and the help call it."""
    keys: tuple[str, ...]
    """Default keys, in Textual's names; empty leaves it to the palette."""
    help: str
    """One sentence for the help screen."""
    scope: Scope = "screen"
    """Where it applies."""
    section: str = "Talk"
    """Heading under which the help lists it."""
    hint: str = ""
    """Its word in the footer; empty keeps it out."""
    numbered: bool = False
    """Whether each key stands for its place, 1, 2 …, which the method is given."""


ACTIONS: tuple[Action, ...] = (
    # Judge
    Action(
        id="score_good",
        title="Score +1.0",
        keys=("f3", "plus", "equals_sign"),
        help="Judge the newest episode good: its tokens become likelier.",
        section="Judge",
        hint="good",
    ),
    Action(
        id="score_bad",
        title="Score -1.0",
        keys=("f4", "minus"),
        help="Judge the newest episode bad: its tokens become less likely.",
        section="Judge",
        hint="bad",
    ),
    Action(
        id="score_exact",
        title="Score exactly …",
        keys=("f2", "r"),
        help="Type the reward; the range is checked.",
        section="Judge",
        hint="exact",
    ),
    Action(
        id="score_zero",
        title="Score 0.0",
        keys=("0",),
        help="Judge the newest episode neither good nor bad.",
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
        help="Undo the last score, until the trainer has claimed its episode.",
        section="Judge",
        hint="undo",
    ),
    # Talk
    Action(
        id="prompt_send",
        title="Send the message",
        keys=("enter",),
        help="Say it to the agent; a line that ends in a backslash goes on instead.",
        scope="prompt",
        hint="send",
    ),
    Action(
        id="prompt_newline",
        title="New line in the message",
        keys=("shift+enter",),
        help="Go on in a new line, where the terminal tells the two keys apart.",
        scope="prompt",
    ),
    Action(
        id="prompt_leave",
        title="Leave the prompt",
        keys=("escape",),
        help="Give the keys back to the panes; what was typed stays.",
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
        id="session_end",
        title="End the session",
        keys=("e",),
        help="Close the selected session and its open episode.",
    ),
    Action(
        id="turn_interrupt",
        title="Interrupt the agent",
        keys=("x",),
        help="Stop the turn in flight; what was said so far stays.",
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
        help="The tokens that the model was given and sampled.",
        section="Move",
    ),
    Action(
        id="pane_training",
        title="Go to Training",
        keys=("l", "f8"),
        help="The lesson: plots over the steps, the last one's numbers, the canary.",
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
        keys=("L",),
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
        help="List only those whose title, state, reward or version holds a text.",
        scope="sessions",
        section="Sessions",
        hint="filter",
    ),
    # Chat
    Action(
        id="chat_find",
        title="Find in the conversation",
        keys=("slash",),
        help="Go to the newest turn that holds a text; the same again goes on to older ones.",
        scope="chat",
        section="Chat",
        hint="find",
    ),
    Action(
        id="chat_fold",
        title="Fold or unfold tool calls",
        keys=("o",),
        help="Show or hide what the tools were given and answered.",
        scope="chat",
        section="Chat",
        hint="fold",
    ),
    Action(
        id="chat_copy",
        title="Copy the last reply",
        keys=("y",),
        help="Copy the agent's last words, as it wrote them.",
        scope="chat",
        section="Chat",
        hint="copy",
    ),
    Action(
        id="chat_follow",
        title="Follow the conversation",
        keys=("end",),
        help="Go to the newest words and stay with them.",
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
        help="Search the tokens' texts; the same again goes on to the next.",
        scope="tokens",
        section="Tokens",
        hint="find",
    ),
    Action(
        id="tokens_bars",
        title="Show or hide the bars",
        keys=("b",),
        help="The bar under a token is its probability: colour said in another way.",
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
        keys=("w",),
        help="Write the shown episode as JSON Lines: ids, logprobs, masks, versions, reward.",
        scope="tokens",
        section="Tokens",
    ),
    Action(
        id="tokens_follow",
        title="Follow the tokens",
        keys=("end",),
        help="Go to the newest token and stay with it.",
        scope="tokens",
        section="Tokens",
        hint="follow",
    ),
    # Compare
    Action(
        id="compare_new",
        title="Compare replies …",
        keys=("g",),
        help="Say one message to a group of siblings, and pick the best of their replies.",
        section="Compare",
        hint="group",
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
        help="Go to the reply's newest words and stay with them.",
        scope="compare",
        section="Compare",
    ),
    Action(
        id="compare_interrupt",
        title="Interrupt the replies",
        keys=("x",),
        help="Stop those that still speak.",
        scope="compare",
        section="Compare",
        hint="interrupt",
    ),
    Action(
        id="compare_leave",
        title="Leave the comparison",
        keys=("escape",),
        help="Go back; what still speaks goes on, and the sessions stay in the list.",
        scope="compare",
        section="Compare",
        hint="leave",
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
        title="Copy the selection, or quit",
        keys=("ctrl+c",),
        help="Copy what is selected; with nothing selected, twice in a row quits.",
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


def bindings(scope: Scope, owner: str) -> list[Binding]:
    """Return the default bindings of a scope.

    Args:
        scope: whose actions.
        owner: where the action method lives: ``app``, ``screen``, or empty for the widget itself.
    """
    prefix = f"{owner}." if owner else ""
    return [
        Binding(
            key,
            f"{prefix}do('{action.id}'{f', {place}' if action.numbered else ''})",
            action.title,
            show=False,
            priority=_before_widgets(key),
            id=f"{action.id}.{place}" if action.numbered else action.id,
        )
        for action in ACTIONS
        if action.scope == scope
        for place, key in enumerate(action.keys, 1)
    ]


def _before_widgets(key: str) -> bool:
    """Whether a key goes to its action even while something else could use it, as in a prompt."""
    return key.startswith("ctrl+") or (key[0] == "f" and key[1:].isdigit())


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Which keys do what, after the person's own keymap."""

    keys: Mapping[str, tuple[str, ...]]
    """Per action id its keys."""
    textual: Mapping[str, str]
    """The same overrides for ``App.set_keymap``: binding id to keys."""
    problems: tuple[str, ...]
    """Entries of the keymap that were not taken, each with its reason."""

    def action(self, scope: Scope, key: str) -> Action | None:
        """Return what a key does in one scope, or None."""
        return next((a for a in ACTIONS if a.scope == scope and key in self.keys[a.id]), None)

    def label(self, action_id: str) -> str:
        """Return how an action's first key is written; empty when it has none."""
        keys = self.keys[action_id]
        return _written(keys[0]) if keys else ""

    def labels(self, action_id: str) -> str:
        """Return how all keys of an action are written."""
        keys = [_written(key) for key in self.keys[action_id]]
        if BY_ID[action_id].numbered and len(keys) > 2:
            return f"{keys[0]} … {keys[-1]}"
        return " ".join(keys)


def _written(key: str) -> str:
    """Return how a key is written on the screen."""
    return {"enter": "enter", "escape": "esc"}.get(key) or (
        key.upper() if key[0] == "f" and key[1:].isdigit() else format_key(key)
    )


def resolve(keymap: Mapping[str, str]) -> Keys:
    """Return the keys in force; an override that can't be taken is named, and its default stays.

    Args:
        keymap: action id to comma-separated keys, from ``[tui.keymap]``.
    """
    keys = {action.id: action.keys for action in ACTIONS}
    problems: list[str] = []
    taken: dict[str, tuple[str, ...]] = {}
    for name, text in keymap.items():
        wanted = tuple(_long_name(key) for key in text.split(",") if key.strip())
        if problem := _unfit(name, wanted):
            problems.append(f"tui.keymap.{name}: {problem}")
        else:
            taken[name] = wanted
    # Until its own turn comes, an override only frees keys: so two actions can swap theirs.
    for name, wanted in taken.items():
        keys[name] = tuple(key for key in keys[name] if key in wanted)
    for name, wanted in taken.items():
        if clash := next(_clashes(BY_ID[name], wanted, keys), ""):
            problems.append(f"tui.keymap.{name}: {clash}; its own keys stay")
            given_away = {key for other in taken if other != name for key in keys[other]}
            keys[name] = tuple(key for key in BY_ID[name].keys if key not in given_away)
        else:
            keys[name] = wanted
    textual = {
        binding_id: key
        for name in taken
        if keys[name] == taken[name]
        for binding_id, key in _binding_keys(BY_ID[name], keys[name])
    }
    return Keys(keys=keys, textual=textual, problems=tuple(problems))


def _binding_keys(action: Action, keys: tuple[str, ...]) -> Iterable[tuple[str, str]]:
    if action.numbered:
        return [(f"{action.id}.{place}", key) for place, key in enumerate(keys, 1)]
    return [(action.id, ",".join(keys))]


def _long_name(key: str) -> str:
    """Return Textual's long name of a key: ``plus`` for ``+``."""
    [binding] = Binding.make_bindings([(key.strip(), "", "")])
    return binding.key


def _parts(key: str) -> list[str]:
    """Return a key's modifiers and its name, in a form that is an identifier for every real key."""
    return [f"_{part}" for part in key.split("+")]


def _unfit(name: str, keys: tuple[str, ...]) -> str:
    if name not in BY_ID:
        near = difflib.get_close_matches(name, BY_ID, n=1)
        return "no such action" + (f"; did you mean {near[0]}?" if near else "")
    action = BY_ID[name]
    if odd := [key for key in keys if not all(part.isidentifier() for part in _parts(key))]:
        return f"there is no key {odd[0]!r}"
    if not action.keys:
        return "this action has no key to change; it is in the palette"
    if action.numbered and len(keys) != len(action.keys):
        return f"needs {len(action.keys)} keys, one for each value"
    return "" if keys else "names no key"


def _clashes(
    action: Action, wanted: tuple[str, ...], keys: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    wide = ("app", "screen")
    for other in ACTIONS:
        meet = other.scope == action.scope or other.scope in wide or action.scope in wide
        if {"screen", "compare"} == {other.scope, action.scope}:
            meet = False  # two screens, never shown together
        if other.id == action.id or not meet:
            continue
        for key in wanted:
            if key in keys[other.id] and key not in action.keys:
                yield f"{_written(key)} already means “{other.title}” ({other.id})"


def hints(focused: Scope, screen: Scope = "screen") -> list[Action]:
    """Return the actions that the footer hints at while a pane has the focus, at most eight.

    Args:
        focused: the pane.
        screen: ``compare`` on that screen, where the main screen's actions do not apply.
    """
    if screen == "compare":
        own = [a for a in ACTIONS if a.hint and a.scope == focused]
        return [*own[: MAX_HINTS - 1], BY_ID["help"]]
    own = [a for a in ACTIONS if a.hint and a.scope == focused]
    wide = [a for a in ACTIONS if a.hint and a.scope in ("screen", "app")]
    if focused == "prompt":  # printable keys type text there
        wide = [a for a in wide if any(_before_widgets(key) for key in a.keys)]
    first = [a for a in wide if a.id in ("score_good", "score_bad", "score_undo")]
    last = [a for a in wide if a.id in ("help",)]
    rest = [a for a in wide if a not in first and a not in last]
    return [*own[:3], *first, *rest][: MAX_HINTS - len(last)] + last


_INTRODUCTION = """\
# Keys

Every action is also in the palette (`ctrl+p`) and reachable by mouse. `[tui.keymap]` in
`hermes.toml` gives an action other keys, by the name in the last column:

```toml
[tui.keymap]
score_good = "f3,z"
```

In the prompt, letters and digits type text; function and control keys work there too.
"""


def keys_document() -> str:
    """Return docs/keys.md."""
    keys = resolve({})
    lines = [_INTRODUCTION.rstrip()]
    for section in dict.fromkeys(action.section for action in ACTIONS):
        lines += ["", f"## {section}", ""]
        lines += ["| key | what it does | where | name |", "|---|---|---|---|"]
        lines += [_document_row(keys, action) for action in ACTIONS if action.section == section]
    return "\n".join(lines) + "\n"


def _document_row(keys: Keys, action: Action) -> str:
    shown = " ".join(f"`{key}`" for key in keys.labels(action.id).split()) or "–"
    shown = shown.replace("`…`", "…").replace("|", "\\|")
    where = PANES.get(action.scope, "everywhere")
    return f"| {shown} | {action.title}. {action.help} | {where} | `{action.id}` |"


if __name__ == "__main__":
    print(keys_document(), end="")
