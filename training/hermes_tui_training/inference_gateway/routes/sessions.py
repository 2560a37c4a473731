"""``/rl/start_session``, ``end_session``, ``set_topic``, ``set_reward``, ``unset_reward``.

Requests and answers have AReaL's shapes, so that its clients work.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hermes_tui_common.auth import SESSION_KEY_PREFIX, mint_key
from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import read_body
from hermes_tui_training.api.protocol import (
    DeleteSession,
    EndSession,
    RenameSession,
    SetReward,
    SetTopic,
    StartSession,
    UnsetReward,
)
from hermes_tui_training.api.types import Episode, Session
from hermes_tui_training.api.wire import (
    SUCCESS,
    CompletionsKey,
    EndedSession,
    RewardAnswer,
    SessionChanged,
    StartedSession,
    StartedSessions,
    TopicAnswer,
    UnsetRewardAnswer,
)
from hermes_tui_training.inference_gateway.answers import model_response
from hermes_tui_training.inference_gateway.context import (
    Caller,
    Services,
    caller_of,
    require_admin,
    services_of,
)
from hermes_tui_training.store.rewards import NoRewardError
from hermes_tui_training.store.store import ConflictError, UnknownIdError, hash_key, new_id

logger = logging.getLogger(__name__)

_FOREIGN_KEY = re.compile(rf"{SESSION_KEY_PREFIX}[A-Za-z0-9_-]{{16,200}}")
"""Keys that another program minted: at least as long as admin keys must be."""

_IN_FLIGHT_RETRY_S = 1.0

_CAPACITY_RETRY_S = 5.0
"""A guess: nobody knows when the next session ends."""

_BACKLOG_RETRY_S = 5.0
"""About a step; it takes many of them at once."""


async def start_session(request: Request) -> Response:
    """``POST /rl/start_session``: mint keys, or use one again."""
    await require_admin(request)
    services = services_of(request)
    body = await read_body(request, StartSession)
    group_id, position = body.group_id or new_id("group-"), 0
    if body.beside is not None:
        group_id, position = await _place_beside(services, body)
    if body.api_key is not None:
        keys = [await _key_to_reuse(services, body)]
    else:
        keys = [mint_key(SESSION_KEY_PREFIX) for _ in range(body.group_size)]
    async with services.starting:
        await _require_capacity(services, keys)
        started = [await _started(services, body, group_id, position, key) for key in keys]
    answer = StartedSessions(
        session_id=started[0].session_id,
        api_key=keys[0],
        group_id=group_id,
        sessions=tuple(
            StartedSession(session_id=session.session_id, session_api_key=key)
            for session, key in zip(started, keys, strict=True)
        ),
    )
    return model_response(answer, status_code=201)


async def _require_capacity(services: Services, keys: Sequence[str]) -> None:
    """Raise ApiError 429 when sessions under these keys would be more than may be open.

    A key whose session runs needs no room: that session ends.
    """
    bound = services.config.training.gateway.max_sessions
    if not bound:
        return
    sessions = services.store.sessions
    known = [await asyncio.to_thread(sessions.by_key_hash, hash_key(key)) for key in keys]
    num_new = sum(session is None or session.ended_at is not None for session in known)
    running = await asyncio.to_thread(sessions.num_running)
    if running + num_new > bound:
        raise ApiError(
            429,
            f"{running} sessions are open and {bound} may be (training.gateway.max_sessions); "
            "end one with POST /rl/end_session, or try again.",
            code="no_session_capacity",
            retry_after_s=_CAPACITY_RETRY_S,
        )


async def _place_beside(services: Services, body: StartSession) -> tuple[str, int]:
    """Return the group of the episode that a request names, and its place there.

    Raises: ApiError: 400: another group is named too. 404: there is no such episode.
    """
    if body.group_id is not None:
        raise ApiError(400, "'beside' says the group: leave out 'group_id'.", param="group_id")
    store = services.store
    try:
        episode = await asyncio.to_thread(store.episodes.get, body.beside or "")
        position = await asyncio.to_thread(store.sessions.group_position, episode.episode_id)
    except UnknownIdError as error:
        raise _unknown(error, "beside") from error
    return episode.group_id, position


async def _started(
    services: Services, body: StartSession, group_id: str, position: int, key: str
) -> Session:
    try:
        session = await asyncio.to_thread(
            services.store.sessions.create,
            key_hash=hash_key(key),
            task_id=body.task_id,
            group_id=group_id,
            branch_of=body.branch_of,
            group_position=position,
        )
    except ConflictError as error:
        raise _conflict(error) from error
    logger.info("session started session=%s group=%s", session.session_id, group_id)
    return session


async def _key_to_reuse(services: Services, body: StartSession) -> str:
    """Return the session key that a request names.

    Raises: ApiError: 400: siblings cannot share a key, or it is no session key. 404: unknown.
    """
    key = (body.api_key or "").strip()
    if body.group_size != 1:
        raise ApiError(400, "'group_size' must be 1 when 'api_key' is given.", param="group_size")
    known = await asyncio.to_thread(services.store.sessions.by_key_hash, hash_key(key))
    if known is not None:
        return key
    if not services.config.training.gateway.accept_foreign_keys:
        raise ApiError(
            404,
            "'api_key' is not known here; leave it out to get a new one, or set "
            "training.gateway.accept_foreign_keys.",
            param="api_key",
        )
    if not _FOREIGN_KEY.fullmatch(key):
        raise ApiError(
            400,
            f"'api_key' must be {SESSION_KEY_PREFIX} and 16 to 200 url-safe characters.",
            param="api_key",
        )
    return key


async def completions_key(request: Request) -> Response:
    """``POST /rl/completions_key``: a key for the session's completions alone."""
    session, services = (await caller_of(request)).session, services_of(request)
    if session is None:
        raise ApiError(403, "Send the session's own key: this is the admin key.")
    key = services.completions_keys.key_of(session.session_id)
    return model_response(CompletionsKey(api_key=key, session_id=session.session_id))


