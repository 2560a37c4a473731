"""The app over the fake stack, and waiting for what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fakes.backend import FakeBackend, FakeClock, make_step
from textual import events
from textual.css.query import NoMatches
from textual.errors import NoWidget
from textual.pilot import Pilot
from textual.widgets import Static

from hermes_tui.core.controller import Controller
from hermes_tui.tui.app import HermesTui, ScreenSettings
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.widgets.chat_pane import ChatPane
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.sessions_pane import SessionsPane
from hermes_tui.tui.widgets.system_pane import ProcessTree, SystemPane
from hermes_tui.tui.widgets.token_view import TokensPane, TokenView

WIDE = (120, 40)
NARROW = (80, 24)
DEADLINE_S = 30.0
POLL_S = 0.01


def make_app(
    folder: Path,
    *,
    training: bool = True,
    keymap: dict[str, str] | None = None,
    theme: str = "textual-dark",
) -> tuple[HermesTui, FakeBackend]:
    """Return an app and the fake stack it will attach to."""
    clock = FakeClock()
    backend = FakeBackend(clock, training=training)
    settings = ScreenSettings(folder=folder, theme=theme, keymap=keymap or {})
    return HermesTui(Controller(backend, clock=clock), settings), backend


def add_past(backend: FakeBackend) -> None:
    """Have two sessions with episodes in several states, and eight steps."""
    backend.add_session("sess-1", created_at=10)
    backend.add_episode(
        "sess-1",
        "Greet Ada in one sentence.",
        "Good day to you, dear Ada, how are you today?",
        state="trained",
        reward=1.0,
        version=5,
        step=6,
    )
    backend.add_episode(
        "sess-1", "Again, shorter.", "Hi Ada!", state="trained", reward=-1.0, version=6, step=7
    )
    backend.add_session("sess-2", created_at=5, ended=True)
    backend.add_episode(
        "sess-2",
        "Why is the sky blue?",
        "Because of",
        state="unscored",
        version=4,
        reason="truncated",
    )
    backend.step_rows = [make_step(i, (1.0, -1.0, 0.5)[i % 3]) for i in range(1, 9)]


async def until(pilot: Pilot[None], holds: Callable[[], bool], what: str = "") -> None:
    """Wait until something holds, and until the screen on top can be clicked.

    Where what is looked at is not there yet, it does not hold.

    Raises: AssertionError: it does not within the deadline.
    """
    end = asyncio.get_running_loop().time() + DEADLINE_S

    def holds_now() -> bool:
        try:
            return holds()
        except (LookupError, NoMatches):
            return False

    while not (holds_now() and laid_out(pilot)):
        if asyncio.get_running_loop().time() >= end:
            raise AssertionError(f"never came: {what or holds}; {seen(pilot)}")
        await asyncio.sleep(POLL_S)
    await pilot.pause()


def laid_out(pilot: Pilot[None]) -> bool:
    """Whether the screen on top, if any is left, has places: at first it has none."""
    app = app_of(pilot)
    if not app.is_running or not app.screen_stack:
        return True
    try:
        app.get_widget_at(0, 0)
    except NoWidget:
        return False
    return True


def seen(pilot: Pilot[None]) -> str:
    """Return what a failed wait would like to know."""
    app = app_of(pilot)
    about = f"screen={app.screen} focus={app.focused} notices={notices(app)}"
    if any(isinstance(screen, MainScreen) for screen in app.screen_stack):
        about += f" badges={badges(app)} prompt={prompt(app).text!r}"
    return f"{about} state={app.controller.state}"


@asynccontextmanager
async def running(app: HermesTui, size: tuple[int, int] = WIDE) -> AsyncIterator[Pilot[None]]:
    """Run the app until the main screen is there."""
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: isinstance(app.screen, MainScreen), "the main screen")
        await until(pilot, lambda: bool(main(app).query(SystemPane)), "the panes")
        await until(pilot, lambda: bool(stack(app).rows), "the first painting")
        yield pilot


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys right after each other, and wait once for what all of them do."""
    for key in keys:
        pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))
    await pilot.pause()


async def click(pilot: Pilot[None], place: tuple[int, int], times: int = 1) -> None:
    """Click as a terminal does: whether or not anything is there yet, and without waiting."""
    for kind in (events.MouseDown, events.MouseUp) * times:
        mouse(pilot, kind, place)
    await pilot.pause()


def mouse(pilot: Pilot[None], kind: type[events.MouseEvent], place: tuple[int, int]) -> None:
    """Have the mouse do something at a cell; one button is down while it moves."""
    pilot.app.post_message(kind(None, *place, 0, 0, 1, False, False, False))


async def say(pilot: Pilot[None], text: str = "hello") -> None:
    """Type a message and send it."""
    prompt(app_of(pilot)).focus()
    await press(pilot, *text, "enter")


async def say_and_hear(pilot: Pilot[None], text: str = "hello") -> None:
    """Send a message and wait for the reply to be recorded and shown."""
    await say(pilot, text)
    app = app_of(pilot)

    def heard() -> bool:
        return "not judged yet" in "".join(badges(app)[-1:])

    await until(pilot, heard, "the end of the turn")


def app_of(pilot: Pilot[None]) -> HermesTui:
    """Return the app under test."""
    assert isinstance(pilot.app, HermesTui)
    return pilot.app


def main(app: HermesTui) -> MainScreen:
    """Return the main screen, below any dialog."""
    return next(screen for screen in app.screen_stack if isinstance(screen, MainScreen))


def prompt(app: HermesTui) -> Prompt:
    """Return the prompt."""
    return main(app).query_one(Prompt)


def chat(app: HermesTui) -> ChatPane:
    """Return the conversation's pane."""
    return main(app).query_one(ChatPane)


def tokens(app: HermesTui) -> TokenView:
    """Return the token view."""
    return main(app).query_one(TokensPane).view


def stack(app: HermesTui) -> ProcessTree:
    """Return the processes."""
    return main(app).query_one(ProcessTree)


def sessions(app: HermesTui) -> SessionsPane:
    """Return the sessions' pane."""
    return main(app).query_one(SessionsPane)


def badges(app: HermesTui) -> list[str]:
    """Return the text of every badge in the chat, oldest first."""
    return [str(badge.content) for badge in main(app).query(".badge").results(Static)]


def notices(app: HermesTui) -> list[str]:
    """Return the texts of the toasts there are."""
    return [notice.message for notice in app._notifications]
