"""The shapes of the control API: its events, logs and requests.

The supervisor sends these models, and the control client returns them. The state of the stack is in
``stack_status``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from hermes_tui.core.stack_status import ProcessState


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class _Event(_Answer):
    id: int = 0
    """Position in the supervisor's events, from 1; 0 before it has one."""
    at: float | None = None
    """Seconds since the epoch; None before it is emitted, and for ``missed``."""


class StackStarting(_Event):
    """The supervisor starts the processes."""

    event: Literal["starting"] = "starting"
    """Names the kind."""
    run_dir: str
    """Run directory."""
    control: str
    """URL of the control API."""


class ProcessChanged(_Event):
    """A process is in another state, or in the same for another reason."""

    event: Literal["process"] = "process"
    """Names the kind."""
    name: str
    """Such as ``worker-0``."""
    role: str
    """Such as ``worker``."""
    state: ProcessState
    """Its state now."""
    pid: int | None = None
    """Process id while it lives."""
    reason: str | None = None
    """While starting what it is doing; when failed or flapping why."""


class StackReady(_Event):
    """Every process is ready."""

    event: Literal["ready"] = "ready"
    """Names the kind."""
    agent_gateway: str | None = None
    """URL of the agent gateway; None when it is not run."""
    inference_gateway: str | None = None
    """URL of the inference gateway; None without training."""
    control: str
    """URL of the control API."""
    run_dir: str
    """Run directory."""
    pid: int
    """The supervisor."""


class StackFailed(_Event):
    """A process could not be started; the others are stopped."""

    event: Literal["failed"] = "failed"
    """Names the kind."""
    error: str
    """Why, for a person."""


class StackStopping(_Event):
    """The supervisor stops the processes."""

    event: Literal["stopping"] = "stopping"
    """Names the kind."""


class StackStopped(_Event):
    """No process is left."""

    event: Literal["stopped"] = "stopped"
    """Names the kind."""


class EventsMissed(_Event):
    """Events before this one are no longer kept."""

    event: Literal["missed"] = "missed"
    """Names the kind."""
    count: int
    """How many."""


ControlEvent = Annotated[
    StackStarting
    | ProcessChanged
    | StackReady
    | StackFailed
    | StackStopping
    | StackStopped
    | EventsMissed,
    Field(discriminator="event"),
]
"""One event of ``GET /events``."""

CONTROL_EVENT: TypeAdapter[ControlEvent] = TypeAdapter(ControlEvent)
"""Reads an event."""


def event_to_json(event: ControlEvent) -> dict[str, Any]:
    """Return an event as the JSON object that is sent; fields without a value stay out."""
    fields = event.model_dump(mode="json", exclude_unset=True, exclude={"event"})
    return {"event": event.event, **fields}


class _Query(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class EventsQuery(_Query):
    """Query of ``GET /events``."""

    after: int = Field(0, ge=0, le=2**53)
    """Events after this one."""


class LogsQuery(_Query):
    """Query of ``GET /services/{name}/logs``."""

    tail: int = Field(200, ge=0, le=2**53)
    """Lines from the end; 10,000 at most are sent."""
    follow: bool = False
    """Whether to go on with each new line, as events."""


class LogTail(_Answer):
    """Answer of ``GET /services/{name}/logs``."""

    name: str
    """The process."""
    lines: tuple[str, ...]
    """The last lines of its log, oldest first."""


class LogLine(_Answer):
    """One event of ``GET /services/{name}/logs?follow=true``."""

    line: str
    """Without its end."""


class ScaleRequest(BaseModel):
    """Body of ``POST /services/pairs``."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    count: int = Field(ge=1, le=64)
    """How many pairs of data proxy and worker to run."""


class ShutdownAnswer(_Answer):
    """Answer of ``POST /shutdown``."""

    status: Literal["stopping"] = "stopping"
    """Always ``stopping``: the supervisor ends after it has answered."""
