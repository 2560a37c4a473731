"""The help: all actions with their keys, the focused pane first."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from hermes_tui.core.actions import ACTIONS, PANES, Action, Scope
from hermes_tui.tui.keys import Keys
from hermes_tui.tui.screens.dialogs import Dialog
from hermes_tui.tui.widgets.formatting import line


class HelpScreen(Dialog[None]):
    """Lists every action with its keys in force."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,f1", "leave", show=False)]

    def __init__(self, keys: Keys, focused: Scope) -> None:
        super().__init__()
        self._keys = keys
        self._focused = focused

    def compose(self) -> ComposeResult:
        """Lay out the table."""
        with Vertical(classes="dialog tall") as dialog, VerticalScroll(id="help-text"):
            yield from self._rows()
        dialog.border_title = Content.styled(f"Keys · {PANES.get(self._focused, 'all')}", "bold")
        dialog.border_subtitle = Content("↑ ↓ scroll · esc closes")

    def _rows(self) -> ComposeResult:
        ordered = sorted(ACTIONS, key=lambda action: action.scope != self._focused)
        for section in dict.fromkeys(action.section for action in ordered):
            yield Static(Content.styled(section, "bold $text-primary"), classes="help-section")
            for action in ordered:
                if action.section == section:
                    with Horizontal(classes="help-row"):
                        keys = self._keys.labels(action.id) or "palette"
                        yield Static(line(keys, "bold"), classes="help-keys")
                        yield Static(_does(action), classes="help-does")


def _does(action: Action) -> Content:
    return Content.assemble(action.title, (f"  {action.help}", "dim"))
