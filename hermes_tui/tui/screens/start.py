"""The start screen: each process, what it is doing, and for how long, until the stack is ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from hermes_tui import __version__
from hermes_tui.core.models import StartStage
from hermes_tui.core.sanitize import one_line
from hermes_tui.tui.keys import Keys
from hermes_tui.tui.messages import MessageTyped
from hermes_tui.tui.widgets.formatting import PART, line, literal, progress_bar, state
from hermes_tui.tui.widgets.prompt import Prompt

TICK_S = 1.0
"""Seconds between updates of the seconds shown."""

ROLES = ("model", "router", "worker", "data-proxy", "agent-gateway", "vllm", "trainer", "learner")
"""Roles in the order of their start: a process comes after those that it waits for."""

BAR_CELLS = 24
"""Width of the progress bar."""

_ENDING = {"stopping", "stopped"}
"""States of processes that stop because another one failed."""


@dataclass(slots=True, kw_only=True)
class _Entry:
    stage: StartStage
    since: float
    took_s: float | None = None


class StartScreen(Screen[None]):
    """Stages of the start, then the reason if it fails. What is typed meanwhile is shown.

    The screen has no keys of its own. The app keeps what is typed, and types it into the main
    screen's prompt; this one's prompt only shows it.

    Args:
        clock: seconds since the epoch.
        keys: those in force.
        about: what starts, such as the model's name and the run directory.
    """

    def __init__(self, clock: Callable[[], float], keys: Keys, about: tuple[str, ...] = ()) -> None:
        super().__init__(id="start")
        self.prompt = Prompt(keys, lambda: None)
        """Shows what is typed before the main screen's prompt is there."""
        self._clock = clock
        self._keys = keys
        self._about = about
        self._began = clock()
        self._entries: dict[str, _Entry] = {}
        self._failure = ""
        self._sent: list[str] = []
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        about = "".join(PART + one_line(part) for part in (__version__, *self._about) if part)
        with VerticalScroll(id="start-scroll", can_focus=False), Vertical(id="start-box"):
            yield Static(
                Content.assemble(("hermes-tui", "bold $text-primary"), literal(about, "dim")),
                id="start-title",
            )
            yield Static(id="start-lead")
            yield Static(id="start-stages")
            yield Static(id="start-end")
        yield Static(id="start-sent")
        with Vertical(id="prompt-box"):
            yield self.prompt

    def on_mount(self) -> None:
        """Start counting the seconds."""
        self._timer = self.set_interval(TICK_S, self._draw)
        self._draw()

    def on_message_typed(self, message: MessageTyped) -> None:
        """Show a message that was finished; it is sent once the agent is there."""
        self._sent.append(message.text)
        self._draw()

    @property
    def failed(self) -> bool:
        """True once the start has failed."""
        return bool(self._failure)

    @property
    def unsent(self) -> tuple[str, ...]:
        """What was typed, message by message; the last one may be unfinished."""
        return tuple(text for text in (*self._sent, self.prompt.text) if text.strip())

    def report(self, stage: StartStage) -> None:
        """Show a process's newest stage."""
        now = self._clock()
        entry = self._entries.setdefault(stage.process, _Entry(stage=stage, since=now))
        if entry.stage.state == "failed" and stage.state in _ENDING:
            return  # the failure and its reason stay in sight
        was_waiting = entry.stage.state == "waiting"
        entry.stage = stage
        if stage.state in ("ready", "failed") and entry.took_s is None:
            entry.took_s = now - entry.since
        elif stage.state == "starting":
            entry.took_s = None
            entry.since = now if was_waiting else entry.since
        self._draw()

    def fail(self, reason: str) -> None:
        """Show why the stack did not start."""
        self._failure = reason
        if self._timer:
            self._timer.stop()
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        now = self._clock()
        self.query_one("#start-lead", Static).update(self._lead(now))
        rows = [self._row(entry, now) for entry in self._in_order()]
        self.query_one("#start-stages", Static).update(Content("\n").join(rows))
        self.query_one("#start-end", Static).update(self._end())
        sent = self.query_one("#start-sent", Static)
        sent.update(
            Content("\n").join(
                [line(f"◌ sent when the agent is there: {text}", "dim") for text in self._sent]
            )
        )
        sent.display = bool(self._sent)

    def _in_order(self) -> list[_Entry]:
        """Return the processes in the order of their start."""

        def place(entry: _Entry) -> tuple[int, str]:
            role = entry.stage.process.rstrip("0123456789").rstrip("-")
            return (ROLES.index(role) if role in ROLES else len(ROLES), entry.stage.process)

        return sorted(self._entries.values(), key=place)

    def _lead(self, now: float) -> Content:
        """Return what happens, with a bar while processes start."""
        states = [entry.stage.state for entry in self._entries.values()]
        seconds = f"{now - self._began:.0f} s"
        if self._failure or _ENDING & set(states):
            stops = "" if self._failure else ": what was started stops again"
            return Content.styled(f"that did not work{stops} · {seconds}", "dim")
        if not states:
            return Content.styled(f"looking for a stack · {seconds}", "dim")
        ready = states.count("ready")
        bar = progress_bar(ready / len(states), BAR_CELLS)
        count = f" {ready} of {len(states)} processes ready · {seconds}"
        return Content.assemble((bar, "$text-accent"), (count, "dim"))

    def _end(self) -> Content:
        key = self._keys.label("quit")
        if self._failure:
            leave = Content.styled(f"{key} leaves", "dim")
            return Content("\n").join([literal(f"✗ {self._failure}", "$text-error"), leave])
        if any(entry.stage.state in _ENDING for entry in self._entries.values()):
            return Content()
        return Content.styled(f"you can type already · {key} leaves", "dim")

    def _row(self, entry: _Entry, now: float) -> Content:
        stage = entry.stage
        took = entry.took_s if entry.took_s is not None else now - entry.since
        seconds = "" if stage.state == "waiting" else f"{took:.0f} s"
        word = state(stage.state)
        pad = " " * max(11 - word.cell_length, 1)
        text = line(stage.text, "dim")
        return Content.assemble(
            word, pad, f"{one_line(stage.process):<16}", (f"{seconds:>6}  ", "dim"), text
        )
