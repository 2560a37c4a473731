"""The machine and the stack's processes: use, memory, GPUs; states, restarts, uptime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from hermes_tui.core.stack_status import (
    SUPERVISOR,
    ProcessState,
    ProcessStatus,
    SystemSample,
)
from hermes_tui.core.state import ViewState
from hermes_tui.tui.keys import bindings
from hermes_tui.tui.messages import LogFollowed, LogOpened, RestartRequested
from hermes_tui.tui.widgets.base import ActionOwner, titled
from hermes_tui.tui.widgets.braille_graph import graph
from hermes_tui.tui.widgets.formatting import duration, line, size, state
from hermes_tui.tui.widgets.log_tail import LogTail
from hermes_tui.tui.widgets.machine_text import machine_lines
from hermes_tui.tui.widgets.row_list import Row, RowList

WIDE_CELLS = 70
"""Least width that has room for process id and CPU use."""

HISTORY_CELLS = 20
"""Width of the graph of a process's CPU use, where there is room for it beside the figures."""

TABLE_CELLS = 74
"""Least width of the processes beside a log: all figures have room."""

LOG_CELLS = 110
"""Least width that has room for a log beside the processes."""


class ProcessTree(ActionOwner, RowList):
    """One row per process, as a tree."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("system")]

    def __init__(self) -> None:
        super().__init__(id="processes")

    def moved(self) -> None:
        """Have the log of the process under the cursor shown beside it."""
        if self.cursor_key:
            self.post_message(LogFollowed(self.cursor_key))

    def do_system_restart(self) -> None:
        """Restart the process under the cursor."""
        if self.cursor_key:
            self.post_message(RestartRequested(self.cursor_key))

    def do_system_logs(self) -> None:
        """Read the log of the process under the cursor."""
        self.picked()

    def picked(self) -> None:
        """Read the log of the process under the cursor."""
        if self.cursor_key:
            self.post_message(LogOpened(self.cursor_key))


class SystemPane(Vertical):
    """The machine above, the processes below."""

    def __init__(self) -> None:
        super().__init__(id="system")
        self._view = ViewState()

    def compose(self) -> ComposeResult:
        """Lay out the pane."""
        yield Static(id="machine")
        with Horizontal(id="processes-box"):
            with Vertical(id="processes-table"):
                yield Static(id="processes-head")
                yield ProcessTree()
            yield LogTail()

    def on_mount(self) -> None:
        """Show the empty pane."""
        titled(self, "system")

    def on_resize(self, _: events.Resize) -> None:
        """Lay out again at the new size."""
        self.tail.display = self.has_tail
        self.query_one("#processes-box").set_class(self.has_tail, "-tail")
        self.sync(self._view)

    @property
    def processes(self) -> ProcessTree:
        """The processes."""
        return self.query_one(ProcessTree)

    @property
    def tail(self) -> LogTail:
        """The end of a log, beside the processes."""
        return self.query_one(LogTail)

    @property
    def has_tail(self) -> bool:
        """Whether there is room for the log of the process under the cursor."""
        return self.size.width >= LOG_CELLS

    def sync(self, view: ViewState) -> None:
        """Show machine and processes as they are now."""
        self._view = view
        samples = list(view.samples)
        rows = list(_rows(view, samples, self._table_cells))
        machine = self.query_one("#machine", Static)
        content = Content()
        if samples:
            width = max(self.size.width - 2, 1)  # without the padding at both sides
            room = self.size.height - len(rows) - 2
            known = view.processes.values()
            content = Content("\n").join(machine_lines(samples, known, width=width, rows=room))
        if machine.content != content:
            machine.update(content)
        self.query_one("#processes-head", Static).update(_head(self._table_cells))
        self.processes.show(rows)
        processes = view.processes.values()
        ready = sum(process.state == "ready" for process in processes)
        memory = size(sum(process.rss_bytes or 0 for process in processes))
        titled(self, "system", f"{ready} of {len(processes)} ready · {memory}" if processes else "")

    @property
    def _table_cells(self) -> int:
        """Width of the table of processes."""
        return max(self.size.width // 2, TABLE_CELLS) if self.has_tail else self.size.width


# The processes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One line of the tree."""

    stem: str
    """The tree lines before the label."""
    label: str
    """Name of the process or of the pair."""
    process: ProcessStatus | None = None
    """None for a pair, which is two processes."""


