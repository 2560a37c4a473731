"""The Textual app: starts or joins the stack, then shows the main screen."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shlex
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import ActiveBinding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, TextArea

from hermes_tui.core.actions import BY_ID
from hermes_tui.core.controller import Controller
from hermes_tui.core.errors import EXIT_NOT_STARTED
from hermes_tui.core.program import PROGRAM, typed_program
from hermes_tui.core.sanitize import clean
from hermes_tui.tui.clipboard import copy
from hermes_tui.tui.context import AppContext
from hermes_tui.tui.keys import Keys, bindings, resolve
from hermes_tui.tui.last_words import goes_on, not_sent
from hermes_tui.tui.messages import ActionPressed, CopyRequested
from hermes_tui.tui.palette import ActionsProvider, Palette
from hermes_tui.tui.screens.action_screen import ActionScreen
from hermes_tui.tui.screens.approval import ApprovalScreen
from hermes_tui.tui.screens.dialogs import QuitChoice, QuitScreen
from hermes_tui.tui.screens.help import HelpScreen
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.screens.start import StartScreen
from hermes_tui.tui.screens.stopping import StoppingScreen
from hermes_tui.tui.screens.theme import ThemeScreen
from hermes_tui.tui.theme_contrast import readable
from hermes_tui.tui.widgets.base import ActionOwner
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui_common.errors import HermesTuiError

if TYPE_CHECKING:
    from hermes_tui.config.settings import Config

LEAVE_S = 2.0
"""Seconds that the app may take to leave after a signal."""

HUNG_UP_S = 0.5
"""The same after SIGHUP: the terminal is gone, and nothing of it can be restored."""

ON_TOP_POLL_S = 0.05
"""Seconds between looks whether a dialog was answered."""

FINISH_S = 0.5
"""Seconds that leaving waits for actions in flight, such as a score."""
NUM_FINISH_POLLS = 50
"""How often it checks within that time."""

TITLES_S = 2.0
"""Seconds that the main screen waits for the sessions' titles; later ones appear in it."""

KEYS_WITHOUT_TEXT = frozenset({"escape", "tab", "shift+tab", "up", "down", "pageup", "pagedown"})
"""Keys that are not kept for the prompt: they would leave it, or recall another message."""

