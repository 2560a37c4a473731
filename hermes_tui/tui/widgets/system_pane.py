"""The machine and the stack's processes: use, memory, GPUs; states, restarts, uptime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from hermes_tui.core.stack_status import (
    SUPERVISOR,
    DiskSample,
    GpuSample,
    ProcessState,
    ProcessStatus,
    SystemSample,
)
from hermes_tui.core.state import ViewState
from hermes_tui.tui.keys import bindings
from hermes_tui.tui.messages import LogOpened, RestartRequested
from hermes_tui.tui.widgets.base import ActionOwner, titled
from hermes_tui.tui.widgets.formatting import duration, line, size, sparkline, state
from hermes_tui.tui.widgets.row_list import Row, RowList

GAUGE_CELLS = 20
ABOUT_CELLS = 34
SPARKS = 30
"""Newest samples in a sparkline: one minute."""

WIDE_CELLS = 70
"""Least width that has room for process id and CPU use."""


class ProcessTree(ActionOwner, RowList):
    """One row per process, as a tree."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("system")]

    def __init__(self) -> None:
        super().__init__(id="processes")

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
        yield Static(id="processes-head")
        yield ProcessTree()

    def on_mount(self) -> None:
        """Show the empty pane."""
        titled(self, "system")

    def on_resize(self, _: events.Resize) -> None:
        """Lay out again at the new size."""
        self.sync(self._view)

    @property
    def processes(self) -> ProcessTree:
        """The processes."""
        return self.query_one(ProcessTree)

    def sync(self, view: ViewState) -> None:
        """Show machine and processes as they are now."""
        self._view = view
        samples = list(view.samples)
        machine = self.query_one("#machine", Static)
        content = describe_machine(samples, view.processes.values()) if samples else Content()
        if machine.content != content:
            machine.update(content)
        last = samples[-1] if samples else None
        roomy = self.size.width >= WIDE_CELLS
        head = self.query_one("#processes-head", Static)
        head.update(_head(roomy))
        self.processes.show([*_rows(view, last, roomy)])
        processes = view.processes.values()
        ready = sum(process.state == "ready" for process in processes)
        memory = size(sum(process.rss_bytes or 0 for process in processes))
        titled(self, "system", f"{ready} of {len(processes)} ready · {memory}" if processes else "")


# The machine -----------------------------------------------------------------------------------


def describe_machine(
    samples: Sequence[SystemSample], processes: Iterable[ProcessStatus] = ()
) -> Content:
    """Return CPU, memory, disk and GPU use as text.

    Args:
        samples: oldest first; the last one is current.
        processes: their names replace process ids in the GPU lines.
    """
    now = samples[-1]
    load = " ".join(f"{value:.2f}" for value in now.load_average or ())
    lines = [
        _measure(
            "cpu",
            now.cpu_percent / 100,
            f"{now.cpu_percent:.0f} %",
            f"of {now.cpu_count} cores" + (f" · load {load}" if load else ""),
            [sample.cpu_percent for sample in samples],
        ),
        _measure(
            "memory",
            _share(now.memory_used_bytes, now.memory_total_bytes),
            size(now.memory_used_bytes),
            f"of {size(now.memory_total_bytes)}",
            [100.0 * _share(s.memory_used_bytes, s.memory_total_bytes) for s in samples],
        ),
    ]
    if now.disk:
        lines += _disk(now.disk)
    names = {process.pid: process.name for process in processes if process.pid}
    for index, gpu in enumerate(now.gpus):
        history = [s.gpus[index].utilization_percent for s in samples if index < len(s.gpus)]
        lines += _gpu(gpu, [float("nan") if v is None else v for v in history], names)
    if not now.gpus:
        note = (now.gpu_note or "no GPU").removeprefix("no GPU").strip(" ()")
        lines.append(Content.assemble(_name("gpu"), "there is none", (f"  {note}", "dim")))
    return Content("\n").join(lines)


def _name(word: str) -> tuple[str, str]:
    return f"{word:<8}", "dim"


def _share(part: float | None, whole: float | None) -> float:
    return part / whole if part is not None and whole else 0.0


def _gauge(share: float | None) -> Content:
    if share is None:
        return Content.styled("─" * GAUGE_CELLS, "dim")
    full = round(min(max(share, 0.0), 1.0) * GAUGE_CELLS)
    tone = "$text-error" if share >= 0.95 else "$text-accent"
    return Content.assemble(("━" * full, tone), ("─" * (GAUGE_CELLS - full), "dim"))


def _measure(
    name: str, share: float | None, value: str, about: str, history: Sequence[float]
) -> Content:
    sparks = sparkline(list(history[-SPARKS:]), 0.0, 100.0) if len(history) > 1 else ""
    return Content.assemble(
        _name(name),
        _gauge(share),
        f"  {value:>7} ",
        line(about, "dim").pad_right(max(ABOUT_CELLS - len(about), 1)),
        sparks,
    )