async def end_session(request: Request) -> Response:
    """``POST /rl/end_session``: its key works no longer."""
    caller, services = await caller_of(request), services_of(request)
    body = await read_body(request, EndSession)
    session = await _session_meant(services, caller, body.session_id)
    await asyncio.to_thread(services.store.sessions.end, session.session_id)
    episode = await asyncio.to_thread(services.store.episodes.newest_of, session.session_id)
    answer = EndedSession(
        message=SUCCESS,
        session_id=session.session_id,
        episode_id=episode.episode_id if episode else None,
        interaction_count=len(episode.completions) if episode else 0,
    )
    return model_response(answer)


async def set_topic(request: Request) -> Response:
    """``POST /rl/set_topic``: say what a session is about; its siblings go with it."""
    caller, services = await caller_of(request), services_of(request)
    body = await read_body(request, SetTopic)
    session = await _session_meant(services, caller, body.session_id)
    changed = await asyncio.to_thread(
        services.store.sessions.set_topic, session.session_id, body.topic
    )
    answer = TopicAnswer(message=SUCCESS, session_id=changed.session_id, topic=changed.topic)
    return model_response(answer)


async def rename_session(request: Request) -> Response:
    """``POST /rl/rename_session``: give a session a name."""
    await require_admin(request)
    body = await read_body(request, RenameSession)
    store = services_of(request).store
    try:
        session = await asyncio.to_thread(store.sessions.rename, body.session_id, body.title)
    except UnknownIdError as error:
        raise _unknown(error, "session_id") from error
    return model_response(SessionChanged(message=SUCCESS, session_id=session.session_id))


async def delete_session(request: Request) -> Response:
    """``POST /rl/delete_session``: forget a session and all that was recorded in it."""
    await require_admin(request)
    body = await read_body(request, DeleteSession)
    try:
        await asyncio.to_thread(services_of(request).store.sessions.delete, body.session_id)
    except UnknownIdError as error:
        raise _unknown(error, "session_id") from error
    except ConflictError as error:
        raise _conflict(error) from error
    logger.info("session deleted session=%s", body.session_id)
    return model_response(SessionChanged(message=SUCCESS, session_id=body.session_id))


async def set_reward(request: Request) -> Response:
    """``POST /rl/set_reward``: judge an episode, or one of its completions."""
    caller, services = await caller_of(request), services_of(request)
    body = await read_body(request, SetReward)
    reward = None
    if body.reward is not None or body.feedback is None:
        reward = _checked_reward(body.reward, services.config.training.reward.range)
    named = EpisodeRef(
        session_id=body.session_id, episode_id=body.episode_id, completion_id=body.interaction_id
    )
    episode_id = await _episode_meant(services, caller, named)
    if caller.session is not None:
        await _require_room(services, episode_id)
    try:
        episode = await asyncio.to_thread(
            services.store.rewards.set,
            episode_id,
            reward,
            completion_id=body.interaction_id,
            feedback=body.feedback,
        )
    except ConflictError as error:
        raise _conflict(error) from error
    except NoRewardError as error:
        raise ApiError(
            400, "'reward' is needed: the episode has none yet.", param="reward"
        ) from error
    # The event of the reward wakes the trainer's loop.
    given = episode.reward_log[-1].reward
    logger.info("reward taken episode=%s reward=%s", episode_id, given)
    return model_response(_reward_answer(episode, given))


async def unset_reward(request: Request) -> Response:
    """``POST /rl/unset_reward``: take back a reward that no step has claimed."""
    caller, services = await caller_of(request), services_of(request)
    body = await read_body(request, UnsetReward)
    named = EpisodeRef(session_id=body.session_id, episode_id=body.episode_id)
    episode_id = await _episode_meant(services, caller, named)
    try:
        episode = await asyncio.to_thread(services.store.rewards.unset, episode_id)
    except ConflictError as error:
        raise _conflict(error) from error
    answer = UnsetRewardAnswer(
        message=SUCCESS,
        session_id=episode.session_id,
        episode_id=episode_id,
        state=episode.state,
    )
    return model_response(answer)


