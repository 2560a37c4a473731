"""What the trainer does: ``/rl/status``, pause and resume, and live events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui_common.disk import PHRASE
from hermes_tui_common.errors import ApiError, ServiceError, TrainingError
from hermes_tui_common.http import SseResponse, read_body, read_query, sse
from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_training.algorithm.groups import SiblingGroup, waiting_text
from hermes_tui_training.api.protocol import EventKind, EventsQuery, Pause
from hermes_tui_training.api.types import EpisodeState, Event
from hermes_tui_training.api.wire import (
    EngineStatus,
    GatewayHealth,
    KeptCheckpoint,
    LearnerPresence,
    StoreSize,
    TrainerStatus,
    WaitingGroup,
)
from hermes_tui_training.inference_gateway.answers import model_response
from hermes_tui_training.inference_gateway.context import Services, require_admin, services_of
from hermes_tui_training.store.store import Store

_KEEPALIVE_S = 15.0
"""Time between two comments on an idle event stream; they show whether the view is there."""

_PAGE = 500

_NOT_RUNNING = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


async def read_health(request: Request) -> Response:
    """``GET /health``."""
    services = services_of(request)
    sessions_open = await asyncio.to_thread(services.store.sessions.num_running)
    trainer = services.orchestrator.status()
    learner = await asyncio.to_thread(learner_presence, services.config.learner_run_file)
    problem = problem_of(trainer, learner)
    answer = GatewayHealth(
        status="degraded" if problem else "ok",
        problem=problem,
        backend=services.engine.backend,
        sessions=sessions_open,
        paused=bool(trainer.get("paused")),
        policy_version=services.engine.policy_version,
    )
    return JSONResponse(answer.model_dump(exclude_none=True))


async def read_status(request: Request) -> Response:
    """``GET /rl/status``: what the trainer does, and why it does not train."""
    await require_admin(request)
    return model_response(await trainer_status(services_of(request)))


async def trainer_status(services: Services) -> TrainerStatus:
    """Return what the trainer does, and what it has."""
    store, engine = services.store, services.engine
    episodes, groups, untrained, sessions, baselines, num_bytes = await asyncio.gather(
        asyncio.to_thread(store.episodes.num_by_state),
        asyncio.to_thread(store.steps.sibling_groups),
        asyncio.to_thread(store.completions.num_untrained),
        asyncio.to_thread(store.sessions.num_running),
        asyncio.to_thread(store.meta.get, "baselines", {}),
        asyncio.to_thread(store.retention.num_bytes),
    )
    training = services.config.training
    return TrainerStatus(
        batch_size=training.batch_size,
        num_scored=sum(not group.num_awaited for group in groups),
        groups=tuple(_waiting_group(services, group) for group in groups if group.num_awaited),
        episodes=episodes,
        sessions=sessions,
        untrained=untrained,
        baselines=baselines,
        store=StoreSize(num_bytes=num_bytes, max_bytes=training.store.max_bytes),
        waiting=_waiting_text(services, groups, episodes),
        learner=await asyncio.to_thread(learner_presence, services.config.learner_run_file),
        engine=EngineStatus(backend=engine.backend, **asdict(engine.stats())),
        **services.orchestrator.status(),
    )


def learner_presence(run_file: Path) -> LearnerPresence:
    """Return whether the process that the learner's run file names lives and runs."""
    try:
        pid = RoleRunFile.read(run_file).pid
    except (OSError, ValueError):
        return LearnerPresence(reachable=False, pid=None)
    try:
        state = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return LearnerPresence(reachable=False, pid=pid)
    return LearnerPresence(reachable=state not in _NOT_RUNNING, pid=pid)


def problem_of(trainer: Mapping[str, Any], learner: LearnerPresence) -> str | None:
    """Return what keeps the trainer from serving or training, in a sentence; None for nothing.

    Args:
        trainer: what the orchestrator says.
        learner: whether the learner lives.
    """
    if trainer.get("publish_error"):
        return f"version {trainer['policy_version']} is not served: {trainer['publish_error']}"
    if not learner.reachable:
        return "the learner is not there: scores are kept, and trained once it is back"
    reason = str(trainer.get("reason") or "")
    if reason.startswith(PHRASE):
        return f"training waits: {PHRASE}"  # without the path: anybody may read it
    if trainer.get("failed_attempts") and trainer.get("paused"):
        return f"training is paused after {trainer['failed_attempts']} failed steps"
    return None


