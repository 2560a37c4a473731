"""The machine: graphs, cores, GPUs; and the log beside the processes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from fakes.backend import make_sample
from fakes.screen import main, make_app, running, stack, until

from hermes_tui.core.stack_status import GpuSample, ProcessState, ProcessStatus, SystemSample
from hermes_tui.tui.widgets.braille_graph import graph, time_axis
from hermes_tui.tui.widgets.log_tail import LogTail
from hermes_tui.tui.widgets.machine_text import machine_lines

GPU = GpuSample(
    index=0,
    name="NVIDIA H200",
    utilization_percent=42,
    memory_used_bytes=31_000_000_000,
    memory_total_bytes=150_000_000_000,
    power_w=310.2,
    temperature_c=55,
    processes={7: 21_000_000_000, 8: None},
)
TRAINER = ProcessStatus(name="trainer", state=ProcessState.READY, pid=7)


def machine(*samples: SystemSample, width: int = 80, rows: int = 0) -> list[str]:
    """Return the machine's lines as text."""
    return [str(line) for line in machine_lines(samples, [TRAINER], width=width, rows=rows)]


def test_a_graph_reads_from_left_to_right() -> None:
    assert graph([0.0, 50.0, 100.0, 100.0], 2, 1) == ["⢠⣿"]
    assert graph([100.0], 2, 2) == ["⠀⢸", "⠀⢸"]  # the newest stands at the right
    assert graph([math.nan, 0.1, 0.0], 2, 1) == ["⠀⡀"]  # a little is not nothing
    assert graph([1.0, 2.0, 3.0, 100.0, 100.0], 1, 1) == ["⣿"]  # only what fits
    assert graph([], 3, 1) == ["⠀⠀⠀"]


def test_the_axis_names_both_ends() -> None:
    assert time_axis(240, 20) == "4 min ago        now"
    assert time_axis(40, 20) == "40 s ago         now"


def test_machine_without_a_gpu_says_so() -> None:
    text = "\n".join(machine(make_sample([])))
    assert "37 %  of 2 cores · load 1.25 0.90 0.50" in text
    assert "3.1 GB  of 8.2 GB" in text
    assert "gpu     there is none  Driver Not Loaded" in text
    kept = "tokens 12 MB of 4.0 GB · weights 177 MB · chats 300 kB · logs 2 MB"
    assert f"disk    20.0 GB of 64.0 GB  kept here: {kept}" in text


def test_each_figure_that_the_driver_refuses_is_na() -> None:
    def shown(gpu: GpuSample) -> str:
        return "\n".join(machine(make_sample([], (gpu,)), width=160))

    text = shown(GPU)
    assert "42 %  NVIDIA H200 · power 310 W · temperature 55 °C" in text
    assert "31.0 GB  of 150.0 GB memory" in text
    assert "processes trainer 21.0 GB · pid 8 n/a" in text
    for field, wanted in {
        "name": "42 %  name n/a",
        "utilization_percent": "n/a  NVIDIA H200",
        "memory_used_bytes": "n/a  of 150.0 GB memory",
        "memory_total_bytes": "31.0 GB  memory",
        "power_w": "power n/a ·",
        "temperature_c": "temperature n/a",
        "processes": "processes n/a",
    }.items():
        assert wanted in shown(GPU.model_copy(update={field: None})), field


@pytest.mark.parametrize(("width", "rows"), [(58, 6), (78, 6), (118, 20), (198, 40)])
def test_the_machine_fills_its_room_and_no_more(width: int, rows: int) -> None:
    sample = make_sample([], (GPU, GPU.model_copy(update={"index": 1})))
    sample = sample.model_copy(update={"core_percents": (5.0, 50.0, 97.0, 100.0)})
    lines = machine(*[sample] * 500, width=width, rows=rows)
    graphs = [line for line in lines if "⣿" in line or "⣀" in line or "⣤" in line]
    assert graphs  # at every size
    assert max(map(len, graphs)) > width * 0.9
    assert len(lines) <= max(rows, 12)
    assert all(any(percent in line for line in lines) for percent in ("97 %", "100 %"))


def test_many_cores_get_a_cell_each() -> None:
    sample = make_sample([]).model_copy(update={"core_percents": tuple(map(float, range(64)))})
    assert any(line.startswith("cores   ▁▁▁") for line in machine(sample))


async def test_the_log_beside_follows_the_cursor(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.write_log("supervisor", "the supervisor says so")
    backend.write_log("agent-gateway", "the gateway is up")
    async with running(app) as pilot:
        await pilot.press("escape", "p")
        tail = main(app).query_one(LogTail)
        await until(pilot, lambda: "the supervisor says so" in str(tail.render()))
        await pilot.press("down")
        await until(pilot, lambda: "the gateway is up" in str(tail.render()))
        assert stack(app).has_focus
        backend.write_log("agent-gateway", "one more")
        await until(pilot, lambda: "one more" in str(tail.render()))
        await pilot.press("c")

        def reads() -> bool:
            return any(w.group == "log" and w.is_running for w in main(app).workers)

        await until(pilot, lambda: not reads(), "the end of reading")


async def test_a_narrow_terminal_has_no_log_beside(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app, size=(80, 24)) as pilot:
        await pilot.press("escape", "p")
        await until(pilot, lambda: bool(app.controller.state.samples), "a sample")
        assert not main(app).query_one(LogTail).display
