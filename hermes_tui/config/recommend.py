"""Settings recommended for a machine that the defaults do not suit."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_tui.core.stack_status import SystemSample

_GIB = 1024**3

SMALL_MEMORY_BYTES = 8 * _GIB
"""With less, the default caches and batches (about 4 GB with the embedded model) are too much."""

LARGE_GPU_BYTES = 16 * _GIB
"""With this much or more, a GPU has room for many streams and their caches."""

SMALL_DISK_BYTES = 16 * _GIB
"""With less free space, the default store could take more than a quarter of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A recommended value that is not the default."""

    value: int
    """What to set."""
    why: str
    """What about the machine calls for it, in a few words."""


def recommend(machine: SystemSample, disk_free_bytes: int) -> dict[str, Recommendation]:
    """Return the settings that should differ from their defaults, by dotted key.

    Args:
        machine: its cores, memory and GPUs.
        disk_free_bytes: free space where the run directory will be.
    """
    settings: dict[str, Recommendation] = {}
    gpu_bytes = max((gpu.memory_total_bytes or 0 for gpu in machine.gpus), default=0)
    if gpu_bytes >= LARGE_GPU_BYTES:
        why = f"a GPU of {_gib(gpu_bytes)}"
        settings["training.micro_batch_tokens"] = Recommendation(value=16384, why=why)
        settings["training.engine.max_num_seqs"] = Recommendation(value=64, why=why)
        settings["training.engine.prefix_cache_tokens"] = Recommendation(value=131072, why=why)
    elif not machine.gpus and machine.memory_total_bytes < SMALL_MEMORY_BYTES:
        why = f"memory of {_gib(machine.memory_total_bytes)}"
        settings["training.micro_batch_tokens"] = Recommendation(value=1024, why=why)
        settings["training.engine.prefix_cache_tokens"] = Recommendation(value=8192, why=why)
    if disk_free_bytes < SMALL_DISK_BYTES:
        why = f"{_gib(disk_free_bytes)} of disk is free"
        settings["training.store.max_bytes"] = Recommendation(value=disk_free_bytes // 4, why=why)
    return settings


def describe(machine: SystemSample, disk_free_bytes: int) -> str:
    """Return the machine in one line: cores, memory, GPUs, disk."""
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
    return f"{num_bytes / 1e9:.0f} GB"