def _waiting_group(services: Services, group: SiblingGroup) -> WaitingGroup:
    """Return a group that waits for siblings."""
    training = services.config.training
    ready_at = group.ready_at(training.reward.grace_s, training.group.timeout_s)
    return WaitingGroup(
        group_id=group.group_id,
        task_id=group.task_id,
        num_scored=len(group.episode_ids),
        num_siblings=group.num_siblings,
        seconds_left=max(0.0, ready_at - time.time()),
    )


def _waiting_text(
    services: Services, groups: Sequence[SiblingGroup], episodes: Mapping[EpisodeState, int]
) -> str:
    """Say what the next step waits for."""
    training = services.config.training
    text = waiting_text(
        groups,
        batch_size=training.batch_size,
        grace_s=training.reward.grace_s,
        timeout_s=training.group.timeout_s,
        now=time.time(),
    )
    if len(groups) < training.batch_size:
        unjudged = episodes.get("open", 0) + episodes.get("ended", 0)
        text += f"; {unjudged} episodes have no reward yet"
    return text


async def pause(request: Request) -> Response:
    """``POST /rl/pause``: no step begins until somebody resumes."""
    await require_admin(request)
    services = services_of(request)
    body = await read_body(request, Pause)
    await services.orchestrator.pause(body.reason)
    return model_response(await trainer_status(services))


async def resume(request: Request) -> Response:
    """``POST /rl/resume``."""
    await require_admin(request)
    services = services_of(request)
    await services.orchestrator.resume()
    return model_response(await trainer_status(services))


async def keep_checkpoint(request: Request) -> Response:
    """``POST /rl/checkpoint``: keep the current version for good."""
    await require_admin(request)
    try:
        kept = await services_of(request).orchestrator.checkpoint()
        return model_response(KeptCheckpoint.model_validate(kept))
    except (TrainingError, ServiceError) as error:
        raise ApiError(409, f"{error}.") from error


async def stream_events(request: Request) -> Response:
    """``GET /rl/events``: what happens, from now on or after an event's id."""
    await require_admin(request)
    after = read_query(request, EventsQuery, last_event_id="after").after
    return SseResponse(_events(services_of(request).store, after))


async def _events(store: Store, after: int | None) -> AsyncIterator[bytes]:
    """Yield stored events after an id, then live ones; each stored one exactly once."""
    with store.events.subscribe() as subscription:
        oldest, newest = await asyncio.to_thread(store.events.id_range)
        cursor = newest if after is None else min(after, newest)
        yield b": connected\n\n"
        if cursor < oldest - 1:
            payload = {"oldest_event_id": oldest}
            yield _sse(Event(kind=EventKind.EVENTS_LOST, payload=payload, at=time.time()))
        lost = True  # nothing was read yet
        batch: list[Event] = []
        while True:
            if lost:
                async for event in _stored(store, cursor):
                    assert event.event_id is not None
                    cursor = event.event_id
                    yield _sse(event)
            for event in batch:
                if event.event_id is not None:
                    if event.event_id <= cursor:
                        continue
                    cursor = event.event_id
                yield _sse(event)
            try:
                async with asyncio.timeout(_KEEPALIVE_S):
                    batch, lost = await subscription.batch()
            except TimeoutError:
                batch, lost = [], False
                yield b": idle\n\n"


async def _stored(store: Store, after: int) -> AsyncIterator[Event]:
    while page := await asyncio.to_thread(store.events.stored, after=after, limit=_PAGE):
        for event in page:
            yield event
            assert event.event_id is not None
            after = event.event_id


def _sse(event: Event) -> bytes:
    data = {
        "event_id": event.event_id,
        "kind": event.kind,
        "at": event.at,
        "payload": event.payload,
    }
    return sse(data, event=event.kind, event_id=event.event_id)