async def _require_room(services: Services, episode_id: str) -> None:
    """Raise ApiError 429 when as many scored episodes wait as may, unless it is one of them."""
    if (await asyncio.to_thread(services.store.episodes.get, episode_id)).state == "scored":
        return
    waiting = (await asyncio.to_thread(services.store.episodes.num_by_state)).get("scored", 0)
    if waiting >= services.config.training.max_backlog:
        raise ApiError(
            429,
            f"{waiting} scored episodes wait to be trained (training.max_backlog): try again.",
            retry_after_s=_BACKLOG_RETRY_S,
        )


def _checked_reward(reward: Any, bounds: tuple[float, float]) -> float:
    """Return a reward as a float.

    Raises: ApiError: 400: it is no finite number, or outside the bounds.
    """
    low, high = bounds
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise ApiError(400, f"'reward' must be a number in [{low:g}, {high:g}].", param="reward")
    if not low <= reward <= high:  # NaN is not either
        raise ApiError(
            400,
            f"'reward' = {reward!s:.20} is outside [{low:g}, {high:g}] (training.reward.range).",
            param="reward",
        )
    return float(reward)


def _unknown(error: UnknownIdError, param: str) -> ApiError:
    message = str(error)
    return ApiError(404, f"{message[0].upper()}{message[1:]}.", param=param)


def _conflict(error: ConflictError) -> ApiError:
    message = str(error)
    retry_after_s = _IN_FLIGHT_RETRY_S if error.passing else None
    return ApiError(409, f"{message[0].upper()}{message[1:]}.", retry_after_s=retry_after_s)


async def _session_meant(services: Services, caller: Caller, session_id: str | None) -> Session:
    """Return the caller's own session, or the one that the admin names.

    Raises: ApiError: 400: the admin names none. 403: another one's. 404: unknown.
    """
    if session_id is None:
        if caller.session is None:
            raise ApiError(400, "With the admin key 'session_id' is needed.", param="session_id")
        return caller.session
    session = await asyncio.to_thread(services.store.sessions.get, session_id)
    if session is None:
        raise ApiError(404, "There is no such session.", param="session_id")
    caller.require_own(session_id)
    return session


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRef:
    """What a request says of the episode that it means; what it gives must agree."""

    session_id: str | None
    """The episode's session; alone it means the session's newest episode."""
    episode_id: str | None
    """The episode."""
    completion_id: str | None = None
    """One of the episode's completions."""


async def _episode_meant(services: Services, caller: Caller, named: EpisodeRef) -> str:
    """Return the id of the episode that a request means; without a name the caller's newest one.

    Raises: ApiError: 400: nothing has been recorded, or nothing is named. 403, 404.
    """
    store = services.store
    try:
        if named.completion_id is not None:
            episode_id = await asyncio.to_thread(
                store.episodes.id_of_completion, named.completion_id
            )
            episode = await asyncio.to_thread(store.episodes.get, episode_id)
        elif named.episode_id is not None:
            episode = await asyncio.to_thread(store.episodes.get, named.episode_id)
        else:
            session = await _session_meant(services, caller, named.session_id)
            newest = await asyncio.to_thread(store.episodes.newest_of, session.session_id)
            if newest is None:
                raise ApiError(400, "No interactions in session")
            episode = newest
    except UnknownIdError as error:
        message = str(error)
        raise ApiError(404, f"{message[0].upper()}{message[1:]}.") from error
    caller.require_own(episode.session_id)
    if named.session_id not in (None, episode.session_id):
        raise ApiError(400, "'session_id' is not the episode's session.", param="session_id")
    if named.episode_id not in (None, episode.episode_id):
        raise ApiError(400, "'interaction_id' is not one of the episode's.", param="interaction_id")
    return episode.episode_id


def _reward_answer(episode: Episode, reward: float) -> RewardAnswer:
    answer = RewardAnswer(
        message=SUCCESS,
        interaction_count=len(episode.completions),
        session_id=episode.session_id,
        episode_id=episode.episode_id,
        trajectory_id=episode.episode_id,
        trajectory_ready=True,
        ready_transition=sum(e.taken_back_at is None for e in episode.reward_log) == 1,
        reward=reward,
        will_train=True,
    )
    reason = episode.obstacle
    if reason is None:
        return answer
    warning = f"it will not be trained: {_SENTENCES.get(reason, reason)}"
    return answer.model_copy(update={"warning": warning, "will_train": False, "reason": reason})


_SENTENCES = {
    "other_model": "another model sampled it; it is when that one is served again",
    "incomplete": "a completion of this episode was lost",
    "truncated": "truncated; a reward that names the reply (interaction_id) trains it",
    "other_choice": "other_choice; a reward that names the reply (interaction_id) trains it",
    "client_left": "client_left; a reward that names the reply (interaction_id) trains it",
}
"""Reasons that need more than their name."""