DOUBLE_PRESS_S = 2.0
"""Two presses of ctrl+c within this time quit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenSettings:
    """The settings of the screen itself."""

    folder: Path
    """The run directory: copies and the remembered theme go there."""
    theme: str = "textual-dark"
    """``tui.theme``."""
    keymap: dict[str, str] = field(default_factory=dict)
    """``tui.keymap``."""
    about: tuple[str, ...] = ()
    """What the start screen shows of what it starts, such as the model and the run directory."""
    command: str = PROGRAM
    """What opens this screen again, to be told after leaving."""


class HermesTui(ActionOwner, App[None], inherit_bindings=False):
    """The screen over one controller.

    Args:
        controller: the use cases, over a backend that has not been started.
        settings: theme, keys, folder.
    """

    TITLE = "hermes-tui"
    NOTIFICATION_TIMEOUT = 3.5
    CSS_PATH = "styles/hermes.tcss"
    ENABLE_COMMAND_PALETTE = False  # the palette is an action of our own, with keys of its own
    COMMANDS: ClassVar[set[Callable[[], type[ActionsProvider]] | type[ActionsProvider]]] = {  # type: ignore[assignment]
        ActionsProvider
    }
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("app")]

    def __init__(self, controller: Controller, settings: ScreenSettings) -> None:
        super().__init__()
        self.controller = controller
        self.settings = settings
        self.keys: Keys = resolve(settings.keymap)
        controller.notifier.action_label = self.keys.label
        self.last_words: list[str] = []
        """Printed once the terminal is given back."""
        self._interrupted_at = float("-inf")
        self._ahead: list[events.Key | events.Paste] = []
        """What was typed before the prompt was there."""
        self._prompt_ready = False
        """Whether the prompt is there, and all that was typed before is in it."""

    @property
    def context(self) -> AppContext:
        """What screens need to know of the app; right once it is attached to a stack."""
        training = self.controller.state.info.training
        return AppContext(keys=self.keys, folder=self.settings.folder, training=training)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Offer none of Textual's own commands: the registry has all there is."""
        return ()

    def on_load(self) -> None:
        """Install the signal handlers before the terminal is changed."""
        self._catch_signals()

    async def on_mount(self) -> None:
        """Show the start screen, and start or join the stack."""
        self.set_keymap(dict(self.keys.textual))
        self._restore_theme()
        screen = StartScreen(self.controller.clock, self.keys, self.settings.about)
        await self.push_screen(screen)
        for event in list(self._ahead):
            await self._show_ahead(event)
        self.run_worker(self._start(screen), group="start")

    async def _start(self, screen: StartScreen) -> None:
        try:
            await self.controller.start(screen.report)
        except HermesTuiError as error:
            screen.fail(str(error))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(TITLES_S):
                await self.controller.notifier.attempt(self.controller.history.read_titles())
        draft = await self.controller.reopen()
        await self._until_on_top(screen)  # else it is the dialog above it that is replaced
        main = MainScreen(self.controller, self.context)
        await self.switch_screen(main)
        main.go("prompt")
        main.query_one(Prompt).begin_with(draft, aside=bool(self._ahead))
        while self._ahead:
            await self._until_on_top(main)
            await self._take(self._ahead.pop(0))
        self._prompt_ready = True
        for problem in self.keys.problems:
            self.notify(clean(problem), severity="warning", markup=False, timeout=10)

    async def _until_on_top(self, screen: Screen[None]) -> None:
        """Wait until the dialogs above a screen were answered."""
        while self.screen is not screen:  # noqa: ASYNC110  (Textual signals it too late, by a message)
            await asyncio.sleep(ON_TOP_POLL_S)

    def _catch_signals(self) -> None:
        """Leave in good order on a signal. The stack keeps running, as after a lost connection."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave_at_once, 128 + number)

    def _leave_at_once(self, code: int) -> None:
        """Leave. A timer ends the process if the terminal no longer takes output."""
        deadline_s = HUNG_UP_S if code == 128 + signal.SIGHUP else LEAVE_S
        deadline = threading.Timer(deadline_s, os._exit, (code,))
        deadline.daemon = True
        deadline.start()
        self.workers.cancel_group(self, "start")
        self.exit(return_code=code)

    async def on_unmount(self) -> None:
        """Cancel the workers, then disconnect from the stack."""
        self.workers.cancel_all()
        await self.controller.close()

    async def on_event(self, event: events.Event) -> None:
        """Keep what is typed too early, clean what is pasted, and run bindings in order.

        Textual (8.2.8) runs a binding only when its key has bubbled up to the app. By then the keys
        typed after it are queued for the widget that had the focus: a message typed after the key
        to the prompt would go to the pane. See https://github.com/Textualize/textual/issues/6605.
        """
        if isinstance(event, (events.Key, events.Paste)) and self._is_ahead(event):
            self._ahead.append(event)
            await self._show_ahead(event)
        elif isinstance(event, (events.Key, events.Paste)) and self._is_for_prompt_below(event):
            self._main.query_one(Prompt).insert(_text_of(event))
        else:
            await self._take(event)

    def _is_ahead(self, event: events.Key | events.Paste) -> bool:
        """Return whether an event is kept until the prompt is there: it has text, or edits it."""
        if self._prompt_ready or (isinstance(self.screen, ModalScreen) and not _text_of(event)):
            return False
        if isinstance(self.screen, ModalScreen) and not isinstance(self.screen, QuitScreen):
            return False
        if isinstance(event, events.Paste):
            return True
        active = self.screen.active_bindings.get(event.key)
        ours = active is not None and active.node is self
        return not ours and event.key not in KEYS_WITHOUT_TEXT and not _is_function_key(event.key)

    def _is_for_prompt_below(self, event: events.Key | events.Paste) -> bool:
        """Return whether an event is text that goes on in the prompt under the quit dialog."""
        return self._prompt_ready and isinstance(self.screen, QuitScreen) and bool(_text_of(event))

    async def _show_ahead(self, event: events.Key | events.Paste) -> None:
        """Show an event that is kept in the start screen's prompt; that one sends nothing."""
        screens = [screen for screen in self.screen_stack if isinstance(screen, StartScreen)]
        if screens and isinstance(event, events.Paste):
            screens[0].prompt.post_message(events.Paste(clean(event.text)))
        elif screens and isinstance(event, events.Key):
            screens[0].prompt.post_message(events.Key(event.key, event.character))

    @property
    def _main(self) -> MainScreen:
        return next(screen for screen in self.screen_stack if isinstance(screen, MainScreen))

    async def _take(self, event: events.Event) -> None:
        """Take an event now."""
        if isinstance(event, events.Key):
            active = self.screen.active_bindings.get(event.key)
            if active and active.binding.action == "paste":
                event = events.Paste(self.clipboard)  # like a paste by the terminal: all lines
            elif await self._handled_in_order(event.key, active):
                return
        if isinstance(event, events.Paste):
            # Terminals, and tmux, send line ends as carriage returns, as the enter key does.
            event.text = clean(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        await super().on_event(event)

    async def _handled_in_order(self, key: str, active: ActiveBinding | None) -> bool:
        """Run a key's binding now; return whether it ran.

        Text fields are left out: they keep the order themselves (``act_in_order``). Leaving the
        prompt is not: the prompt would do it only after the keys that follow are queued for it.
        """
        focused = self.focused
        if isinstance(focused, Prompt) and key in self.keys.keys["prompt_leave"]:
            focused.action_do("prompt_leave")
            return True
        if active is None or isinstance(focused, (Input, TextArea)):
            return False
        return await self.run_action(active.binding.action, active.node)

    # Theme ---------------------------------------------------------------------------------

    def get_css_variables(self) -> dict[str, str]:
        """Return the theme's colours, with enough contrast."""
        self.register_theme(readable(self.current_theme))
        return super().get_css_variables()

    @property
    def _theme_file(self) -> Path:
        return self.settings.folder / "theme.json"

    def _restore_theme(self) -> None:
        """Use the remembered theme, unless ``tui.theme`` has changed since it was chosen."""
        name = self.settings.theme
        try:
            remembered = json.loads(self._theme_file.read_text(encoding="utf-8"))
            if remembered["over"] == name:
                name = remembered["theme"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no theme is remembered, or the file is damaged
        if name in self.available_themes:
            self.theme = name
        else:
            text = f"tui.theme: there is no theme “{name}”; the palette lists those there are"
            self.notify(clean(text), severity="warning", markup=False, timeout=10)

    def _remember_theme(self, name: str) -> None:
        text = json.dumps({"theme": name, "over": self.settings.theme})
        try:
            self._theme_file.write_text(text, encoding="utf-8")
        except OSError as error:
            self.notify(f"the theme is not remembered: {error.strerror}", severity="warning")

    # Actions -------------------------------------------------------------------------------

    def action_press(self, action_id: str) -> Awaitable[None] | None:
        """Do an action by its id: the app's own, or one of the screen on top."""
        if BY_ID[action_id].scope == "app":
            return self.action_do(action_id)
        return self.screen.press(action_id) if isinstance(self.screen, ActionScreen) else None

    def do_help(self) -> None:
        """Show the keys."""
        if isinstance(self.screen, HelpScreen):
            return
        scope = self.screen.scope if isinstance(self.screen, ActionScreen) else "app"
        self.push_screen(HelpScreen(self.keys, scope))

    def do_palette(self) -> None:
        """Show the palette."""
        if isinstance(self.screen, ActionScreen):
            self.push_screen(Palette())

    def do_approval_answer(self) -> None:
        """Open an approval: the open session's, else the oldest."""
        request = next(iter(self.controller.state.approval_queue), None)
        if request is None:
            self.notify("the agent asks nothing now", markup=False)
        elif not isinstance(self.screen, ModalScreen):

            async def answer(choice: str | None) -> None:
                if choice is not None:
                    await self.controller.approvals.answer(request, choice)

            self.push_screen(ApprovalScreen(self.controller, request), answer)

    async def on_action_pressed(self, message: ActionPressed) -> None:
        """Do an action that was clicked, or chosen in the palette."""
        if (doing := self.action_press(message.action_id)) is not None:
            await doing

    def do_theme(self) -> None:
        """Choose a theme, and remember it."""

        def keep(name: str | None) -> None:
            if name is not None:
                self._remember_theme(name)

        if not isinstance(self.screen, ModalScreen):
            self.push_screen(ThemeScreen(), keep)

    def do_copy_or_quit(self) -> None:
        """Copy the selection; without one, quit when pressed twice."""
        selected = self.screen.get_selected_text() or getattr(
            self.screen.focused, "selected_text", ""
        )
        if selected:
            self.post_message(CopyRequested(selected, "the selection"))
            return
        now = self.controller.clock()
        if isinstance(self.screen, ActionScreen) and self.screen.interrupt():
            self._interrupted_at = now
        elif now - self._interrupted_at < DOUBLE_PRESS_S:
            self.do_quit()
        else:
            self._interrupted_at = now
            self.notify(f"ctrl+c again quits, or {self.keys.label('quit')}", markup=False)

    async def on_copy_requested(self, message: CopyRequested) -> None:
        """Copy text, and show where it went."""
        text = clean(message.text)  # it may be pasted into a terminal
        if not text:
            self.notify(f"there is no text in {message.what}", markup=False)
            return
        where = await copy(self, text, self.settings.folder / "copied")
        self.notify(clean(f"{message.what}: {where}"), markup=False)

    def do_quit(self) -> None:
        """Ask whether the stack stops too, then leave."""
        if isinstance(self.screen, (QuitScreen, StoppingScreen)):
            return
        if isinstance(self.screen, StartScreen) and self.screen.failed:
            self._keep_typed()
            self.exit(return_code=EXIT_NOT_STARTED)
        elif self.controller.state.lost:
            self._keep_typed()
            self.exit()
        else:
            self.push_screen(QuitScreen(self.settings.command), self._leave)

    async def _leave(self, choice: QuitChoice | None) -> None:
        if choice in ("stop", "detach"):
            await self._finish_pending_actions()
            self.workers.cancel_group(self, "start")  # the main screen must not open any more
        if choice == "detach":
            settings, state = self.settings, self.controller.state
            self.last_words.append(goes_on(state, settings.folder, settings.command))
            self._keep_typed()
            self.exit()
        elif choice == "stop":
            self._keep_typed()
            self.push_screen(StoppingScreen(self.controller))

    def _keep_typed(self) -> None:
        """Keep what was typed and not sent for the next view; print it where none can read it."""
        for screen in self.screen_stack:
            if isinstance(screen, MainScreen):
                self.controller.remember(screen.draft)
            elif isinstance(screen, StartScreen) and (words := not_sent(screen.unsent)):
                self.last_words.append(words)

    async def _finish_pending_actions(self) -> None:
        """Wait until actions in flight, such as a score, have reached the stack.

        A main screen that has just opened takes what was typed before it.
        """
        opened = any(isinstance(screen, MainScreen) for screen in self.screen_stack)
        groups = {"actions", "start"} if opened else {"actions"}
        for _ in range(NUM_FINISH_POLLS):
            if all(worker.is_finished for worker in self.workers if worker.group in groups):
                return
            await asyncio.sleep(FINISH_S / NUM_FINISH_POLLS)


def _text_of(event: events.Key | events.Paste) -> str:
    """Return the text that a key or a paste puts into a field; empty for none."""
    if isinstance(event, events.Paste):
        return clean(event.text.replace("\r\n", "\n").replace("\r", "\n"))
    return event.character or "" if event.is_printable else ""


def _is_function_key(key: str) -> bool:
    return key[0] == "f" and key[1:].isdigit()


def relax_garbage_collector() -> None:
    """Run the garbage collector less often, and never over the imported modules.

    Textual makes and drops many objects. With Python's default thresholds the oldest generation is
    collected more than once a second while a reply streams in, and each time takes longer than a
    key press may.
    """
    gc.freeze()
    gc.set_threshold(5_000, 5, 50)


def _command(root: Path) -> str:
    """Return the command that opens a run directory's screen again from here."""
    from hermes_tui.config.paths import RunDir
    from hermes_tui.config.settings import load_config

    try:
        is_default = RunDir.of(load_config()).root == root
    except HermesTuiError:
        is_default = False
    return shlex.join([typed_program(), *([] if is_default else [f"run.dir={root}"])])


def run_app(config: Config) -> int:
    """Run the screen until the person leaves it; return the process's exit code."""
    from hermes_tui.config.paths import RunDir
    from hermes_tui.stack_client.remote import make_controller

    run_dir = RunDir.of(config)
    controller = make_controller(config)
    model = (Path(config.model.path).name,) if config.training.enabled else ()
    settings = ScreenSettings(
        folder=run_dir.root,
        theme=config.tui.theme,
        keymap=config.tui.keymap,
        about=(*model, str(run_dir.root)),
        command=_command(run_dir.root),
    )
    app = HermesTui(controller, settings)
    relax_garbage_collector()
    app.run()
    gc.freeze()  # skips a last collection over everything that was shown
    for words in app.last_words:
        print(words)
    return app.return_code or 0