def _disk(disk: DiskSample) -> list[Content]:
    kept = {
        "tokens": _bounded(disk.trajectories_bytes, disk.trajectories_max_bytes),
        "weights": size(disk.checkpoints_bytes),
        "chats": _bounded(disk.conversations_bytes, disk.conversations_max_bytes),
        "logs": size(disk.logs_bytes),
    }
    figures = " · ".join(f"{name} {value}" for name, value in kept.items())
    share = _share(disk.used_bytes, disk.total_bytes)
    about = f"of {size(disk.total_bytes)}"
    return [
        _measure("disk", share, size(disk.used_bytes), about, ()),
        Content.assemble(_name("kept"), line(figures)),
    ]


def _bounded(num_bytes: int, bound: int) -> str:
    return size(num_bytes) + (f" of {size(bound)}" if bound else "")


def _gpu(gpu: GpuSample, history: Sequence[float], names: dict[int, str]) -> list[Content]:
    used = _or_na(gpu.utilization_percent, "{:.0f} %")
    share = None if gpu.utilization_percent is None else gpu.utilization_percent / 100
    known = [value for value in history if value == value]
    about = gpu.name or "name n/a"
    lines = [_measure(f"gpu {gpu.index}", share, used, about, history if known else ())]
    memory = "n/a"
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes is not None:
        memory = f"{size(gpu.memory_used_bytes)} of {size(gpu.memory_total_bytes)}"
    power, heat = _or_na(gpu.power_w, "{:.0f} W"), _or_na(gpu.temperature_c, "{:.0f} °C")
    figures = f"memory {memory} · power {power} · temperature {heat}"
    lines.append(Content.assemble(_name(""), line(figures)))
    if gpu.processes is None:
        running = "n/a"
    else:
        running = " · ".join(
            f"{names.get(pid, f'pid {pid}')} {'n/a' if used_ is None else size(used_)}"
            for pid, used_ in gpu.processes.items()
        )
    lines.append(Content.assemble(_name(""), ("processes ", "dim"), line(running or "none")))
    return lines


def _or_na(value: float | None, form: str) -> str:
    return "n/a" if value is None else form.format(value)


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


def _head(roomy: bool) -> Content:
    left = f"{'process':<{_NAME_CELLS}}{'state':<{_STATE_CELLS}}"
    return Content.styled(left + _columns("pid", "↻", "memory", "cpu", "up", roomy), "dim")


def _columns(pid: str, restarts: str, memory: str, cpu: str, up: str, roomy: bool) -> str:
    """Return the figures of a row."""
    inner = f"{memory:>8}"
    return f"{pid:>7} {restarts:>4} {inner} {cpu:>6} {up:>11}" if roomy else f"{inner} {up:>6}"


def _rows(view: ViewState, sample: SystemSample | None, roomy: bool) -> Iterator[Row]:
    root = ProcessStatus(
        name=SUPERVISOR,
        state=ProcessState.FAILED if view.lost else ProcessState.READY,
        pid=sample.supervisor_pid if sample else None,
        uptime_s=sample.supervisor_uptime_s if sample else None,
        rss_bytes=sample.process_rss_bytes.get(SUPERVISOR) if sample else None,
    )
    yield _row("", root, sample, roomy)
    if view.info.cage:
        left = Content.assemble("    ", line(f"the agent's cage: {view.info.cage}", "dim"))
        yield Row(key=f"{SUPERVISOR}\n", left=left, selectable=False)
    for branch in branches(list(view.processes.values())):
        process = branch.process
        if process is None:
            left = Content.assemble((branch.stem, "dim"), line(branch.label))
            yield Row(key=f"{branch.label}\n", left=left, selectable=False)
            continue
        yield _row(branch.stem, process, sample, roomy)
        notes = (process.reason or process.work or "").splitlines()
        if process.state != ProcessState.READY:
            notes = notes[:1]  # the rest are the last lines of its log
        for number, note in enumerate(notes):
            left = Content.assemble("    ", line(note, "dim"))
            yield Row(key=f"{process.name}\n{number or ''}", left=left, selectable=False)


def _row(stem: str, process: ProcessStatus, sample: SystemSample | None, roomy: bool) -> Row:
    name = Content.assemble((stem, "dim"), line(process.name))
    cpu = sample.process_cpu_percent.get(process.name) if sample else None
    up = duration(process.uptime_s or 0.0) if process.pid else "–"
    figures = _columns(
        str(process.pid or "–"),
        str(process.restarts or ""),
        size(process.rss_bytes or 0),
        "–" if cpu is None else f"{cpu:.0f} %",
        up if roomy else up.rsplit(" ", 2)[0] if up.count(" ") > 1 else up,
        roomy,
    )
    left = Content.assemble(
        name.truncate(_NAME_CELLS - 1, ellipsis=True, pad=True),
        " ",
        state(process.state).truncate(_STATE_CELLS, ellipsis=True, pad=True),
        (figures, "dim"),
    )
    return Row(key=process.name, left=left)
