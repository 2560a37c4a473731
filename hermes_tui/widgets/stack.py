"""The stack's processes: state, memory, uptime, restarts."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content

from hermes_tui.actions import bindings
from hermes_tui.core.rows import ProcessRow
from hermes_tui.core.state import ViewState
from hermes_tui.messages import RestartWanted
from hermes_tui.widgets.panes import Acts, titled
from hermes_tui.widgets.rows_view import Row, RowsView
from hermes_tui.widgets.text import duration, line, size, state


class StackPane(Acts, RowsView):
    """One row per process."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("stack", "")]

    def __init__(self) -> None:
        super().__init__(id="stack")

    def on_mount(self) -> None:
        """Show the empty list."""
        titled(self, "stack")

    def sync(self, view: ViewState) -> None:
        """Show the processes as they are now."""
        processes = list(view.processes.values())
        rows: list[Row] = []
        for process in processes:
            rows.append(_row(process))
            if process.reason and process.state != "ready":
                reason = Content.assemble("    ", line(process.reason, "dim"))
                rows.append(Row(key=f"{process.name}\n", left=reason, selectable=False))
        self.show(rows)
        ready = sum(process.state == "ready" for process in processes)
        memory = size(sum(process.rss_bytes for process in processes))
        titled(self, "stack", f"{ready} of {len(processes)} ready · {memory}" if processes else "")

    def do_stack_restart(self) -> None:
        """Restart the process under the cursor."""
        if self.cursor_key:
            self.post_message(RestartWanted(self.cursor_key))


def _row(process: ProcessRow) -> Row:
    word = state(process.state)
    padding = " " * max(11 - word.cell_length, 1)
    left = Content.assemble(word, padding, line(process.name))
    restarts = f"↻{process.restarts} " if process.restarts else ""
    right = f"{restarts}{size(process.rss_bytes):>7} {duration(process.uptime_s):>9}"
    return Row(key=process.name, left=left, right=Content.styled(right, "dim"))
