"""Shown while the stack stops: seconds pass, then the program ends."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Label, Static

from hermes_tui.core.controller import Controller
from hermes_tui.tui.widgets.formatting import literal
from hermes_tui_common.errors import HermesTuiError


class StoppingScreen(ModalScreen[None]):
    """Stops the stack and ends the app."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._began = controller.clock()

    def compose(self) -> ComposeResult:
        """Lay out the notice."""
        with Vertical(classes="dialog"):
            yield Label(Content.styled("Stopping everything", "bold"))
            yield Static(id="stopping-text")

    def on_mount(self) -> None:
        """Stop."""
        self._draw()
        self.set_interval(1.0, self._draw)
        self.run_worker(self._stop(), group="stop")

    def _draw(self) -> None:
        seconds = self._controller.clock() - self._began
        text = f"a checkpoint that is being saved is finished first · {seconds:.0f} s"
        self.query_one("#stopping-text", Static).update(Content.styled(text, "dim"))

    async def _stop(self) -> None:
        try:
            await self._controller.shutdown()
        except HermesTuiError as error:
            self.app.exit(return_code=1, message=literal(f"error: {error}").plain)
        else:
            self.app.exit()
