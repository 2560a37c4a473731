"""The registry of actions: complete, documented, without clashes, rebindable."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fakes.screen import app_of, main, make_app, press, prompt, running, until
from textual.pilot import Pilot

from hermes_tui.core.actions import ACTIONS, BY_ID, PANES, TERMINAL_KEYS, Action, Scope
from hermes_tui.core.compare_replies import Comparison
from hermes_tui.tui.app import HermesTui
from hermes_tui.tui.keys import MAX_HINTS, bindings, hints, keys_document, resolve
from hermes_tui.tui.palette import ActionsProvider
from hermes_tui.tui.screens.compare_replies import CompareScreen
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.widgets.chat_pane import ChatView
from hermes_tui.tui.widgets.logs_pane import LogView
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.sessions_pane import SessionsPane
from hermes_tui.tui.widgets.system_pane import ProcessTree
from hermes_tui.tui.widgets.token_view import TokenView
from hermes_tui.tui.widgets.training_pane import TrainingPane

OWNERS: dict[Scope, type] = {
    "app": HermesTui,
    "screen": MainScreen,
    "prompt": Prompt,
    "sessions": SessionsPane,
    "chat": ChatView,
    "tokens": TokenView,
    "training": TrainingPane,
    "system": ProcessTree,
    "logs": LogView,
    "compare": CompareScreen,
}


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_every_action_can_be_done(action) -> None:  # type: ignore[no-untyped-def]
    assert callable(getattr(OWNERS[action.scope], f"do_{action.id}"))
    assert action.title
    assert action.help.endswith(".")


def test_ids_are_unique_and_toml_bare_keys() -> None:
    assert len(BY_ID) == len(ACTIONS)
    assert all(action.id.isidentifier() for action in ACTIONS)


def test_no_default_is_a_key_that_terminals_own() -> None:
    keys = [key for action in ACTIONS for key in action.keys]
    assert not TERMINAL_KEYS & set(keys)
    assert not [key for key in keys if key.startswith("alt+")]


def test_no_two_actions_of_one_scope_share_a_key() -> None:
    for scope in OWNERS:
        keys = [binding.key for binding in bindings(scope)]
        assert len(keys) == len(set(keys)), scope


def test_the_footer_hints_at_eight_keys_at_most_help_among_them() -> None:
    for pane in PANES:
        shown = hints(pane)
        assert 1 < len(shown) <= MAX_HINTS
        assert shown[-1].id == "help"


def test_docs_keys_is_what_the_registry_says() -> None:
    path = Path(__file__).parents[3] / "docs" / "keys.md"
    assert path.read_text(encoding="utf-8") == keys_document(), (
        "run: python -m hermes_tui.tui.keys > docs/keys.md"
    )


def test_a_keymap_gives_other_keys() -> None:
    keys = resolve({"score_good": "f3, z", "turn_interrupt": "ctrl+x"})
    assert keys.keys["score_good"] == ("f3", "z")
    assert keys.keys["turn_interrupt"] == ("ctrl+x",)
    assert keys.label("score_good") == "F3"
    assert keys.problems == ()


def test_short_names_of_keys_become_textuals() -> None:
    assert resolve({"score_bad": "_"}).keys["score_bad"] == ("underscore",)


def test_two_actions_can_swap_keys() -> None:
    keys = resolve({"session_new": "e", "session_end": "n"})
    assert keys.problems == ()
    assert (keys.keys["session_new"], keys.keys["session_end"]) == (("e",), ("n",))


def test_numbered_actions_take_a_key_for_each_value() -> None:
    nine = "q,V,d,z,j,k,m,A,W"
    keys = resolve({"score_tenths": nine})
    assert keys.problems == ()
    assert keys.keys["score_tenths"] == tuple(nine.split(","))
    assert resolve({"score_tenths": "a,b"}).problems == (
        "tui.keymap.score_tenths: needs 9 keys, one for each value",
    )


@pytest.mark.parametrize(
    ("keymap", "problem"),
    [
        ({"score_god": "g"}, "no such action; did you mean score_good?"),
        ({"score_good": "f4"}, "F4 already means “Score -1.0” (score_bad)"),
        ({"tokens_find": "n"}, "n already means “New session” (session_new)"),
        ({"score_good": " , "}, "names no key"),
        ({"theme": "g"}, "has no key to change"),
    ],
)
def test_what_cannot_be_taken_is_named_and_the_default_stays(
    keymap: dict[str, str], problem: str
) -> None:
    keys = resolve(keymap)
    assert len(keys.problems) == 1
    assert problem in keys.problems[0]
    assert keys.textual == {}
    assert keys.keys == resolve({}).keys


def test_of_two_that_want_one_key_the_first_gets_it() -> None:
    keys = resolve({"score_good": "z", "score_bad": "z"})
    assert keys.keys["score_good"] == ("z",)
    assert keys.keys["score_bad"] == ("f4", "minus")
    assert "score_bad" in keys.problems[0]


# At work ------------------------------------------------------------------------------------


def new_keys() -> tuple[Iterator[str], Iterator[str]]:
    """Return keys that mean nothing yet: those that a prompt takes as text, and others."""
    return map(chr, range(0x0410, 0x0510)), (f"ctrl+f{number}" for number in count(1))


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Have every action but note that it was done: its id, and its value where it is numbered."""
    did: list[tuple[Any, ...]] = []
    for action in ACTIONS:

        def do(_: object, *values: int, name: str = action.id) -> None:
            did.append((name, *values))

        monkeypatch.setattr(OWNERS[action.scope], f"do_{action.id}", do)
    return did


