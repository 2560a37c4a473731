"""What the control API tells about the stack: written by the supervisor, read by every view."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

SUPERVISOR = "supervisor"
"""Name of the process that owns the others: of its log, its run file, its samples."""

SAMPLE_S = 2.0
"""Seconds between two samples of the machine, taken only while somebody looks."""


class ProcessState(StrEnum):
    """Where a process is in its life."""

    STARTING = "starting"
    """Started, or about to be; not ready yet."""
    READY = "ready"
    """Answers /health with the token it was started with."""
    HUNG = "hung"
    """Gives no sign of life, or does not get on; is killed and started again."""
    STOPPING = "stopping"
    """Was asked to end."""
    STOPPED = "stopped"
    """Ended because it was asked to."""
    FAILED = "failed"
    """Ended on its own, and a restart would not help or is still to come."""
    FLAPPING = "flapping"
    """Died too often; stays down until a person restarts it."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class ProcessStatus(_Row):
    """One process of the stack."""

    name: str
    """Such as ``worker-0``."""
    role: str = ""
    """Such as ``worker``."""
    state: ProcessState
    """Where it is in its life."""
    pid: int | None = None
    """Process id while it lives."""
    port: int | None = None
    """Port it listens on, kept across restarts; None before it was ready once."""
    url: str | None = None
    """Where it answers; None before it was ready once."""
    restarts: int = 0
    """How often it was started again."""
    uptime_s: float | None = None
    """Seconds since this process was started; None while it does not live."""
    rss_bytes: int | None = None
    """Resident memory, its own children included; None while it does not live."""
    last_exit: str | None = None
    """How it last ended: ``exit 1``, ``SIGKILL``, ``SIGKILL (no heartbeat for 20 s)``."""
    reason: str | None = None
    """While starting what it is doing; when hung, failed or flapping why; when ready what a person
    should know, such as data that was damaged, a line each."""
    work: str | None = None
    """What it is at work on and how far it is; None when it does nothing that takes time."""


class StackStatus(_Row):
    """The whole stack."""

    version: str
    """Version of Hermes TUI."""
    run_dir: str
    """Run directory."""
    state: ProcessState
    """Starting until every process was ready once."""
    pid: int
    """The supervisor."""
    uptime_s: float
    """Seconds since the supervisor was started."""
    agent_gateway: str | None = None
    """URL of the agent gateway; None until it is ready, or when it is not run."""
    inference_gateway: str | None = None
    """URL of the inference gateway; None until it is ready, or without training."""
    control: str
    """URL of the control API."""
    cage: str = ""
    """What the agent's workers run in: ``bubblewrap``, or ``none`` and why; empty when there are
    none."""
    processes: tuple[ProcessStatus, ...] = ()
    """In the order they are started."""


class GpuSample(_Row):
    """One GPU; every figure is None where the driver refuses it."""

    index: int
    """Position among the GPUs."""
    name: str | None = None
    """Product name."""
    utilization_percent: float | None = None
    """Share of the last sampling period in which a kernel ran."""
    memory_used_bytes: int | None = None
    """Memory in use."""
    memory_total_bytes: int | None = None
    """Memory there is."""
    power_w: float | None = None
    """Power draw."""
    temperature_c: float | None = None
    """Core temperature."""
    processes: dict[int, int | None] | None = None
    """Process id to memory in bytes; None when the driver does not tell."""


class DiskSample(_Row):
    """The disk of the run directory, and what the stack keeps there."""

    used_bytes: int
    """In use, by whomever."""
    total_bytes: int
    """What it holds."""
    trajectories_bytes: int
    """``trajectories.db``."""
    trajectories_max_bytes: int
    """``training.store.max_bytes``; 0 is no bound."""
    conversations_bytes: int
    """``conversations.db``."""
    conversations_max_bytes: int = 0
    """``services.store.max_bytes``; 0 is no bound, or an older version that has none."""
    checkpoints_bytes: int
    """Weights, optimizers."""
    logs_bytes: int
    """Logs, older ones included."""


class SystemSample(_Row):
    """The machine, as seen at one moment."""

    at: float
    """Seconds since the epoch."""
    cpu_percent: float
    """Use of all cores together since the last sample, 0 to 100."""
    cpu_count: int
    """Logical cores that this process may use."""
    core_percents: tuple[float, ...] = ()
    """Use of each of the machine's logical cores since the last sample, 0 to 100."""
    load_average: tuple[float, float, float] | None = None
    """Over 1, 5 and 15 minutes."""
    memory_used_bytes: int
    """Memory that is not available to a new program."""
    memory_total_bytes: int
    """Memory there is."""
    process_rss_bytes: dict[str, int | None]
    """Resident memory of each process of the stack, by name."""
    process_cpu_percent: dict[str, float | None]
    """Use of one core by each process of the stack since the last sample, by name."""
    gpus: tuple[GpuSample, ...] = ()
    """Every GPU that the driver shows."""
    gpu_note: str | None = None
    """Why no GPU is shown; None when one is."""
    disk: DiskSample | None = None
    """The run directory's disk; None when it cannot be read."""
    supervisor_pid: int | None = None
    """The process that took the sample."""
    supervisor_uptime_s: float | None = None
    """Seconds since that process was started."""
