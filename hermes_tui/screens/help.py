"""What the keys do, the focused pane first."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Label, Static

from hermes_tui.actions import ACTIONS, PANES, Action, Keys, Scope
from hermes_tui.widgets.text import foreign


class HelpScreen(ModalScreen[None]):
    """Lists every action with its keys in force."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,f1", "dismiss(None)", show=False)]

    def __init__(self, keys: Keys, focused: Scope) -> None:
        super().__init__()
        self._keys = keys
        self._focused = focused

    def compose(self) -> ComposeResult:
        """Lay out the table."""
        with Vertical(classes="dialog tall"):
            yield Label(Content.styled(f"Keys · {PANES.get(self._focused, 'Help')} first", "bold"))
            with VerticalScroll():
                yield Static(self._text(), id="help-text")
            yield Static(Content.styled("escape closes · ↑ ↓ scroll", "dim"))

    def _text(self) -> Content:
        sections = dict.fromkeys(action.section for action in self._in_order())
        blocks = [self._section(section) for section in sections]
        return Content("\n\n").join(blocks)

    def _in_order(self) -> list[Action]:
        return sorted(ACTIONS, key=lambda action: action.scope != self._focused)

    def _section(self, section: str) -> Content:
        lines = [Content.styled(section, "bold $text-primary")]
        for action in self._in_order():
            if action.section == section:
                label = self._keys.labels(action.id) or "palette"
                keys = foreign(f"{label:<12}", "bold")
                about = (f"  {action.help}", "dim")
                lines.append(Content.assemble(keys, action.title, about))
        return Content("\n").join(lines)