async def stand(pilot: Pilot[None], action: Action) -> None:
    """Go where an action applies."""
    app = app_of(pilot)
    screen = app.screen
    scope = action.scope if action.scope in (*PANES, "compare") else "chat"
    if isinstance(screen, (MainScreen, CompareScreen)) and screen.scope == scope:
        return
    if scope == "compare":
        controller = app.controller
        await app.push_screen(CompareScreen(controller, app.context, Comparison(controller, 2)))
        app.screen.query_one("#prompt-box").display = False
        app.screen.query_one("#sibling-0").focus()
    else:
        if isinstance(screen, CompareScreen):
            app.pop_screen()
        main(app).go(scope)
    await pilot.pause()


async def test_the_keymap_gives_every_action_other_keys(
    tmp_path: Path, done: list[tuple[Any, ...]]
) -> None:
    letters, others = new_keys()
    keymap = {
        action.id: ",".join(
            [next(others) for _ in action.keys]
            if action.numbered
            else [next(letters), next(others)]
        )
        for action in ACTIONS
        if action.keys
    }
    app, _ = make_app(tmp_path, keymap=keymap)
    assert app.keys.problems == ()
    async with running(app) as pilot:
        for action in ACTIONS:
            await stand(pilot, action)
            keys = app.keys.keys[action.id]
            numbers = [(place,) if action.numbered else () for place in range(1, len(keys) + 1)]
            done.clear()
            await press(pilot, *keys, *action.keys)  # the old ones do nothing
            assert done == [(action.id, *number) for number in numbers], action.keys


@pytest.mark.parametrize("key", ["z", "ctrl+u"])
async def test_in_the_prompt_a_chosen_letter_is_text_and_a_chosen_control_key_is_not(
    tmp_path: Path, done: list[tuple[Any, ...]], key: str
) -> None:
    app, _ = make_app(tmp_path, keymap={"score_good": f"f3,{key}", "score_undo": "f17,k"})
    async with running(app) as pilot:
        prompt(app).focus()
        await pilot.press("a", key, "k")
        typed = "azk" if key == "z" else "ak"
        await until(pilot, lambda: prompt(app).text == typed)
        assert done == ([] if key == "z" else [("score_good",)])
        main(app).go("chat")
        await pilot.press(key, "k")
        assert done[-2:] == [("score_good",), ("score_undo",)]


async def test_the_palette_offers_and_does_every_action(
    tmp_path: Path, done: list[tuple[Any, ...]]
) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        for action in ACTIONS:
            if action.numbered or action.id == "palette":
                continue  # those by number are in “exactly …”, and the palette is open already
            await stand(pilot, action)
            provider = ActionsProvider(app.screen)
            [hit] = [h async for h in provider.discover() if str(h.text) == action.title]
            found = [h.text async for h in provider.search(action.title)]
            assert action.title in map(str, found)
            done.clear()
            hit.command()
            await until(pilot, lambda: bool(done))
            assert done == [(action.id,)]
