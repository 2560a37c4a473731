"""Every key in every place, and keys, pastes and sizes in no order: nothing may end the app."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.backend import FakeBackend
from fakes.hostile import HOSTILE, assert_harmless
from fakes.screen import (
    NARROW,
    WIDE,
    add_past,
    app_of,
    click,
    main,
    make_app,
    mouse,
    running,
    say_and_hear,
)
from textual import events
from textual.pilot import Pilot
from textual.screen import ModalScreen, Screen

from hermes_tui.core.actions import ACTIONS, PANES, Scope
from hermes_tui.core.changes import PendingApproval
from hermes_tui.core.compare_replies import Comparison
from hermes_tui.tui.app import HermesTui
from hermes_tui.tui.palette import Palette
from hermes_tui.tui.screens.approval import ApprovalScreen
from hermes_tui.tui.screens.compare_replies import CompareScreen, GroupSizeScreen
from hermes_tui.tui.screens.confirm import ConfirmScreen, VersionScreen
from hermes_tui.tui.screens.dialogs import AskScreen, Dialog, QuitScreen, RewardScreen
from hermes_tui.tui.screens.help import HelpScreen
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.screens.stopping import StoppingScreen

TINY = (50, 15)
NUM_STEPS = 60
"""Of the walk in no order."""

OTHERS = (  # noqa: SIM905
    "up down left right home end pageup pagedown enter escape space tab shift+tab backspace delete "
    "ctrl+home ctrl+end shift+left ctrl+c ctrl+z ctrl+v ctrl+d ctrl+g ctrl+backslash f12 f20 alt+x "
    "ctrl+shift+f3 comma at ä 漢 no_such_key"
).split()
"""Keys that people hit beside those of the registry."""

KEYS = sorted(
    {
        key
        for action in ACTIONS
        for key in (action.keys[:: len(action.keys) - 1] if action.numbered else action.keys)
    }
)
KEYS += OTHERS
"""Every binding; of those by number the first and the last."""

MOVES = OTHERS[:12]
"""Those that every pane knows, and leaving and entering it."""

DIALOG_KEYS = [
    *OTHERS,
    *"sdcynqo019L",
    "f1",
    "f2",
    "f3",
    "f10",
    "ctrl+o",
    "ctrl+p",
    "ctrl+q",
    "slash",
]
"""In a dialog one letter is as good as another, but for those that answer."""

ASKED = PendingApproval(session_id="sess-1", approval_id="a", question="?", choices=("once",))


def palette(_: HermesTui, __: FakeBackend) -> Screen[object]:
    return Palette()


def comparison(app: HermesTui, backend: FakeBackend) -> Screen[object]:
    app.controller.state.pending_approvals["a"] = ASKED
    return CompareScreen(app.controller, app.context, Comparison(app.controller, 2))


def approval(app: HermesTui, _: FakeBackend) -> Screen[object]:
    app.controller.state.pending_approvals["a"] = ASKED
    return ApprovalScreen(app.controller, ASKED)


WHEEL = (events.MouseScrollUp, events.MouseScrollDown)
DRAG = (events.MouseDown, events.MouseMove, events.MouseUp)
PASTED = [HOSTILE[name] for name in ("steering", "markup", "white")]

SCREENS: dict[str, Callable[[HermesTui, FakeBackend], Screen[object]]] = {
    "palette": palette,
    "comparison": comparison,
    "approval": approval,
    "help": lambda app, _: HelpScreen(app.keys, "chat"),
    "quit": lambda *_: QuitScreen(),
    "reward": lambda *_: RewardScreen((-1.0, 1.0)),
    "ask": lambda *_: AskScreen("What?"),
    "size": lambda *_: GroupSizeScreen(again=True),
    "confirm": lambda *_: ConfirmScreen("Sure?", "It restarts.", "Yes"),
    "versions": lambda app, _: VersionScreen(app.controller.state),
}


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the app stay when it is told to leave, and note what the question about that got."""
    answered: list[str] = []
    answers: list[str] = []

    def dismiss(screen: QuitScreen, answer: str | None = None) -> None:
        if answer in ("stop", "detach"):
            answers.append(answer)
        Dialog.dismiss(screen, answer)

    def leave(_: HermesTui, *__: object, **___: object) -> None:
        answered.append(answers.pop() if answers else "nobody was asked")

    monkeypatch.setattr(QuitScreen, "dismiss", dismiss)
    monkeypatch.setattr(HermesTui, "exit", leave)
    monkeypatch.setattr("hermes_tui.tui.clipboard.TOOLS", ())
    return answered


async def back(pilot: Pilot[None]) -> None:
    """Close whatever lies over the main screen."""
    app = app_of(pilot)
    while not isinstance(app.screen, MainScreen):
        await app.pop_screen()


