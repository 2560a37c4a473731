"""A client of the agent gateway: turns as typed events, and the calls around them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from urllib.parse import urlencode

import httpx
from pydantic import BaseModel

from hermes_tui_common.errors import ServiceError, UnreachableError
from hermes_tui_common.http import SkippedEvents, iter_sse, parsed, require_ok
from hermes_tui_services.api.events import TurnEnd, TurnEvent, event_from_response
from hermes_tui_services.api.protocol import SESSION_KEY_HEADER, path_key
from hermes_tui_services.api.wire import (
    ConversationInfo,
    ForkAnswer,
    History,
    InterruptAnswer,
    RunningTurn,
    SearchHit,
    StatusAnswer,
)

Answer = TypeVar("Answer")
Row = TypeVar("Row")

CALL_TIMEOUT_S = 30.0
"""How long a call that is no turn may take."""


class _Rows(BaseModel, Generic[Row]):
    """A list, as OpenAI wraps it."""

    data: list[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTurn:
    """One turn of a conversation, as it is kept."""

    run_id: str
    messages: tuple[Mapping[str, Any], ...]
    """The user's message and all that followed, in OpenAI's chat shape."""
    interrupted: bool
    """Whether it was stopped before its end."""
    num_tokens: int
    """Sampled tokens; 0 when the agent did not say."""
    started_at: float
    """Unix seconds."""
    finished_at: float
    """Unix seconds."""


class AgentClient:
    """The agent gateway, for one key.

    Args:
        base_url: the gateway's address.
        admin_key: its admin key.
        client: in place of a client of its own; the caller closes it.
    """

    def __init__(
        self, base_url: str, admin_key: str, client: httpx.AsyncClient | None = None
    ) -> None:
        self._url = base_url.rstrip("/")
        self._name = f"the agent gateway at {self._url}"
        self.skipped_events = SkippedEvents(self._name)
        self._headers = {"Authorization": f"Bearer {admin_key}"}
        self._owned = client is None
        # Reading has no deadline: a turn takes as long as it takes. Each that is followed has a
        # connection of its own, and a call must not wait until one of them is over.
        self._client = client or httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=5.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
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
        if self._owned:
            await self._client.aclose()

    def turn(
        self,
        message: str,
        *,
        session_key: str,
        model: str = "hermes-agent",
        inf_base_url: str | None = None,
        session_api_key: str | None = None,
        inf_model: str | None = None,
        instructions: str | None = None,
        background: bool = False,
    ) -> AsyncGenerator[TurnEvent, None]:
        """Send a message and yield the turn's events; the last one is a TurnEnd.

        Closing the generator early hangs up, which interrupts the turn unless ``background``.

        Args:
            message: the user's text.
            session_key: which conversation.
            model: name of the agent.
            inf_base_url: inference gateway for the agent's model calls, with ``session_api_key``;
                None for the one that the session used before, or the configured upstream.
            inf_model: model to ask for there.
            instructions: added to the system prompt for this turn.
            background: whether the turn goes on when this generator is closed.

        Raises: RefusedError: the gateway refused the turn. UnreachableError: it does not answer, or
            the connection broke. ServiceError: it ended the turn without a result.
        """
        optional = {
            "inf_base_url": inf_base_url,
            "session_api_key": session_api_key,
            "inf_model": inf_model,
            "instructions": instructions,
            "metadata": {"background": True} if background else None,
        }
        body = {"input": message, "model": model, "stream": True}
        body |= {name: value for name, value in optional.items() if value is not None}
        # Bytes: a key may hold any Unicode, and httpx takes only ASCII text for headers.
        headers = {SESSION_KEY_HEADER.encode(): session_key.encode()}
        return self._follow("POST", "/v1/responses", body, headers)

    def join(self, session_key: str) -> AsyncGenerator[TurnEvent, None]:
        """Follow a session's turn in flight, whoever sent it: yield its events so far, then the
        rest as they come. Closing the generator early does not interrupt the turn.

        Raises: RefusedError: 404, no turn runs. ServiceError: as ``turn``.
        """
        return self._follow("GET", f"/sessions/{path_key(session_key)}/events")

    async def turns(self) -> dict[str, str]:
        """Return the run of every turn in flight, by session key. Raises: ServiceError."""
        turns = await self._call("GET", "/turns", _Rows[RunningTurn])
        return {turn.session_key: turn.run_id for turn in turns.data}

    async def interrupt(self, session_key: str) -> bool:
        """Stop the session's turn; return whether one was in flight. Raises: ServiceError."""
        path = f"/sessions/{path_key(session_key)}/interrupt"
        return (await self._call("POST", path, InterruptAnswer)).interrupted

    async def approve(
        self, session_key: str, approval_id: str, choice: str, reason: str | None = None
    ) -> None:
        """Answer an approval request.

        Raises: RefusedError: 404 unknown, 410 too late, 400 no such choice. ServiceError.
        """
        path = f"/sessions/{path_key(session_key)}/approvals/{path_key(approval_id)}"
        await self._call("POST", path, StatusAnswer, {"choice": choice, "reason": reason})

    async def history(self, session_key: str) -> History:
        """Return the conversation; ``interrupted`` marks a reply that was stopped.

        Raises: RefusedError: 404, there is no such session. ServiceError.
        """
        return await self._call("GET", f"/sessions/{path_key(session_key)}/history", History)

    async def past_turns(self, session_key: str) -> list[PastTurn]:
        """Return the conversation turn by turn, oldest first.

        Raises: RefusedError: 404, there is no such session. ServiceError.
        """
        history = await self.history(session_key)
        messages = iter(history.messages)
        return [
            PastTurn(
                run_id=turn.run_id,
                messages=tuple(islice(messages, turn.num_messages)),
                interrupted=turn.interrupted,
                num_tokens=(turn.metadata.get("usage") or {}).get("output_tokens", 0),
                started_at=turn.started_at,
                finished_at=turn.finished_at,
            )
            for turn in history.turns
        ]

    async def sessions(self) -> list[ConversationInfo]:
        """Return every session, the one used last first. Raises: ServiceError."""
        return (await self._call("GET", "/sessions", _Rows[ConversationInfo])).data

    async def fork(self, session_key: str, new_key: str, until: float | None = None) -> int:
        """Begin a new session with the turns of another; return how many were copied.

        Args:
            session_key: the session to copy; it stays as it is.
            new_key: the key of the new one.
            until: Unix seconds; turns that finished later are left out. None copies all.

        Raises: RefusedError: 404, there is no such session; 409, the new key is taken.
            ServiceError.
        """
        body = {"session_key": new_key, "until": until}
        path = f"/sessions/{path_key(session_key)}/fork"
        return (await self._call("POST", path, ForkAnswer, body)).num_turns

    async def search(self, text: str, limit: int = 100) -> list[SearchHit]:
        """Return the turns of all sessions that contain a text, whatever its case, newest first.

        Raises: RefusedError: 400, the text is empty. ServiceError.
        """
        path = f"/search?{urlencode({'q': text, 'limit': limit})}"
        return (await self._call("GET", path, _Rows[SearchHit])).data

    async def close(self, session_key: str) -> None:
        """Forget a session and its history. Raises: ServiceError."""
        body = {"session_key": session_key}
        await self._call("POST", "/sessions/close", StatusAnswer, body)

    async def _call(
        self, method: str, path: str, kind: type[Answer], body: dict[str, Any] | None = None
    ) -> Answer:
        try:
            answer = await self._client.request(
                method,
                f"{self._url}{path}",
                json=body,
                headers=self._headers,
                timeout=CALL_TIMEOUT_S,
            )
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        await require_ok(answer)
        return parsed(self._name, kind, answer)

    async def _follow(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[bytes, bytes] | None = None,
    ) -> AsyncGenerator[TurnEvent, None]:
        all_headers = {name.encode(): value.encode() for name, value in self._headers.items()}
        all_headers |= headers or {}
        try:
            async with self._client.stream(
                method, f"{self._url}{path}", json=body, headers=all_headers
            ) as answer:
                await require_ok(answer)
                async for sent in iter_sse(answer):
                    try:
                        event = event_from_response(sent.json())
                    except (ValueError, LookupError, TypeError, AttributeError) as error:
                        self.skipped_events.add(sent.event or "unnamed", error)
                        continue
                    if event is not None:
                        yield event
                    if isinstance(event, TurnEnd):
                        return
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        raise ServiceError(f"{self._name} ended the turn without a result")

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError.of(self._name, error)
