"""Which keys do which actions: default bindings, the person's own keymap, the footer's hints.

``python -m hermes_tui.tui.keys`` prints docs/keys.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from textual.binding import Binding
from textual.keys import format_key

from hermes_tui.core.actions import ACTIONS, BY_ID, PAGES, PANES, Action, Scope

MAX_HINTS = 8
"""Hints that the footer shows at most."""


def bindings(scope: Scope) -> list[Binding]:
    """Return the default bindings of a scope; the node that has them does its actions."""
    return [
        Binding(
            key,
            f"do('{action.id}'{f', {bound.number}' if action.numbered else ''})",
            action.title,
            show=False,
            priority=bound.before_widgets,
            id=bound.id,
        )
        for action in ACTIONS
        if action.scope == scope
        for bound in _bounds(action, action.keys)
        for key in bound.keys
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """The keys of one action that share a binding.

    Textual's keymap (8.2.8) changes the keys of a binding, not its priority. So an action has one
    binding for keys that go before the focused widget, and one for the others.
    """

    id: str
    number: int
    before_widgets: bool
    keys: tuple[str, ...]


def _bounds(action: Action, keys: tuple[str, ...]) -> Iterator[_Bound]:
    """Yield an action's bindings, one for each priority.

    A binding without keys gets its own id as a key, which no terminal sends: a keymap can change
    only bindings that exist, and each has at least one key.
    """
    for number, own in enumerate([(key,) for key in keys] if action.numbered else [keys], 1):
        for early in (False, True):
            name = f"{action.id}.{number}.{'early' if early else 'late'}"
            its = tuple(key for key in own if _before_widgets(key) is early)
            yield _Bound(id=name, number=number, before_widgets=early, keys=its or (name,))


def _before_widgets(key: str) -> bool:
    """True for keys that act even while a text field has the focus."""
    return key.startswith("ctrl+") or (key[0] == "f" and key[1:].isdigit())


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys in force: the defaults with the person's keymap applied."""

    keys: Mapping[str, tuple[str, ...]]
    """Keys by action id."""
    textual: Mapping[str, str]
    """The same overrides for ``App.set_keymap``: id of a binding to its keys."""
    problems: tuple[str, ...]
    """Keymap entries that were refused, each with the reason."""

    def action(self, scope: Scope, key: str) -> Action | None:
        """Return what a key does in one scope, or None."""
        return next((a for a in ACTIONS if a.scope == scope and key in self.keys[a.id]), None)

    def label(self, action_id: str) -> str:
        """Return an action's first key, or its range of keys, as shown; empty without keys."""
        keys = self.keys[action_id]
        if BY_ID[action_id].numbered:
            return f"{_written(keys[0])}…{_written(keys[-1])}"
        return _written(keys[0]) if keys else ""

    def anywhere(self, action_id: str) -> str:
        """Return the first key of an action that acts in the prompt too; else its first key."""
        early = [key for key in self.keys[action_id] if _before_widgets(key)]
        return _written(early[0]) if early else self.label(action_id)

    def labels(self, action_id: str) -> str:
        """Return all keys of an action as shown."""
        keys = [_written(key) for key in self.keys[action_id]]
        if BY_ID[action_id].numbered and len(keys) > 2:
            return f"{keys[0]} … {keys[-1]}"
        return " ".join(keys)


def _written(key: str) -> str:
    """Return a key as shown on the screen."""
    return {"enter": "enter", "escape": "esc"}.get(key) or (
        key.upper() if key[0] == "f" and key[1:].isdigit() else format_key(key)
    )


def resolve(keymap: Mapping[str, str]) -> Keys:
    """Return the keys in force. A refused override is reported, and the default stays.

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
    # First every override gives up its old keys, so that two actions can swap theirs.
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
        bound.id: ",".join(bound.keys)
        for name in taken
        if keys[name] == taken[name]
        for bound in _bounds(BY_ID[name], keys[name])
    }
    return Keys(keys=keys, textual=textual, problems=tuple(problems))


def _long_name(key: str) -> str:
    """Return Textual's name of a key, such as ``plus`` for ``+``."""
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


_FIRST_HINTS = (
    "turn_interrupt",
    "score_good",
    "score_bad",
    "score_exact",
    "score_undo",
    "score_why",
)
"""Hints of the main screen that come right after those of the pane."""


def hints(focused: Scope, screen: Scope = "screen", without: Collection[str] = ()) -> list[Action]:
    """Return the actions that the footer hints at while a pane has the focus, at most eight.

    Args:
        focused: the pane; its own actions come first.
        screen: ``compare`` on that screen, where the main screen's actions do not apply.
        without: ids of the actions that do nothing now.
    """
    offered = [a for a in ACTIONS if a.hint and a.id not in without]
    if screen == "compare":
        own = [a for a in offered if a.scope == focused]
        return [*own[: MAX_HINTS - 1], BY_ID["help"]]
    own = [a for a in offered if a.scope == focused]
    wide = [a for a in offered if a.scope in ("screen", "app")]
    if focused == "prompt":  # printable keys type text there
        wide = [a for a in wide if any(_before_widgets(key) for key in a.keys)]
    if focused in PAGES:  # there the reply that is judged is not in sight
        wide = [a for a in wide if a.section != "Judge"]
    first = [BY_ID[name] for name in _FIRST_HINTS if BY_ID[name] in wide]
    last = [a for a in wide if a.id in ("help",)]
    rest = [a for a in wide if a not in first and a not in last]
    return [*own, *first, *rest][: MAX_HINTS - len(last)] + last


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
    title = action.title.removesuffix(" …")
    return f"| {shown} | {title}. {action.help} | {where} | `{action.id}` |"


if __name__ == "__main__":
    print(keys_document(), end="")
