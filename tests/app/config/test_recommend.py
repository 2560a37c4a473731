"""What ``config init`` sets on which machine."""

from __future__ import annotations

import pytest

from hermes_tui.config.recommend import describe, recommend
from hermes_tui.core.stack_status import GpuSample, SystemSample

GIB = 1024**3


def machine(memory_gib: float, *gpus: GpuSample) -> SystemSample:
    """Return a machine."""
    return SystemSample(
        at=0.0,
        cpu_percent=0.0,
        cpu_count=4,
        memory_used_bytes=0,
        memory_total_bytes=int(memory_gib * GIB),
        process_rss_bytes={},
        process_cpu_percent={},
        gpus=gpus,
    )


def gpu(memory_gib: float | None) -> GpuSample:
    """Return a GPU; None stands for a driver that does not tell its memory."""
    size = None if memory_gib is None else int(memory_gib * GIB)
    return GpuSample(index=0, name="NVIDIA H200", memory_total_bytes=size)


@pytest.mark.parametrize(
    ("sample", "free_gib", "expected"),
    [
        (machine(32), 100, {}),
        (
            machine(4),
            100,
            {"training.micro_batch_tokens": 1024, "training.engine.prefix_cache_tokens": 8192},
        ),
        (machine(32), 8, {"training.store.max_bytes": 2 * GIB}),
        (
            machine(4, gpu(141)),
            100,
            {
                "training.micro_batch_tokens": 16384,
                "training.engine.max_num_seqs": 64,
                "training.engine.prefix_cache_tokens": 131072,
            },
        ),
        (machine(32, gpu(8)), 100, {}),
        (machine(32, gpu(None)), 100, {}),
    ],
    ids=["ample", "small memory", "small disk", "large gpu", "small gpu", "unknown gpu"],
)
def test_only_what_the_machine_asks_for_is_set(
    sample: SystemSample, free_gib: int, expected: dict[str, int]
) -> None:
    settings = recommend(sample, free_gib * GIB)
    assert {key: setting.value for key, setting in settings.items()} == expected


def test_a_machine_in_one_line() -> None:
    assert describe(machine(23.6), 70 * GIB) == (
        "4 cores, 25 GB of memory, no GPU, 75 GB of disk free"
    )
    assert "NVIDIA H200 of 151 GB" in describe(machine(128, gpu(141)), 64 * GIB)
    assert describe(machine(1, gpu(None)), 0).count("GB") == 2
