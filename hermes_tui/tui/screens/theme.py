"""Choosing the colours: the theme under the cursor is shown at once, everywhere."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, OptionList, Static
from textual.widgets.option_list import Option

from hermes_tui.tui.screens.dialogs import PAGING, Dialog, PagedOptions


class ThemeScreen(PagedOptions, Dialog[str | None]):
    """Lists the themes; the answer is the one to keep. Without one the theme before comes back."""

    BINDINGS: ClassVar[list[BindingType]] = [*PAGING]

    def compose(self) -> ComposeResult:
        """Lay out the themes; a tick marks the current one."""
        with Vertical(classes="dialog", id="themes"):
            yield Label(Content.styled("Theme", "bold"))
            yield OptionList(id="versions", compact=True)
            yield Static(Content.styled("enter keeps it · escape goes back", "dim"))

    def on_mount(self) -> None:
        """List the themes, the dark ones first; the cursor is on the current one."""
        self._before = self.app.theme
        themes = sorted(self.app.available_themes.values(), key=lambda t: (not t.dark, t.name))
        self._names = [theme.name for theme in themes]
        listed = self.query_one(OptionList)
        listed.add_options(
            [
                Option(
                    Content.assemble(
                        ("✓ " if theme.name == self._before else "  ", "bold"),
                        f"{theme.name:<24}",
                        ("dark" if theme.dark else "light", "dim"),
                    )
                )
                for theme in themes
            ]
        )
        listed.highlighted = self._names.index(self._before)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Show what is under the cursor."""
        self.app.theme = self._names[event.option_index]

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Keep it."""
        self.dismiss(self._names[event.option_index])

    def action_leave(self) -> None:
        """Go back to the theme before."""
        self.app.theme = self._before
        super().action_leave()
