"""Settings that suit a machine where the defaults do not."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_tui.core.stack_status import SystemSample

_GIB = 1024**3

SMALL_MEMORY_BYTES = 8 * _GIB
"""With less, the defaults' caches and batches (about 4 GiB with the embedded model) crowd it."""

LARGE_GPU_BYTES = 16 * _GIB
"""From here on a GPU has room for many streams and their caches."""

SMALL_DISK_BYTES = 16 * _GIB
"""With less that is free, what is recorded by default would take more than a quarter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A setting that is not its default."""

    value: int
    """What to set."""
    why: str
    """In a few words, what of the machine asks for it."""


def fitted(machine: SystemSample, disk_free_bytes: int) -> dict[str, Fitted]:
    """Return the settings that should not stay at their defaults, by dotted key.

    Args:
        machine: what there is.
        disk_free_bytes: room where the run directory will be.
    """
    settings: dict[str, Fitted] = {}
    gpu_bytes = max((gpu.memory_total_bytes or 0 for gpu in machine.gpus), default=0)
    if gpu_bytes >= LARGE_GPU_BYTES:
        why = f"a GPU of {_gib(gpu_bytes)}"
        settings["training.micro_batch_tokens"] = Fitted(value=16384, why=why)
        settings["training.engine.max_num_seqs"] = Fitted(value=64, why=why)
        settings["training.engine.prefix_cache_tokens"] = Fitted(value=131072, why=why)
    elif not machine.gpus and machine.memory_total_bytes < SMALL_MEMORY_BYTES:
        why = f"memory of {_gib(machine.memory_total_bytes)}"
        settings["training.micro_batch_tokens"] = Fitted(value=1024, why=why)
        settings["training.engine.prefix_cache_tokens"] = Fitted(value=8192, why=why)
    if disk_free_bytes < SMALL_DISK_BYTES:
        why = f"{_gib(disk_free_bytes)} of disk are free"
        settings["training.store.max_bytes"] = Fitted(value=disk_free_bytes // 4, why=why)
    return settings


def describe(machine: SystemSample, disk_free_bytes: int) -> str:
    """Return what there is in one line: cores, memory, GPUs, disk."""
    gpus = [
        f"{gpu.name or 'a GPU'}"
        + (f" of {_gib(gpu.memory_total_bytes)}" if gpu.memory_total_bytes else "")
        for gpu in machine.gpus
    ]
    parts = [
        f"{machine.cpu_count} cores",
        f"{_gib(machine.memory_total_bytes)} of memory",
        *(gpus or ["no GPU"]),
        f"{_gib(disk_free_bytes)} of disk free",
    ]
    return ", ".join(parts)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.0f} GiB"