async def press(pilot: Pilot[None], key: str) -> None:
    """Press a key, whatever it does, and look where the next one would go."""
    app = app_of(pilot)
    app.post_message(events.Key(key, key if len(key) == 1 else None))
    await pilot.pause()
    assert_sensible_focus(app, key)


def assert_sensible_focus(app: HermesTui, key: str) -> None:
    """Check that keys go somewhere a person can see; a dialog without a field has only keys."""
    focused = app.focused
    assert focused is not None or isinstance(app.screen, ModalScreen), key
    assert focused is None or all(node.display for node in focused.ancestors_with_self), key
    assert not isinstance(app.screen, MainScreen) or app.screen.scope in PANES, key


@pytest.mark.parametrize(
    ("size", "panes"),
    [*((WIDE, [pane]) for pane in PANES), (NARROW, list(PANES)), (TINY, list(PANES))],
    ids=[*PANES, "narrow", "tiny"],
)
async def test_every_key_in_every_pane(
    tmp_path: Path, size: tuple[int, int], panes: list[Scope], left: list[str]
) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, WIDE) as pilot:
        await say_and_hear(pilot)
        await pilot.resize_terminal(*size)
        for pane in panes:
            own = [key for action in ACTIONS if action.scope == pane for key in action.keys]
            for key in KEYS if size == WIDE else [*own, *MOVES]:
                await back(pilot)
                if main(app).scope != pane:
                    main(app).go(pane)
                await press(pilot, key)
            app.post_message(events.Paste(HOSTILE["steering"]))
            await pilot.pause()
            assert_harmless(app)
    assert left == []  # a key alone never ends it: the question would have to be answered
    assert ("shutdown",) not in backend.calls


@pytest.mark.parametrize("name", SCREENS)
async def test_every_key_in_every_dialog(tmp_path: Path, name: str, left: list[str]) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, NARROW) as pilot:
        await say_and_hear(pilot)
        opened: Screen[object] | None = None
        for key in DIALOG_KEYS:
            if app.screen is not opened:
                await back(pilot)
                opened = SCREENS[name](app, backend)
                await app.push_screen(opened)
                app.post_message(events.Paste("pasted"))
            await press(pilot, key)
        assert_harmless(app)
        await back(pilot)
        assert_sensible_focus(app, "the end")
    assert not left or name == "quit"
    assert "nobody was asked" not in left


@pytest.mark.parametrize("seed", [7, 8])
async def test_keys_mouse_and_sizes_in_no_order_while_the_agent_speaks(
    tmp_path: Path, seed: int, left: list[str]
) -> None:
    app, backend = make_app(tmp_path, training=bool(seed % 2))
    if seed % 2:
        add_past(backend)
    backend.reply, backend.logprobs = list(HOSTILE.values())[:5], [-0.1] * 5
    chance = random.Random(seed)
    pressed: list[str] = []
    try:
        async with running(app) as pilot:
            for _ in range(NUM_STEPS):
                for key in chance.choices(KEYS, k=4):  # a burst, taken one after the other
                    pressed.append(key)
                    app.post_message(events.Key(key, key if len(key) == 1 else None))
                size = app.size
                places = [
                    (chance.randrange(size.width), chance.randrange(size.height)) for _ in "ab"
                ]
                match chance.randrange(12):
                    case 0:
                        pressed.append("a resize")
                        await pilot.resize_terminal(chance.randint(1, 200), chance.randint(1, 60))
                    case 1 if not app.controller.state.running_turn(app.controller.state.selected):
                        app.run_worker(app.controller.send("go on"))
                    case 2:
                        backend.emit_control()
                    case 3:
                        backend.emit("episode.opened", session_id=chance.choice(["sess-1", "?"]))
                    case 4:
                        pressed.append(f"clicks at {places[0]}")
                        await click(pilot, places[0], times=chance.randint(1, 3))
                    case 5:
                        pressed.append(f"the wheel at {places[0]}")
                        mouse(pilot, chance.choice(WHEEL), places[0])
                    case 6:
                        pressed.append(f"a drag from {places[0]} to {places[1]}")
                        for kind, place in zip(DRAG, (*places, places[1]), strict=True):
                            mouse(pilot, kind, place)
                    case 7:
                        pressed.append("a paste")
                        app.post_message(events.Paste(chance.choice(PASTED)))
                    case 8:
                        backend.write_log("supervisor", *PASTED)
                await pilot.pause()
                assert_harmless(app)
                if isinstance(app.screen, StoppingScreen) or len(app.screen_stack) > 5:
                    await back(pilot)
            await pilot.resize_terminal(*WIDE)
            await back(pilot)
            assert_sensible_focus(app, "the end")
    except BaseException as error:
        error.add_note(f"seed {seed}; the last keys: {pressed[-40:]}")
        raise
    assert "nobody was asked" not in left
