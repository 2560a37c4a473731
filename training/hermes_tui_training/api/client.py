"""How programs talk to the inference gateway. Free of torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx
from pydantic import BaseModel

from hermes_tui_common.errors import ApiError, RefusedError, ServiceError, UnreachableError
from hermes_tui_common.http import SkippedEvents, iter_sse, parsed, require_ok
from hermes_tui_training.api.protocol import (
    Body,
    DeleteSession,
    DeregisterModel,
    EndSession,
    Pause,
    RegisterModel,
    RenameSession,
    Rollback,
    SetReward,
    SetTopic,
    StartSession,
    UnsetReward,
)
from hermes_tui_training.api.types import CanaryAnswer, Event, Session
from hermes_tui_training.api.wire import (
    EndedSession,
    EpisodeRecord,
    EpisodeSummary,
    GatewayHealth,
    KeptCheckpoint,
    RewardAnswer,
    ServedModel,
    ServedModels,
    SessionChanged,
    StartedSessions,
    StepRecord,
    TopicAnswer,
    TrainerStatus,
    UnsetRewardAnswer,
)

Answer = TypeVar("Answer")
Row = TypeVar("Row")

TIMEOUT_S = 30.0
"""For everything but completions; a machine that trains on all its cores answers late."""

_CHAT_TIMEOUT = httpx.Timeout(TIMEOUT_S, read=None)
_ROLLBACK_TIMEOUT = httpx.Timeout(TIMEOUT_S, read=None)  # it waits for the step that runs
_EVENTS_TIMEOUT = httpx.Timeout(TIMEOUT_S, read=60.0)  # an idle stream says so every 15 s
_RECONNECT_S = (0.2, 0.5, 1.0, 2.0)
_NAME = "the inference gateway"


class _Rows(BaseModel, Generic[Row]):
    """A list, as OpenAI wraps it."""

    data: list[Row]


class InferenceClient:
    """The inference gateway's routes as methods.

    Raises: from any method: UnreachableError; RefusedError: it said no; ServiceError: its answer
        cannot be read.
    """

    def __init__(self, base_url: str, admin_key: str) -> None:
        """
        Args:
            base_url: such as ``http://127.0.0.1:8000``.
            admin_key: ``inference_admin_key`` of the run directory's ``keys.json``.
        """
        self._http = httpx.AsyncClient(
            base_url=base_url.rstrip("/"),
            headers={"Authorization": f"Bearer {admin_key}"},
            timeout=TIMEOUT_S,
            trust_env=False,
        )
        self.skipped_events = SkippedEvents(_NAME)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # -- sessions ---------------------------------------------------------------------------

    async def start_session(
        self,
        task_id: str,
        *,
        api_key: str | None = None,
        group_size: int = 1,
        group_id: str | None = None,
        branch_of: str | None = None,
        beside: str | None = None,
    ) -> StartedSessions:
        """Start sessions.

        Args:
            task_id: a group is of one task.
            api_key: a session key to use again; None mints one.
            group_size: how many siblings to start.
            group_id: group to join; None makes a new one.
            branch_of: session whose conversation the new one goes on with.
            beside: that session's episode that the new one's first is compared with.
        """
        body = StartSession(
            task_id=task_id,
            api_key=api_key,
            group_size=group_size,
            group_id=group_id,
            branch_of=branch_of,
            beside=beside,
        )
        return await self._call("POST", "/rl/start_session", StartedSessions, body)

    async def end_session(self, session_id: str) -> EndedSession:
        """End a session."""
        body = EndSession(session_id=session_id)
        return await self._call("POST", "/rl/end_session", EndedSession, body)

    async def set_topic(self, session_id: str, topic: str) -> TopicAnswer:
        """Say what a session and its siblings are about."""
        body = SetTopic(session_id=session_id, topic=topic)
        return await self._call("POST", "/rl/set_topic", TopicAnswer, body)

    async def rename_session(self, session_id: str, title: str) -> SessionChanged:
        """Give a session a name."""
        body = RenameSession(session_id=session_id, title=title)
        return await self._call("POST", "/rl/rename_session", SessionChanged, body)

    async def delete_session(self, session_id: str) -> SessionChanged:
        """Forget a session and all that was recorded in it."""
        body = DeleteSession(session_id=session_id)
        return await self._call("POST", "/rl/delete_session", SessionChanged, body)

    async def set_reward(
        self,
        reward: float | None,
        *,
        feedback: str | None = None,
        session_id: str | None = None,
        episode_id: str | None = None,
        interaction_id: str | None = None,
    ) -> RewardAnswer:
        """Judge an episode, a session's newest one, or one completion.

        Args:
            reward: the number; None, with ``feedback``, keeps the one in force.
            feedback: a sentence that says why; empty takes it away, None keeps it.
            session_id: session whose newest episode is meant.
            episode_id: episode that is meant.
            interaction_id: completion to reward alone.
        """
        body = SetReward(
            reward=reward,
            feedback=feedback,
            session_id=session_id,
            episode_id=episode_id,
            interaction_id=interaction_id,
        )
        return await self._call("POST", "/rl/set_reward", RewardAnswer, body)

    async def unset_reward(
        self, *, session_id: str | None = None, episode_id: str | None = None
    ) -> UnsetRewardAnswer:
        """Take a reward back that no step has claimed."""
        body = UnsetReward(session_id=session_id, episode_id=episode_id)
        return await self._call("POST", "/rl/unset_reward", UnsetRewardAnswer, body)

    # -- reading ----------------------------------------------------------------------------

    async def sessions(self) -> list[Session]:
        """Return the newest sessions, oldest first."""
        return await self._rows("/rl/sessions", _Rows[Session])

    async def episodes(
        self,
        *,
        session_id: str | None = None,
        group_id: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[EpisodeSummary]:
        """Return episodes without their completions, oldest first.

        Args:
            session_id: of this session; None is no condition, here and below.
            group_id: of this group.
            state: in this state.
            after: those after this episode's id.
            limit: how many at most.
        """
        return await self._rows(
            "/rl/episodes",
            _Rows[EpisodeSummary],
            session_id=session_id,
            group_id=group_id,
            state=state,
            after=after,
            limit=limit,
        )

    async def episode(self, episode_id: str) -> EpisodeRecord:
        """Return an episode with its completions."""
        return await self._call("GET", f"/rl/episodes/{episode_id}", EpisodeRecord)

    async def steps(self, *, after: int = -1) -> list[StepRecord]:
        """Return the rows of the steps after a number, oldest first."""
        return await self._rows("/rl/steps", _Rows[StepRecord], after=after)

    async def health(self) -> GatewayHealth:
        """Return whether the gateway answers, and with what it samples."""
        return await self._call("GET", "/health", GatewayHealth)

    async def models(self) -> list[ServedModel]:
        """Return the models that are served."""
        return await self._rows("/v1/models", _Rows[ServedModel])

    # -- other servers' models --------------------------------------------------------------

    async def model_names(self) -> list[str]:
        """Return the names of the model that is trained and of other servers' models."""
        return list((await self._call("GET", "/v1/models", ServedModels)).models)

    async def register_model(
        self,
        name: str,
        url: str,
        *,
        api_key: str | None = None,
        provider_model: str | None = None,
        policy_version: int | None = None,
    ) -> None:
        """Have chat completions that name a model go to another server.

        Args:
            name: what requests call it.
            url: base URL of an OpenAI-compatible server.
            api_key: that server's key.
            provider_model: what that server calls it; None: the same.
            policy_version: version of the policy that it serves; None: another model.
        """
        body = RegisterModel(
            model=name,
            url=url,
            api_key=api_key,
            provider_model=provider_model,
            policy_version=policy_version,
        )
        await self._send("POST", "/register_model", body.model_dump(exclude_none=True))

    async def deregister_model(self, name: str) -> None:
        """Forget another server's model."""
        await self._send("POST", "/deregister_model", DeregisterModel(model=name).model_dump())

    # -- the trainer ------------------------------------------------------------------------

    async def status(self) -> TrainerStatus:
        """Return what the trainer does."""
        return await self._call("GET", "/rl/status", TrainerStatus)

    async def pause(self, reason: str = "paused by a person") -> TrainerStatus:
        """Begin no further step; return the status."""
        return await self._call("POST", "/rl/pause", TrainerStatus, Pause(reason=reason))

    async def resume(self) -> TrainerStatus:
        """Begin steps again; return the status."""
        return await self._call("POST", "/rl/resume", TrainerStatus)

    async def checkpoint(self) -> KeptCheckpoint:
        """Keep the current version for good."""
        return await self._call("POST", "/rl/checkpoint", KeptCheckpoint)

    async def canaries(self, policy_version: int | None = None) -> list[CanaryAnswer]:
        """Return a version's answers to the canary's questions; else the two newest versions'."""
        return await self._rows("/rl/canaries", _Rows[CanaryAnswer], policy_version=policy_version)

    async def rollback(self, policy_version: int) -> StepRecord:
        """Make an earlier version current; return the row of the new one that it became."""
        body = Rollback(policy_version=policy_version)
        return await self._call("POST", "/rl/rollback", StepRecord, body, timeout=_ROLLBACK_TIMEOUT)

    async def events(self, *, after: int | None = None) -> AsyncIterator[Event]:
        """Yield events until the client is closed; after a lost connection go on where it broke.
        Skips what cannot be read.

        Args:
            after: the last event's id that is known already; None begins with what happens next.

        Raises: RefusedError: the key is wrong.
        """
        failures = 0
        while not self._http.is_closed:
            try:
                async for event in self._events_once(after):
                    failures = 0
                    after = event.event_id if event.event_id is not None else after
                    yield event
            except httpx.HTTPError:
                pass  # the trainer restarts: the stream goes on when it is back
            await asyncio.sleep(_RECONNECT_S[min(failures, len(_RECONNECT_S) - 1)])
            failures += 1

    async def _events_once(self, after: int | None) -> AsyncIterator[Event]:
        parameters = {} if after is None else {"after": str(after)}
        async with self._http.stream(
            "GET", "/rl/events", params=parameters, timeout=_EVENTS_TIMEOUT
        ) as response:
            await require_ok(response)
            async for message in iter_sse(response):
                try:
                    event = parsed(_NAME, Event, message)
                except ServiceError as error:
                    self.skipped_events.add(message.event or "unnamed", error)
                    continue
                yield event

    # -- completions ------------------------------------------------------------------------

    async def chat(
        self, session_key: str, messages: Sequence[Mapping[str, Any]], **fields: Any
    ) -> dict[str, Any]:
        """Return a completion; ``fields`` are OpenAI's, such as ``max_tokens``."""
        response = await self._send(
            "POST",
            "/v1/chat/completions",
            {"messages": list(messages), **fields},
            key=session_key,
            timeout=_CHAT_TIMEOUT,
        )
        answer: dict[str, Any] = response.json()
        return answer

    async def chat_stream(
        self, session_key: str, messages: Sequence[Mapping[str, Any]], **fields: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield a completion's chunks while it is sampled."""
        body = {"messages": list(messages), **fields, "stream": True}
        try:
            async with self._http.stream(
                "POST",
                "/v1/chat/completions",
                json=body,
                headers={"Authorization": f"Bearer {session_key}"},
                timeout=_CHAT_TIMEOUT,
            ) as response:
                await require_ok(response)
                async for message in iter_sse(response):
                    if message.data == "[DONE]":
                        return
                    chunk = json.loads(message.data)
                    if "error" in chunk:
                        raise RefusedError(_api_error(502, chunk["error"]))
                    yield chunk
        except httpx.HTTPError as error:
            raise _unreachable(error) from error

    async def _rows(self, path: str, kind: type[_Rows[Row]], **parameters: Any) -> list[Row]:
        given = {name: value for name, value in parameters.items() if value is not None}
        response = await self._send("GET", path, parameters=given)
        return parsed(_NAME, kind, response).data

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        body: Body | None = None,
        *,
        timeout: httpx.Timeout | None = None,
    ) -> Answer:
        json_body = body.model_dump(exclude_none=True) if body is not None else None
        response = await self._send(method, path, json_body, timeout=timeout)
        return parsed(_NAME, kind, response)

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        key: str | None = None,
        timeout: httpx.Timeout | None = None,
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            response = await self._http.request(
                method,
                path,
                json=body,
                params=parameters,
                headers=headers,
                timeout=timeout or TIMEOUT_S,
            )
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        await require_ok(response)
        return response


def _api_error(status: int, error: Mapping[str, Any]) -> ApiError:
    return ApiError(status, error["message"], code=error.get("code"), param=error.get("param"))


def _unreachable(error: httpx.HTTPError) -> UnreachableError:
    return UnreachableError.of(_NAME, error)
