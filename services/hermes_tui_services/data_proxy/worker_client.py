"""The data proxy's calls to the worker of its pair."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict

import httpx

from hermes_tui_common.errors import ApiError, cause_of
from hermes_tui_common.http import api_error_from, iter_sse
from hermes_tui_common.peer_client import CALL_TIMEOUT_S
from hermes_tui_services.api.agent import AgentRequest
from hermes_tui_services.api.events import TurnEvent, event_from_json
from hermes_tui_services.api.protocol import (
    WORKER_UNAVAILABLE,
    ApprovalBody,
    path_key,
)

INTERRUPT_TIMEOUT_S = 1.0
"""How long the worker may take to say that it passed an interrupt on."""


class WorkerClient:
    """One worker, over HTTP.

    Args:
        client: knows the admin key and keeps connections.
        url: the worker's.
    """

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url.rstrip("/")

    async def run(self, request: AgentRequest) -> AsyncGenerator[TurnEvent, None]:
        """Run a turn and yield its events to the last.

        Raises: ApiError: 503 ``worker_unavailable`` when the worker is down and nothing has begun;
        502 when it died on the way; else what it answered.
        """
        begun = False
        try:
            async with self._client.stream(
                "POST", f"{self._url}/run", json=asdict(request)
            ) as answer:
                begun = True
                if answer.status_code != 200:
                    await answer.aread()
                    raise api_error_from(answer)
                async for sent in iter_sse(answer):
                    yield event_from_json(sent.json())
        except httpx.TransportError as error:
            if not begun:
                raise self._down(error) from error
            raise ApiError(
                502,
                f"The worker at {self._url} died during the turn ({cause_of(error)}); the "
                "conversation keeps what it had said. Send the message again.",
                code="worker_died",
            ) from error

    async def interrupt(self, session_key: str) -> None:
        """Stop the session's turn; a worker that is down has none."""
        try:
            await self._client.post(
                f"{self._url}/session/{path_key(session_key)}/interrupt",
                timeout=INTERRUPT_TIMEOUT_S,
            )
        except httpx.TransportError:
            return

    async def close(self, session_key: str) -> None:
        """Let the agent forget the session; a worker that is down has done so."""
        try:
            answer = await self._client.post(
                f"{self._url}/session/{path_key(session_key)}/close", timeout=CALL_TIMEOUT_S
            )
        except httpx.TransportError:
            return
        if answer.status_code != 200:
            raise api_error_from(answer)

    async def answer(self, session_key: str, approval_id: str, body: ApprovalBody) -> None:
        """Answer an approval request. Raises: ApiError: what the worker answered."""
        try:
            answer = await self._client.post(
                f"{self._url}/session/{path_key(session_key)}/approvals/{path_key(approval_id)}",
                json=body.model_dump(),
                timeout=CALL_TIMEOUT_S,
            )
        except httpx.TransportError as error:
            raise self._down(error) from error
        if answer.status_code != 200:
            raise api_error_from(answer)

    def _down(self, error: Exception) -> ApiError:
        return ApiError(
            503,
            f"The worker at {self._url} is down ({cause_of(error)}); the supervisor restarts it.",
            code=WORKER_UNAVAILABLE,
            retry_after_s=1.0,
        )
