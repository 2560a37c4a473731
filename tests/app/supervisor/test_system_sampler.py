"""Samples of the machine; every refusal of the driver is None, never an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from hermes_tui.config.paths import RunDir
from hermes_tui.config.settings import load_config
from hermes_tui.core.stack_status import GpuSample
from hermes_tui.supervisor.system_sampler import SystemSampler, rss_bytes, sample_disk

CONFIG = load_config(
    ["training.store.max_bytes=100", "services.store.max_bytes=50"], environ={}, cwd=Path("/")
)

ERRORS = [
    getattr(pynvml, name)
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_") and isinstance(getattr(pynvml, name), int)
]

ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": lambda: None,
    "nvmlDeviceGetCount": lambda: 1,
    "nvmlDeviceGetHandleByIndex": lambda index: f"handle-{index}",
    "nvmlDeviceGetName": lambda handle: "NVIDIA Test",
    "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=3, total=10),
    "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=42),
    "nvmlDeviceGetPowerUsage": lambda handle: 71_500,
    "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
        SimpleNamespace(pid=7, usedGpuMemory=2),
        SimpleNamespace(pid=8, usedGpuMemory=None),
    ],
    "nvmlDeviceGetTemperature": lambda handle, kind: 55,
}

WHOLE = GpuSample(
    index=0,
    name="NVIDIA Test",
    utilization_percent=42,
    memory_used_bytes=3,
    memory_total_bytes=10,
    power_w=71.5,
    temperature_c=55,
    processes={7: 2, 8: None},
)

FIELDS = {
    "nvmlDeviceGetName": {"name": None},
    "nvmlDeviceGetMemoryInfo": {"memory_used_bytes": None, "memory_total_bytes": None},
    "nvmlDeviceGetUtilizationRates": {"utilization_percent": None},
    "nvmlDeviceGetPowerUsage": {"power_w": None},
    "nvmlDeviceGetComputeRunningProcesses": {"processes": None},
    "nvmlDeviceGetTemperature": {"temperature_c": None},
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, answer in ANSWERS.items():
        monkeypatch.setattr(pynvml, name, answer)
    return monkeypatch


def refusing(code: int) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise pynvml.NVMLError(code)

    return refuse


def test_gpu_whose_driver_answers(driver: pytest.MonkeyPatch) -> None:
    sample = SystemSampler().sample({})
    assert sample.gpus == (WHOLE,)
    assert sample.gpu_note is None


@pytest.mark.parametrize("call", FIELDS)
def test_each_refusal_costs_its_own_fields_only(driver: pytest.MonkeyPatch, call: str) -> None:
    assert len(ERRORS) > 20
    for code in ERRORS:
        driver.setattr(pynvml, call, refusing(code))
        sample = SystemSampler().sample({})
        assert sample.gpus == (WHOLE.model_copy(update=FIELDS[call]),)


def test_gpu_that_cannot_be_opened(driver: pytest.MonkeyPatch) -> None:
    driver.setattr(pynvml, "nvmlDeviceGetHandleByIndex", refusing(pynvml.NVML_ERROR_NO_PERMISSION))
    assert SystemSampler().sample({}).gpus == (GpuSample(index=0),)


@pytest.mark.parametrize(
    ("call", "code", "note"),
    [
        ("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no GPU (NVML Shared Library Not Found)"),
        ("nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no GPU (Driver Not Loaded)"),
        (
            "nvmlDeviceGetCount",
            pynvml.NVML_ERROR_UNKNOWN,
            "the driver does not tell how many GPUs there are",
        ),
    ],
)
def test_no_gpu_says_why(driver: pytest.MonkeyPatch, call: str, code: int, note: str) -> None:
    driver.setattr(pynvml, call, refusing(code))
    sample = SystemSampler().sample({})
    assert (sample.gpus, sample.gpu_note) == ((), note)


def test_machine_and_processes(driver: pytest.MonkeyPatch) -> None:
    gone = 2**22 + 1  # beyond the largest process id
    sample = SystemSampler().sample({"me": os.getpid(), "gone": gone, "down": None})
    assert sample.process_rss_bytes["me"] == pytest.approx(rss_bytes(os.getpid()), rel=0.2)
    assert sample.process_rss_bytes["gone"] is None
    assert sample.process_rss_bytes["down"] is None
    assert set(sample.process_cpu_percent) == {"me", "gone", "down"}
    assert 0 < sample.memory_used_bytes < sample.memory_total_bytes
    assert sample.cpu_count >= 1
    assert rss_bytes(gone) is None


def test_cpu_use_is_counted_across_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Times:
        idle, user = 0.0, 0.0

        def _asdict(self) -> dict[str, float]:
            return {"user": self.user, "guest": self.user / 2, "idle": self.idle, "iowait": 1.0}

    times = Times()
    monkeypatch.setattr("psutil.cpu_times", lambda percpu=False: [times] if percpu else times)
    sampler = SystemSampler()
    times.user, times.idle = 3.0, 9.0
    with ThreadPoolExecutor() as pool:
        assert pool.submit(sampler.sample, {}).result().cpu_percent == pytest.approx(25.0)
        times.user += 1.0
        assert pool.submit(sampler.sample, {}).result().cpu_percent == pytest.approx(100.0)
    assert sampler.sample({}).cpu_percent == 0.0


def test_the_disk_tells_what_the_stack_keeps_on_it(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    files = {
        "trajectories.db": 5,
        "trajectories.db-wal": 2,
        "conversations.db": 3,
        "checkpoints/policy_version_1/model.safetensors": 11,
        "checkpoints/policy_version_2/model.safetensors": 13,
        "logs/trainer.log": 17,
        "logs/trainer.log.1": 19,
        "work/session/large": 1_000,
    }
    for name, num_bytes in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * num_bytes)
    disk = sample_disk(run_dir, CONFIG)
    assert disk
    kept = disk.model_dump(exclude={"used_bytes", "total_bytes"})
    assert kept == {
        "trajectories_bytes": 7,
        "trajectories_max_bytes": 100,
        "conversations_bytes": 3,
        "conversations_max_bytes": 50,
        "checkpoints_bytes": 24,
        "logs_bytes": 36,
    }
    assert 0 < disk.used_bytes <= disk.total_bytes


def test_the_disk_of_a_run_directory_that_is_not_made_yet(tmp_path: Path) -> None:
    disk = sample_disk(RunDir(tmp_path / "not" / "yet"), CONFIG)
    assert disk
    assert disk.trajectories_bytes == disk.checkpoints_bytes == disk.logs_bytes == 0
