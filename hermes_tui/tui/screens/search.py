"""Searching the text of all conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from hermes_tui.core.controller import Controller
from hermes_tui.core.sanitize import one_line
from hermes_tui.tui.screens.dialogs import PAGING, Dialog, PagedOptions
from hermes_tui.tui.widgets.formatting import age, literal
from hermes_tui.tui.widgets.inputs import Field
from hermes_tui_services.api.wire import SearchHit

SHORTEST = 2
"""Characters that a search needs at least: nearly all text holds one letter."""

BEFORE_CHARS = 24
"""Text that is shown before what was found."""


class SearchScreen(PagedOptions, Dialog[tuple[SearchHit, str] | None]):
    """Lists the turns that contain what is typed; the answer is the one to open, and the text.

    Args:
        controller: searches.
        text: what to begin with.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *PAGING,
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
    ]

    def __init__(self, controller: Controller, text: str = "") -> None:
        super().__init__()
        self._controller = controller
        self._text = text
        self._searched = ""
        self._hits: Sequence[SearchHit] = ()

    def compose(self) -> ComposeResult:
        """Lay out the question, and below it what is found."""
        with Vertical(classes="dialog tall", id="search"):
            yield Label(Content.styled("Search all conversations", "bold"))
            yield Field(value=self._text, compact=True, placeholder="what was said, or done")
            yield OptionList(id="search-hits", compact=True)
            yield Static(id="search-hint")

    def on_mount(self) -> None:
        """Wait for a text."""
        self._say("enter opens one · escape closes")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search for what is typed; what was searched before is forgotten."""
        self.run_worker(self._search(event.value.strip()), group="search", exclusive=True)

    async def _search(self, text: str) -> None:
        hits: Sequence[SearchHit] = ()
        if len(text) >= SHORTEST:
            hits = await self._controller.search(text)
        self._hits, self._searched = hits, text
        listed = self.query_one(OptionList)
        listed.clear_options()
        listed.add_options([self._option(hit) for hit in hits])
        if hits:
            listed.highlighted = 0
        found = f"{len(hits)} turn{'' if len(hits) == 1 else 's'} · " if hits else ""
        nothing = "nothing like that was said · " if len(text) >= SHORTEST and not hits else ""
        self._say(f"{found}{nothing}enter opens one · escape closes")

    def _option(self, hit: SearchHit) -> Option:
        before = one_line(hit.before)
        cut = before[-BEFORE_CHARS:]
        state, now = self._controller.state, self._controller.clock()
        title = state.title(hit.session_key) if hit.session_key in state.sessions else ""
        return Option(
            Content.assemble(
                (f"{age(now - hit.finished_at):>4} ", "dim"),
                literal(f"{'…' if cut != before else ''}{cut} ".lstrip()),
                literal(one_line(hit.match), "bold $text-warning"),
                literal(_joined(hit.after)),
                literal(f"  · {title}" if title else "", "dim"),
            )
        )

    def _say(self, text: str) -> None:
        self.query_one("#search-hint", Static).update(Content.styled(text, "dim"))

    def action_move(self, by: int) -> None:
        """Go to the next hit, or the one before."""
        listed = self.query_one(OptionList)
        if self._hits:
            listed.highlighted = ((listed.highlighted or 0) + by) % len(self._hits)

    def on_input_submitted(self) -> None:
        """Open the hit under the cursor."""
        index = self.query_one(OptionList).highlighted
        if index is not None and index < len(self._hits):
            self.dismiss((self._hits[index], self._searched))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open a hit that was clicked."""
        self.dismiss((self._hits[event.option_index], self._searched))


def _joined(after: str) -> str:
    """Return the text after a hit on one line, with the space that it began with."""
    return f"{' ' if after[:1].isspace() else ''}{one_line(after)}"