def branches(processes: Sequence[ProcessStatus]) -> list[Branch]:
    """Return the processes below the supervisor as a tree; a pair has two children.

    The gateway comes first, then the router, the pairs, trainer and learner, then any other.
    """
    order = ("agent-gateway", "router", "pair", "trainer", "learner")
    groups: dict[str, list[ProcessStatus]] = {}
    for process in processes:
        groups.setdefault(_pair(process.name) or process.name, []).append(process)

    def rank(key: str) -> tuple[int, int]:
        kind, _, index = key.partition(" ")
        position = order.index(kind) if kind in order else len(order)
        return position, int(index) if kind == "pair" and index.isdecimal() else 0

    keys = sorted(groups, key=rank)
    tree: list[Branch] = []
    for key in keys:
        last = key == keys[-1]
        stem, below = ("└ ", "  ") if last else ("├ ", "│ ")
        members = sorted(groups[key], key=lambda process: process.name)
        if not _pair(members[0].name):
            tree.append(Branch(stem=stem, label=key, process=members[0]))
            continue
        tree.append(Branch(stem=stem, label=key))
        for member in members:
            inner = "└ " if member is members[-1] else "├ "
            tree.append(Branch(stem=below + inner, label=member.name, process=member))
    return tree


def _pair(name: str) -> str:
    for role in ("data-proxy-", "worker-"):
        index = name.removeprefix(role)
        if index != name and index.isascii() and index.isdecimal():
            return f"pair {index}"
    return ""


_NAME_CELLS, _STATE_CELLS = 20, 12


def _head(cells: int) -> Content:
    left = f"{'process':<{_NAME_CELLS}}{'state':<{_STATE_CELLS}}"
    return Content.styled(left + _columns("pid", "↻", "memory", "cpu", "up", cells), "dim")


def _columns(pid: str, restarts: str, memory: str, cpu: str, up: str, cells: int) -> str:
    """Return the figures of a row."""
    if cells < WIDE_CELLS:
        return f"{memory:>8} {up:>6}"
    return f"{pid:>7} {restarts:>4} {memory:>8} {cpu:>6} {up:>11}"


def _rows(view: ViewState, samples: Sequence[SystemSample], cells: int) -> Iterator[Row]:
    sample = samples[-1] if samples else None
    root = ProcessStatus(
        name=SUPERVISOR,
        state=ProcessState.FAILED if view.lost else ProcessState.READY,
        pid=sample.supervisor_pid if sample else None,
        uptime_s=sample.supervisor_uptime_s if sample else None,
        rss_bytes=sample.process_rss_bytes.get(SUPERVISOR) if sample else None,
    )
    yield _row("", root, samples, cells)
    if view.info.cage:
        left = Content.assemble("    ", line(f"the agent's cage: {view.info.cage}", "dim"))
        yield Row(key=f"{SUPERVISOR}\n", left=left, selectable=False)
    for branch in branches(list(view.processes.values())):
        process = branch.process
        if process is None:
            left = Content.assemble((branch.stem, "dim"), line(branch.label))
            yield Row(key=f"{branch.label}\n", left=left, selectable=False)
            continue
        yield _row(branch.stem, process, samples, cells)
        notes = (process.reason or process.work or "").splitlines()
        if process.state != ProcessState.READY:
            notes = notes[:1]  # the rest are the last lines of its log
        for number, note in enumerate(notes):
            left = Content.assemble("    ", line(note, "dim"))
            yield Row(key=f"{process.name}\n{number or ''}", left=left, selectable=False)


def _row(stem: str, process: ProcessStatus, samples: Sequence[SystemSample], cells: int) -> Row:
    name = Content.assemble((stem, "dim"), line(process.name))
    roomy = cells >= WIDE_CELLS
    history = [sample.process_cpu_percent.get(process.name) for sample in samples]
    cpu = history[-1] if history else None
    up = duration(process.uptime_s or 0.0) if process.pid else "–"
    figures = _columns(
        str(process.pid or "–"),
        str(process.restarts or ""),
        size(process.rss_bytes or 0),
        "–" if cpu is None else f"{cpu:.0f} %",
        up if roomy else up.rsplit(" ", 2)[0] if up.count(" ") > 1 else up,
        cells,
    )
    left = Content.assemble(
        name.truncate(_NAME_CELLS - 1, ellipsis=True, pad=True),
        " ",
        state(process.state).truncate(_STATE_CELLS, ellipsis=True, pad=True),
        (figures, "dim"),
    )
    room = cells - left.cell_length - 4
    if room < HISTORY_CELLS:
        return Row(key=process.name, left=left)
    known = [float("nan") if value is None else value for value in history]
    (drawn,) = graph(known, HISTORY_CELLS, 1)
    return Row(key=process.name, left=left + Content.assemble("  ", (drawn, "$text-accent")))
