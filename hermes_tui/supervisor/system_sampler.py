"""What the machine does: CPU, memory, each process of the stack, and every NVIDIA GPU.

A figure that cannot be had is None, never a guess and never an error.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pynvml

from hermes_tui.config.paths import RunDir
from hermes_tui.config.settings import Config
from hermes_tui.core.stack_status import DiskSample, GpuSample, SystemSample

Answer = TypeVar("Answer")
_MILLI = 1000.0


class SystemSampler:
    """Takes samples; keeps what is needed to tell the use since the last one."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._gpus = _Gpus()
        self._cpu = _cpu_times_s(psutil.cpu_times())
        self._cores = [_cpu_times_s(times) for times in psutil.cpu_times(percpu=True)]

    def sample(self, pids: Mapping[str, int | None]) -> SystemSample:
        """Return a sample of the machine and of the named processes.

        Args:
            pids: process id by name; None for one that does not live.
        """
        memory = psutil.virtual_memory()
        gpus, note = self._gpus.sample()
        watched = {name: self._process(pid) for name, pid in pids.items()}
        alive = {process.pid for process in watched.values() if process}
        self._processes = {pid: p for pid, p in self._processes.items() if pid in alive}
        return SystemSample(
            at=time.time(),
            cpu_percent=self._cpu_percent(),
            cpu_count=len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1,
            load_average=_load_average(),
            core_percents=self._core_percents(),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            process_rss_bytes={name: p and rss_bytes(p.pid) for name, p in watched.items()},
            process_cpu_percent={name: p and _cpu_percent(p) for name, p in watched.items()},
            gpus=gpus,
            gpu_note=note,
        )

    def _cpu_percent(self) -> float:
        """Return the use since the last sample.

        Not ``psutil.cpu_percent``: that remembers the last call of each thread, and samples are
        taken in whatever thread is free.
        """
        before, self._cpu = self._cpu, _cpu_times_s(psutil.cpu_times())
        return _percent_since(before, self._cpu)

    def _core_percents(self) -> tuple[float, ...]:
        before = self._cores
        self._cores = [_cpu_times_s(times) for times in psutil.cpu_times(percpu=True)]
        return tuple(map(_percent_since, before, self._cores))

    def _process(self, pid: int | None) -> psutil.Process | None:
        if pid is None:
            return None
        if pid not in self._processes:
            try:
                self._processes[pid] = psutil.Process(pid)
            except psutil.Error:
                return None
        return self._processes[pid]


def rss_bytes(pid: int) -> int | None:
    """Return the resident memory of a process and its descendants; None when it is gone.

    Of this process itself, whose descendants are the stack, only its own.
    """
    try:
        process = psutil.Process(pid)
        total = int(process.memory_info().rss)
        descendants = process.children(recursive=True) if pid != os.getpid() else []
    except psutil.Error:
        return None
    for child in descendants:
        try:
            total += int(child.memory_info().rss)
        except psutil.Error:
            continue  # it ended meanwhile
    return total


def sample_disk(run_dir: RunDir, config: Config) -> DiskSample | None:
    """Return what the stack keeps on its disk, and the bounds; None when it cannot be read.

    What the agent's sessions leave in their working directories is not looked at: it may be much.
    """
    try:
        disk = shutil.disk_usage(run_dir.existing)
    except OSError:
        return None
    return DiskSample(
        used_bytes=disk.total - disk.free,
        total_bytes=disk.total,
        trajectories_bytes=_database_bytes(run_dir.trajectories),
        trajectories_max_bytes=config.training.store.max_bytes,
        conversations_bytes=_database_bytes(run_dir.conversations),
        conversations_max_bytes=config.services.store.max_bytes,
        checkpoints_bytes=sum(map(_bytes_of, run_dir.checkpoints.glob("*/*"))),
        logs_bytes=sum(map(_bytes_of, run_dir.logs.glob("*"))),
    )


def _database_bytes(file: Path) -> int:
    """Return the size of a database with its write-ahead log."""
    return _bytes_of(file) + _bytes_of(file.with_name(f"{file.name}-wal"))


def _bytes_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0  # there is none, or no longer


def _percent_since(before: tuple[float, float], now: tuple[float, float]) -> float:
    """Return the busy share of the time that passed between two measurements, in percent."""
    passed_s = now[1] - before[1]
    return 100.0 * min(max((now[0] - before[0]) / passed_s, 0.0), 1.0) if passed_s else 0.0


def _cpu_times_s(measured: Any) -> tuple[float, float]:
    """Return the seconds that cores were busy, and all that passed on them.

    Args:
        measured: a row of ``psutil.cpu_times``, whose fields differ between systems.
    """
    times = measured._asdict()
    # On Linux the guests' time is part of the user's.
    all_s = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return all_s - times["idle"] - times.get("iowait", 0.0), all_s


def _cpu_percent(process: psutil.Process) -> float | None:
    try:
        return float(process.cpu_percent())
    except psutil.Error:
        return None


def _load_average() -> tuple[float, float, float] | None:
    try:
        return os.getloadavg()
    except OSError:
        return None


class _Gpus:
    """The NVIDIA driver's answers; each may be refused on its own."""

    def __init__(self) -> None:
        self._note = _ask_why(pynvml.nvmlInit)

    def sample(self) -> tuple[tuple[GpuSample, ...], str | None]:
        if self._note:
            return (), self._note
        count = _ask(pynvml.nvmlDeviceGetCount)
        if count is None:
            return (), "the driver does not tell how many GPUs there are"
        gpus = tuple(_gpu(index) for index in range(count))
        return gpus, None if gpus else "no GPU"


def _gpu(index: int) -> GpuSample:
    handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return GpuSample(index=index)
    name = _ask(pynvml.nvmlDeviceGetName, handle)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    use = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power_mw = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    running = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return GpuSample(
        index=index,
        name=name.decode(errors="replace") if isinstance(name, bytes) else name,
        utilization_percent=None if use is None else use.gpu,
        memory_used_bytes=None if memory is None else memory.used,
        memory_total_bytes=None if memory is None else memory.total,
        power_w=None if power_mw is None else power_mw / _MILLI,
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        processes=None if running is None else {p.pid: p.usedGpuMemory for p in running},
    )


def _ask(function: Callable[..., Answer], *args: Any) -> Answer | None:
    """Return the driver's answer, or None when it refuses."""
    try:
        return function(*args)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _ask_why(function: Callable[[], object]) -> str | None:
    """Call the driver; return why it refuses, or None when it does not."""
    try:
        function()
    except pynvml.NVMLError as error:
        return f"no GPU ({error})"
    return None
