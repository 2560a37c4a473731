"""The machine as text: graphs of what it did lately, its cores, its GPUs, its disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from textual.content import Content

from hermes_tui.core.stack_status import (
    SAMPLE_S,
    DiskSample,
    GpuSample,
    ProcessStatus,
    SystemSample,
)
from hermes_tui.tui.widgets.braille_graph import CELL_VALUES, graph, time_axis
from hermes_tui.tui.widgets.formatting import PART, line, size, sparkline

NAME_CELLS = 8
"""Width of the names at the left."""

TWO_COLUMNS = 100
"""Least width at which graphs stand side by side."""

GAP = 3
"""Cells between two graphs."""

CORE_CELLS = 20
"""Width of one core's bar with its number and figure."""

MAX_CORE_ROWS = 2
"""Rows of bars; more cores than fit get one cell each."""

MAX_GRAPH_ROWS = 8
"""Higher graphs tell no more."""

MIN_GRAPH_CELLS = 4
"""Narrower graphs say nothing."""

HOT_FRAC = 0.95
"""A share from here on is shown as a warning."""

NOT_A_NUMBER = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure with its past."""

    name: str
    """Its name."""
    figure: str
    """Its value now."""
    about: str
    """What the value is of."""
    percents: Sequence[float]
    """Oldest first, 0 to 100; NaN where it is not known."""

    def title(self, width: int) -> Content:
        """Return name, value and what it is of, cut to a width."""
        now = self.percents[-1] if self.percents else NOT_A_NUMBER
        tone = "$text-error" if now >= HOT_FRAC * 100 else "$text-accent"
        whole = Content.assemble(
            _name(self.name), (f"{self.figure:>7}", f"bold {tone}"), "  ", line(self.about, "dim")
        )
        return whole.truncate(width, ellipsis=True, pad=True)

    def drawn(self, width: int, height: int) -> list[Content]:
        """Return the lines of title and graph; without a height the graph is behind the title."""
        if height:
            rows = graph(self.percents, width, height)
            return [self.title(width), *(Content.styled(row, "$text-accent") for row in rows)]
        title = self.title(width)
        room = width - title.rstrip().cell_length - 2
        if room < MIN_GRAPH_CELLS:
            return [title]
        (behind,) = graph(self.percents, room, 1)
        return [title.truncate(width - room) + Content.styled(behind, "$text-accent")]


def machine_lines(
    samples: Sequence[SystemSample],
    processes: Iterable[ProcessStatus] = (),
    *,
    width: int = 80,
    rows: int = 0,
) -> list[Content]:
    """Return all that is known of the machine, line by line.

    Args:
        samples: oldest first; the last one is current.
        processes: their names replace process ids in the GPU lines.
        width: cells of a line.
        rows: how many lines there is room for; what more there is than the figures need goes to
            the graphs.
    """
    now = samples[-1]
    measures = [_cpu(samples), _memory(samples)]
    for index in range(len(now.gpus)):
        measures += _gpu_measures(samples, index)
    cores = _cores(now.core_percents, width)
    num_words = len(cores) + max(len(now.gpus), 1) + bool(now.disk) + 1
    num_blocks = -(-len(measures) // _columns(width))
    height = min(max((rows - num_words) // num_blocks - 1, 0), MAX_GRAPH_ROWS)
    lines = [*_graphs(measures, width, height), *cores]
    names = {process.pid: process.name for process in processes if process.pid}
    for gpu in now.gpus:
        lines += _gpu_words(gpu, names)
    if not now.gpus:
        note = (now.gpu_note or "no GPU").removeprefix("no GPU").strip(" ()")
        lines.append(Content.assemble(_name("gpu"), "there is none", (f"  {note}", "dim")))
    if now.disk:
        lines += _disk(now.disk)
    return lines


def _name(word: str) -> tuple[str, str]:
    return f"{word:<{NAME_CELLS}}", "dim"


def _columns(width: int) -> int:
    return 2 if width >= TWO_COLUMNS else 1


def _graphs(measures: Sequence[Measure], width: int, height: int) -> Iterator[Content]:
    """Yield the measures, two beside each other where there is room, and the axis of time."""
    columns = _columns(width)
    each = (width - GAP * (columns - 1)) // columns
    blocks = [measure.drawn(each, height) for measure in measures]
    for begin in range(0, len(blocks), columns):
        for row in zip_longest(*blocks[begin : begin + columns], fillvalue=Content()):
            yield Content(" " * GAP).join(row)
    if height:
        axis = Content.styled(time_axis(each * CELL_VALUES * SAMPLE_S, each), "dim")
        yield Content(" " * GAP).join([axis] * columns)


def _cpu(samples: Sequence[SystemSample]) -> Measure:
    now = samples[-1]
    load = " ".join(f"{value:.2f}" for value in now.load_average or ())
    return Measure(
        name="cpu",
        figure=f"{now.cpu_percent:.0f} %",
        about=f"of {now.cpu_count} cores" + (f"{PART}load {load}" if load else ""),
        percents=[sample.cpu_percent for sample in samples],
    )


def _memory(samples: Sequence[SystemSample]) -> Measure:
    now = samples[-1]
    return Measure(
        name="memory",
        figure=size(now.memory_used_bytes),
        about=f"of {size(now.memory_total_bytes)}",
        percents=[_percent(s.memory_used_bytes, s.memory_total_bytes) for s in samples],
    )


def _gpu_measures(samples: Sequence[SystemSample], index: int) -> list[Measure]:
    now = samples[-1].gpus[index]
    past = [sample.gpus[index] for sample in samples if index < len(sample.gpus)]
    power, heat = _or_na(now.power_w, "{:.0f} W"), _or_na(now.temperature_c, "{:.0f} °C")
    used, there = now.memory_used_bytes, now.memory_total_bytes
    return [
        Measure(
            name=f"gpu {now.index}",
            figure=_or_na(now.utilization_percent, "{:.0f} %"),
            about=f"{now.name or 'name n/a'}{PART}power {power}{PART}temperature {heat}",
            percents=[
                NOT_A_NUMBER if gpu.utilization_percent is None else gpu.utilization_percent
                for gpu in past
            ],
        ),
        Measure(
            name="",
            figure="n/a" if used is None else size(used),
            about="memory" if there is None else f"of {size(there)} memory",
            percents=[_percent(gpu.memory_used_bytes, gpu.memory_total_bytes) for gpu in past],
        ),
    ]


def _gpu_words(gpu: GpuSample, names: dict[int, str]) -> list[Content]:
    """Return which processes use a GPU."""
    if gpu.processes is None:
        running = "n/a"
    else:
        running = PART.join(
            f"{names.get(pid, f'pid {pid}')} {'n/a' if used is None else size(used)}"
            for pid, used in gpu.processes.items()
        )
    return [
        Content.assemble(_name(f"gpu {gpu.index}"), ("processes ", "dim"), line(running or "none"))
    ]


def _cores(percents: Sequence[float], width: int) -> list[Content]:
    """Return a bar for each core; where there are too many for that, one cell for each."""
    if not percents:
        return []
    room = width - NAME_CELLS
    per_row = max(room // CORE_CELLS, 1)
    if len(percents) > per_row * MAX_CORE_ROWS:
        cells = sparkline(list(percents), 0.0, 100.0)
        rows = [cells[begin : begin + room] for begin in range(0, len(cells), room)]
        return [
            Content.assemble(_name("cores" if row is rows[0] else ""), (row, "$text-accent"))
            for row in rows
        ]
    bars = [_core(number, percent) for number, percent in enumerate(percents)]
    return [
        Content.assemble(_name("" if begin else "cores"), *bars[begin : begin + per_row])
        for begin in range(0, len(bars), per_row)
    ]


def _core(number: int, percent: float) -> Content:
    cells = CORE_CELLS - 11
    full = round(min(max(percent / 100, 0.0), 1.0) * cells)
    tone = "$text-error" if percent >= HOT_FRAC * 100 else "$text-accent"
    return Content.assemble(
        (f"{number:>2} ", "dim"),
        ("━" * full, tone),
        ("─" * (cells - full), "dim"),
        f"{percent:>4.0f} %  ",
    )


def _disk(disk: DiskSample) -> list[Content]:
    kept = {
        "tokens": _bounded(disk.trajectories_bytes, disk.trajectories_max_bytes),
        "weights": size(disk.checkpoints_bytes),
        "chats": _bounded(disk.conversations_bytes, disk.conversations_max_bytes),
        "logs": size(disk.logs_bytes),
    }
    figures = PART.join(f"{name} {value}" for name, value in kept.items())
    used = f"{size(disk.used_bytes)} of {size(disk.total_bytes)}"
    return [Content.assemble(_name("disk"), line(used), ("  kept here: ", "dim"), line(figures))]


def _bounded(num_bytes: int, bound: int) -> str:
    return size(num_bytes) + (f" of {size(bound)}" if bound else "")


def _percent(part: float | None, whole: float | None) -> float:
    return 100.0 * part / whole if part is not None and whole else NOT_A_NUMBER


def _or_na(value: float | None, form: str) -> str:
    return "n/a" if value is None else form.format(value)
