"""How programs talk to the inference gateway. Free of torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from hermes_tui_common.errors import ApiError, RefusedError, ServiceError
from hermes_tui_common.http import api_error_from, iter_sse
from hermes_tui_training.api.types import Event

TIMEOUT_S = 30.0
"""For everything but completions; a machine that trains on all its cores answers late."""

_CHAT_TIMEOUT = httpx.Timeout(TIMEOUT_S, read=None)
_ROLLBACK_TIMEOUT = httpx.Timeout(TIMEOUT_S, read=None)  # it waits for the step that runs
_EVENTS_TIMEOUT = httpx.Timeout(TIMEOUT_S, read=60.0)  # an idle stream says so every 15 s
_RECONNECT_S = (0.2, 0.5, 1.0, 2.0)


class UnreachableError(ServiceError):
    """The inference gateway does not answer."""


class InferenceClient:
    """The inference gateway's routes as methods; answers are its JSON.

    Raises: UnreachableError, RefusedError: from any method.
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
    ) -> dict[str, Any]:
        """Start sessions: ``session_id``, ``api_key``, ``group_id``, ``sessions``."""
        body: dict[str, Any] = {"task_id": task_id, "group_size": group_size}
        body |= _given(api_key=api_key, group_id=group_id)
        return await self._call("POST", "/rl/start_session", body)

    async def end_session(self, session_id: str) -> dict[str, Any]:
        """End a session."""
        return await self._call("POST", "/rl/end_session", {"session_id": session_id})

    async def set_reward(
        self,
        reward: float,
        *,
        session_id: str | None = None,
        episode_id: str | None = None,
        interaction_id: str | None = None,
    ) -> dict[str, Any]:
        """Judge an episode, a session's newest one, or one completion."""
        body = _given(session_id=session_id, episode_id=episode_id, interaction_id=interaction_id)
        return await self._call("POST", "/rl/set_reward", {"reward": reward, **body})

    async def unset_reward(
        self, *, session_id: str | None = None, episode_id: str | None = None
    ) -> dict[str, Any]:
        """Take a reward back that no step has claimed."""
        body = _given(session_id=session_id, episode_id=episode_id)
        return await self._call("POST", "/rl/unset_reward", body)

    # -- reading ----------------------------------------------------------------------------

    async def sessions(self) -> list[dict[str, Any]]:
        """Return the newest sessions, oldest first."""
        return await self._rows("/rl/sessions")

    async def episodes(
        self,
        *,
        session_id: str | None = None,
        group_id: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Return episodes without their completions, oldest first."""
        return await self._rows(
            "/rl/episodes",
            session_id=session_id,
            group_id=group_id,
            state=state,
            after=after,
            limit=limit,
        )

    async def episode(self, episode_id: str) -> dict[str, Any]:
        """Return an episode with its completions."""
        return await self._call("GET", f"/rl/episodes/{episode_id}")

    async def steps(self, *, after: int = -1) -> list[dict[str, Any]]:
        """Return the rows of the steps after a number, oldest first."""
        return await self._rows("/rl/steps", after=after)

    async def health(self) -> dict[str, Any]:
        """Return ``/health``."""
        return await self._call("GET", "/health")

    async def models(self) -> list[dict[str, Any]]:
        """Return the models that are served."""
        return await self._rows("/v1/models")

    # -- the trainer ------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """Return what the trainer does."""
        return await self._call("GET", "/rl/status")

    async def pause(self, reason: str = "paused by a person") -> dict[str, Any]:
        """Begin no further step; return the status."""
        return await self._call("POST", "/rl/pause", {"reason": reason})

    async def resume(self) -> dict[str, Any]:
        """Begin steps again; return the status."""
        return await self._call("POST", "/rl/resume")

    async def checkpoint(self) -> dict[str, Any]:
        """Keep the current version for good."""
        return await self._call("POST", "/rl/checkpoint")

    async def canaries(self, policy_version: int | None = None) -> list[dict[str, Any]]:
        """Return a version's answers to the canary's questions; else the two newest versions'."""
        return await self._rows("/rl/canaries", policy_version=policy_version)

    async def rollback(self, policy_version: int) -> dict[str, Any]:
        """Make an earlier version current; return the row of the new one that it became."""
        body = {"policy_version": policy_version}
        return await self._call("POST", "/rl/rollback", body, timeout=_ROLLBACK_TIMEOUT)

    async def events(self, *, after: int | None = None) -> AsyncIterator[Event]:
        """Yield events until the client is closed; after a lost connection go on where it broke.

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
            await _require_ok(response)
            async for message in iter_sse(response):
                row = message.json()
                yield Event(
                    kind=row["kind"],
                    payload=row["payload"],
                    at=row["at"],
                    event_id=row["event_id"],
                )

    # -- completions ------------------------------------------------------------------------

    async def chat(
        self, session_key: str, messages: Sequence[Mapping[str, Any]], **fields: Any
    ) -> dict[str, Any]:
        """Return a completion; ``fields`` are OpenAI's, such as ``max_tokens``."""
        return await self._call(
            "POST",
            "/v1/chat/completions",
            {"messages": list(messages), **fields},
            key=session_key,
            timeout=_CHAT_TIMEOUT,
        )

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
                await _require_ok(response)
                async for message in iter_sse(response):
                    if message.data == "[DONE]":
                        return
                    chunk = json.loads(message.data)
                    if "error" in chunk:
                        raise RefusedError(_api_error(502, chunk["error"]))
                    yield chunk
        except httpx.HTTPError as error:
            raise _unreachable(error) from error

    async def _rows(self, path: str, **parameters: Any) -> list[dict[str, Any]]:
        answer = await self._call("GET", path, parameters=_given(**parameters))
        rows: list[dict[str, Any]] = answer["data"]
        return rows

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        key: str | None = None,
        timeout: httpx.Timeout | None = None,
    ) -> dict[str, Any]:
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
        await _require_ok(response)
        answer: dict[str, Any] = response.json()
        return answer


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _api_error(status: int, error: Mapping[str, Any]) -> ApiError:
    return ApiError(status, error["message"], code=error.get("code"), param=error.get("param"))


def _unreachable(error: httpx.HTTPError) -> UnreachableError:
    detail = str(error) or type(error).__name__
    return UnreachableError(f"the inference gateway does not answer: {detail}")


async def _require_ok(response: httpx.Response) -> None:
    if response.is_success:
        return
    await response.aread()
    raise RefusedError(api_error_from(response))
