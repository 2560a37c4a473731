"""The lines at the edges of the screen: the top bar, the pane tabs, the key hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static

from hermes_tui.core.actions import PANES, Action, Scope, panes_of
from hermes_tui.core.sanitize import one_line
from hermes_tui.core.state import ViewState
from hermes_tui.tui.keys import Keys
from hermes_tui.tui.widgets.formatting import line, literal, state
from hermes_tui.tui.widgets.training_text import waits_for

MIN_SIZE = Size(60, 20)
"""The smallest terminal that the screen is drawn in."""


class TopBar(Widget):
    """Model and version at the left, the trainer at the right; a click on the name opens the
    palette."""

    ALLOW_SELECT = False

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(id="top")
        self._clock = clock
        self._left = Content()
        self._right = Content()

    def sync(self, view: ViewState) -> None:
        """Show the stack as it is now."""
        version = view.trainer.policy_version
        about = f" · {one_line(view.info.model)}" if view.info.model else ""
        about += f" · policy {view.version_name(version)}" if version is not None else ""
        name = clickable("hermes-tui", "app.press('palette')", "bold $text-primary")
        left = Content.assemble(name, literal(about))
        right = self._status(view)
        if (left, right) != (self._left, self._right):
            self._left, self._right = left, right
            self.refresh()

    def _status(self, view: ViewState) -> Content:
        if view.stopped:
            return line(f"✗ {view.lost}", "$text-error")
        if view.lost:
            return line(f"✗ looking for the stack · out of reach: {view.lost}", "$text-error")
        bad = [p for p in view.processes.values() if p.state not in ("ready", "stopped")]
        if bad:
            return Content.assemble(line(bad[0].name), " ", state(bad[0].state))
        if not view.info.training:
            return line("○ training is off", "dim")
        if view.step_started_at is not None:
            seconds = max(self._clock() - view.step_started_at, 0.0)
            return line(f"◈ learning · {seconds:.0f} s", "$text-accent")
        sign = "‖" if view.trainer.state == "paused" else "○"
        return line(f"{sign} trainer: {waits_for(view.trainer)}", "dim")

    def render(self) -> Content:
        """Draw both ends; the left one is cut first."""
        width = self.content_size.width
        right = self._right.truncate(width, ellipsis=True)
        left = self._left.truncate(max(width - right.cell_length - 1, 0), ellipsis=True, pad=True)
        return Content.assemble(left, " ", right) if right else left


def clickable(text: str, call: str, style: str = "") -> Content:
    """Return text that calls an action when it is clicked."""
    return Content.styled(text, style).stylize(Style.from_meta({"@click": call}))


class PaneTabs(Widget):
    """The panes' names with the keys that lead there, as tabs; the shown one is reversed.

    Args:
        keys: the keys in force.
        training: whether the stack has a trainer.
    """

    ALLOW_SELECT = False
    pane: reactive[Scope] = reactive[Scope]("chat")

    def __init__(self, keys: Keys, *, training: bool) -> None:
        super().__init__(id="tabs")
        self._tabs: list[tuple[Scope, str]] = [
            (scope, f"{keys.anywhere(f'pane_{scope}')} {PANES[scope]}".strip())
            for scope in panes_of(training=training)
            if scope != "prompt"
        ]

    def render(self) -> Content:
        """Draw the tabs, with air around them where there is room."""
        roomy = sum(len(text) + 3 for _, text in self._tabs) <= self.content_size.width
        tabs = [
            clickable(
                f" {text} " if roomy else text,
                f"screen.do('pane_{scope}')",
                "bold reverse" if scope == self.pane else "dim",
            )
            for scope, text in self._tabs
        ]
        return Content(" ").join(tabs)


class Hints(Widget):
    """The keys of the focused pane, as many as fit."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(id="hints")
        self._hints: list[Content] = []

    def show(
        self, actions: list[Action], keys: Keys, words: Mapping[str, str] | None = None
    ) -> None:
        """Show these actions' keys.

        Args:
            actions: what is hinted at, in order.
            keys: those in force.
            words: other words than the actions' own, by action id.
        """
        said = {action.id: action.hint for action in actions} | dict(words or {})
        hints = [
            clickable(f"{keys.label(action.id)} ", f"app.press('{action.id}')", "bold")
            + clickable(said[action.id], f"app.press('{action.id}')", "dim")
            for action in actions
            if keys.label(action.id)
        ]
        if hints != self._hints:
            self._hints = hints
            self.refresh()

    def render(self) -> Content:
        """Draw the hints that fit whole, and always the last one, help."""
        width, shown = self.content_size.width, list(self._hints)
        gap = Content("  ")
        while len(shown) > 1 and gap.join(shown).cell_length > width:
            del shown[-2]
        return gap.join(shown)


class TooSmallNotice(Static):
    """Covers everything while the terminal is too small; keys still reach the focused widget."""

    def __init__(self) -> None:
        text = f"hermes-tui needs {MIN_SIZE.width} columns and {MIN_SIZE.height} rows"
        super().__init__(text, id="too-small")
        self.display = False

    def fit(self, size: Size) -> None:
        """Show or hide it at a size of the terminal."""
        self.display = size.width < MIN_SIZE.width or size.height < MIN_SIZE.height
