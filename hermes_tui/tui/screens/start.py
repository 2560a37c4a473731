"""The start screen: each process, what it is doing, and for how long, until the stack is ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from hermes_tui.core.models import StartStage
from hermes_tui.core.sanitize import one_line
from hermes_tui.tui.widgets.formatting import line, literal, state

LOGO = "hermes-tui"
TICK_S = 1.0
"""Seconds between updates of the seconds shown."""


_ENDING = {"stopping", "stopped"}
"""States of processes that stop because another one failed."""


@dataclass(slots=True, kw_only=True)
class _Entry:
    stage: StartStage
    since: float
    took_s: float | None = None


class StartScreen(Screen[None]):
    """Stages of the start, then the reason if it fails."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape", "app.do('quit')", show=False)]

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(id="start")
        self._clock = clock
        self._began = clock()
        self._entries: dict[str, _Entry] = {}
        self._failure = ""
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        with VerticalScroll(id="start-scroll"), Vertical(id="start-box"):
            yield Static(Content.styled(LOGO, "bold $text-primary"), id="start-title")
            yield Static(id="start-lead")
            yield Static(id="start-stages")
            yield Static(id="start-end")

    def on_mount(self) -> None:
        """Start counting the seconds."""
        self._timer = self.set_interval(TICK_S, self._draw)
        self._draw()

    @property
    def failed(self) -> bool:
        """True once the start has failed."""
        return bool(self._failure)

    def report(self, stage: StartStage) -> None:
        """Show a process's newest stage."""
        now = self._clock()
        entry = self._entries.setdefault(stage.process, _Entry(stage=stage, since=now))
        if entry.stage.state == "failed" and stage.state in _ENDING:
            return  # the failure and its reason stay in sight
        entry.stage = stage
        if stage.state in ("ready", "failed") and entry.took_s is None:
            entry.took_s = now - entry.since
        elif stage.state == "starting":
            entry.took_s = None
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
        states = {entry.stage.state for entry in self._entries.values()}
        lead = "starting agent, model and trainer" if states else "looking for a stack"
        if states & _ENDING:
            lead = "that did not work: what was started stops again"
        if self._failure:
            lead = "that did not work"
        seconds = f" · {now - self._began:.0f} s"
        self.query_one("#start-lead", Static).update(Content.styled(lead + seconds, "dim"))
        rows = [self._row(entry, now) for entry in self._entries.values()]
        self.query_one("#start-stages", Static).update(Content("\n").join(rows))
        end = self.query_one("#start-end", Static)
        if self._failure:
            end.update(
                Content("\n").join(
                    [
                        literal(f"✗ {self._failure}", "$text-error"),
                        Content.styled("q leaves", "dim"),
                    ]
                )
            )
        else:
            leave = "" if states & _ENDING else "q leaves; what was started stops again"
            end.update(Content.styled(leave, "dim"))

    def _row(self, entry: _Entry, now: float) -> Content:
        stage = entry.stage
        took = entry.took_s if entry.took_s is not None else now - entry.since
        word = state(stage.state)
        pad = " " * max(11 - word.cell_length, 1)
        text = line(stage.text, "dim")
        return Content.assemble(
            word, pad, f"{one_line(stage.process):<16}", (f"{took:>4.0f} s  ", "dim"), text
        )
