"""The help: every action on one line with its keys, the focused pane first; typing searches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from hermes_tui.core.actions import ACTIONS, PANES, Action, Scope
from hermes_tui.core.sanitize import shorten
from hermes_tui.tui.keys import Keys
from hermes_tui.tui.screens.dialogs import PAGING, Dialog, PagedOptions
from hermes_tui.tui.widgets.formatting import line
from hermes_tui.tui.widgets.inputs import Field

KEYS_CELLS = 13
"""Width of the column of keys."""

TITLE_CELLS = 34
"""Width of the column of titles."""


class HelpScreen(PagedOptions, Dialog[None]):
    """Lists the actions that contain what is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *PAGING,
        Binding("f1", "leave", show=False),
        Binding("up", "scroll(-1)", show=False, priority=True),
        Binding("down", "scroll(1)", show=False, priority=True),
    ]

    def __init__(self, keys: Keys, focused: Scope) -> None:
        super().__init__()
        self._keys = keys
        self._focused = focused

    def compose(self) -> ComposeResult:
        """Lay out the search, and the table below it."""
        with Vertical(classes="dialog tall") as dialog:
            yield Field(placeholder="search", compact=True)
            yield OptionList(id="help-text", compact=True)
        dialog.border_title = Content.styled(f"Keys · {PANES.get(self._focused, 'all')}", "bold")
        dialog.border_subtitle = Content("type to search · ↑ ↓ scroll · esc closes")

    def on_mount(self) -> None:
        """List everything."""
        self._list("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """List what contains the text."""
        self._list(event.value.strip())

    def _list(self, text: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        listed.add_options(list(self._rows(text.casefold())))
        if not listed.option_count:
            listed.add_option(Option(Content.styled("no action is called that", "dim")))

    def _rows(self, wanted: str) -> Iterator[Option]:
        ordered = sorted(ACTIONS, key=lambda action: action.scope != self._focused)
        for section in dict.fromkeys(action.section for action in ordered):
            rows = [a for a in ordered if a.section == section and wanted in self._said(a)]
            if rows:
                yield Option(Content.styled(section, "bold $text-primary"), disabled=True)
            yield from (Option(self._row(action)) for action in rows)

    def _said(self, action: Action) -> str:
        said = (action.title, action.help, self._keys.labels(action.id), action.section)
        return " ".join(said).casefold()

    def _row(self, action: Action) -> Content:
        keys = shorten(self._keys.labels(action.id) or "palette", KEYS_CELLS - 1)
        title = line(action.title).truncate(TITLE_CELLS, ellipsis=True, pad=True)
        about = line(action.help, "dim")
        return Content.assemble((f"{keys:<{KEYS_CELLS}}", "bold"), title, " ", about)

    def action_scroll(self, by: int) -> None:
        """Scroll the table by a row."""
        self.query_one(OptionList).scroll_relative(y=by, animate=False, immediate=True)
