"""What was recorded, as JSON: sessions, episodes, completions, steps, exported trajectories."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import read_body, read_query
from hermes_tui_training.api.protocol import EpisodesQuery, Export, PageQuery, StepsQuery
from hermes_tui_training.api.types import Completion, Episode, EpisodeState
from hermes_tui_training.api.wire import (
    CompletionRecord,
    EpisodeRecord,
    StepRecord,
    TopLogprob,
    Usage,
)
from hermes_tui_training.chat_template.detokenizer import TokenTexts
from hermes_tui_training.exports.rows import ExportOptions, row_json, rows_of
from hermes_tui_training.inference_gateway.answers import model_response, rows_response
from hermes_tui_training.inference_gateway.context import (
    Services,
    caller_of,
    require_admin,
    services_of,
)
from hermes_tui_training.store.store import UnknownIdError


async def list_sessions(request: Request) -> Response:
    """``GET /rl/sessions``: all sessions, or the key's own."""
    caller, services = await caller_of(request), services_of(request)
    if caller.session is not None:
        found = [caller.session]
    else:
        found = await asyncio.to_thread(
            services.store.sessions.newest, limit=read_query(request, PageQuery).limit
        )
    return rows_response(found)


async def list_episodes(request: Request) -> Response:
    """``GET /rl/episodes``: without completions, oldest first."""
    caller, services = await caller_of(request), services_of(request)
    query = read_query(request, EpisodesQuery)
    session_id = query.session_id
    if caller.session is not None:
        session_id = session_id or caller.session.session_id
        caller.require_own(session_id)
    rows = await asyncio.to_thread(
        services.store.episodes.summaries,
        session_id=session_id,
        group_id=query.group_id,
        state=query.state,
        after=query.after,
        limit=query.limit,
    )
    version = services.engine.policy_version
    return rows_response(
        row.model_copy(update={"staleness": _staleness(row.policy_version_min, row.state, version)})
        for row in rows
    )


def _staleness(oldest: int | None, state: EpisodeState, version: int) -> int | None:
    """Return how many versions an episode is behind; None once that matters no longer.

    Args:
        oldest: version of its oldest token.
        state: of the episode.
        version: the one that serves.
    """
    if oldest is None or state in ("trained", "dropped"):
        return None
    return max(0, version - oldest)


async def read_episode(request: Request) -> Response:
    """``GET /rl/episodes/{episode_id}``: with everything that was recorded."""
    caller, services = await caller_of(request), services_of(request)
    episode = await _episode(services, request.path_params["episode_id"])
    caller.require_own(episode.session_id)
    version, token_texts = services.engine.policy_version, services.chat.token_texts
    # Thousands of tokens get their texts: not in the loop that streams.
    return await asyncio.to_thread(
        lambda: model_response(episode_record(episode, version, token_texts))
    )


async def _episode(services: Services, episode_id: str) -> Episode:
    try:
        return await asyncio.to_thread(services.store.episodes.get, episode_id)
    except UnknownIdError as error:
        raise ApiError(404, "There is no such episode.") from error


async def list_steps(request: Request) -> Response:
    """``GET /rl/steps``: one row per optimizer step, oldest first."""
    await require_admin(request)
    query = read_query(request, StepsQuery)
    rows = await asyncio.to_thread(
        services_of(request).store.steps.rows, after=query.after, limit=query.limit
    )
    return rows_response(StepRecord.model_validate(row) for row in rows)


async def export_trajectories(request: Request) -> Response:
    """``POST /export_trajectories``: recorded data to use elsewhere; marks nothing."""
    await require_admin(request)
    services = services_of(request)
    body = await read_body(request, Export)
    if body.session_ids is None and body.episode_ids is None:
        raise ApiError(400, "'session_ids' or 'episode_ids' is needed.", param="session_ids")
    episodes = [await _episode(services, episode_id) for episode_id in body.episode_ids or ()]
    for session_id in body.session_ids or ():
        if await asyncio.to_thread(services.store.sessions.get, session_id) is None:
            raise ApiError(404, "There is no such session.", param="session_ids")
        episodes += await asyncio.to_thread(
            services.store.episodes.find, session_id=session_id, limit=-1
        )
    rows = await asyncio.to_thread(_exported, episodes, body)
    return JSONResponse({"trajectories": rows, "data": rows})


def _exported(episodes: Sequence[Episode], body: Export) -> list[dict[str, Any]]:
    """Return the rows of episodes, each episode once."""
    once = {episode.episode_id: episode for episode in episodes}
    options = ExportOptions(style=body.style, discount=body.discount)
    return [row_json(row) for episode in once.values() for row in rows_of(episode, options)]


def episode_record(episode: Episode, policy_version: int, token_texts: TokenTexts) -> EpisodeRecord:
    """Return an episode with its completions, as it is answered.

    Args:
        policy_version: the version that serves, against which staleness counts.
        token_texts: decodes them.
    """
    oldest = episode.policy_version_min
    return EpisodeRecord(
        episode_id=episode.episode_id,
        session_id=episode.session_id,
        group_id=episode.group_id,
        task_id=episode.task_id,
        state=episode.state,
        reward=episode.reward,
        reward_log=episode.reward_log,
        feedback=episode.feedback,
        scored_at=episode.scored_at,
        created_at=episode.created_at,
        policy_version_min=oldest,
        policy_version_max=episode.policy_version_max,
        step=episode.step,
        dropped_reason=episode.dropped_reason,
        incomplete=episode.incomplete,
        completions=tuple(_completion_record(c, token_texts) for c in episode.completions),
        staleness=_staleness(oldest, episode.state, policy_version),
    )


def _completion_record(completion: Completion, token_texts: TokenTexts) -> CompletionRecord:
    """Return a completion with its tokens' texts."""
    num_prompt, num_sampled = len(completion.prompt_token_ids), len(completion.token_ids)
    columns = {field.name: getattr(completion, field.name) for field in fields(completion)}
    columns["top_logprobs"] = tuple(
        tuple(
            TopLogprob(token_id=token_id, token=token_texts.alone(token_id), logprob=logprob)
            for token_id, logprob in tops
        )
        for tops in completion.top_logprobs
    )
    return CompletionRecord(
        **columns,
        prompt_texts=tuple(token_texts.in_sequence(completion.prompt_token_ids)),
        texts=tuple(token_texts.in_sequence(completion.token_ids)),
        usage=Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_sampled,
            total_tokens=num_prompt + num_sampled,
        ),
    )
