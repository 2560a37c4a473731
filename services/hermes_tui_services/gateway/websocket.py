"""``WS /ws``: agent turns as AReaL's ``req``, ``res`` and ``event`` frames."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from pydantic import Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import validation_error
from hermes_tui_common.json_body import parse_json
from hermes_tui_common.limits import THREAD_BYTES, HttpConfig, limits_of
from hermes_tui_services.api.events import (
    ApprovalAnswered,
    ApprovalRequested,
    ReasoningArrived,
    TextArrived,
    ToolCalled,
    ToolReturned,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    approval_to_json,
)
from hermes_tui_services.api.protocol import (
    QueueMode,
    UpstreamFields,
    check_session_key,
)
from hermes_tui_services.gateway.data_proxies import DataProxies
from hermes_tui_services.gateway.requests import turn_request

logger = logging.getLogger(__name__)

_METHODS = ("agent",)


class AgentParams(UpstreamFields):
    """``params`` of a ``req`` frame with the method ``agent``; AReaL's names."""

    message: str
    """The user's message."""
    sessionKey: str
    """Which conversation."""
    idempotencyKey: str | None = None
    """A repeated one returns the first run's result."""
    queueMode: QueueMode = QueueMode.COLLECT
    """What happens when the session is busy."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """As in ``/v1/responses``."""


class FrameSocket:
    """One web socket: reads requests in order, and sends the events of their turns."""

    def __init__(self, socket: WebSocket, data_proxies: DataProxies) -> None:
        self._socket = socket
        self._data_proxies = data_proxies
        self._runs: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve the socket until its client leaves; its turns are stopped then."""
        await self._socket.accept()
        try:
            while (message := await self._socket.receive())["type"] == "websocket.receive":
                await self._take(message.get("text") or message.get("bytes") or "")
            logger.debug("web socket closed")
        except WebSocketDisconnect:
            logger.debug("web socket closed while it was answered")
        finally:
            for run in self._runs:
                run.cancel()
            if self._runs:
                await asyncio.wait(self._runs)

    async def _take(self, text: str | bytes) -> None:
        """Answer one frame: with an error, or by starting its turn.

        A turn is accepted before the next frame is read, so turns keep the order of their frames.
        """
        request_id = None
        try:
            frame = await self._frame(text)
            request_id = frame["id"]
            params = _params(frame)
            key = check_session_key(params.sessionKey)
            body = turn_request(
                params,
                message=params.message,
                metadata=params.metadata,
                queue_mode=params.queueMode,
                idempotency_key=params.idempotencyKey or None,
            )
            events = self._data_proxies.turn(key, body)
            started = await anext(events)
            assert isinstance(started, TurnStarted)
            run_id = started.run_id
        except ApiError as error:
            await self._respond(request_id, ok=False, status="failed", error=error.message)
            return
        await self._respond(request_id, runId=run_id, status="accepted")
        run = asyncio.create_task(self._follow(request_id, run_id, events))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)

    async def _frame(self, text: str | bytes) -> dict[str, Any]:
        raw = text.encode() if isinstance(text, str) else text
        limits = limits_of(self._socket.scope)
        if len(raw) > THREAD_BYTES:
            return await asyncio.to_thread(_parse, raw, limits)
        return _parse(raw, limits)

    async def _follow(self, request_id: str, run_id: str, events: AsyncIterator[TurnEvent]) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # its client left
            async for event in events:
                if payload := _payload(event):
                    await self._send(
                        type="event", event="agent", payload={"runId": run_id} | payload
                    )
                elif isinstance(event, TurnCompleted):
                    await self._respond(
                        request_id, runId=run_id, status="complete", summary=event.text
                    )
                elif isinstance(event, TurnFailed):
                    await self._respond(
                        request_id, ok=False, runId=run_id, status="failed", error=event.message
                    )

    async def _respond(self, request_id: str | None, *, ok: bool = True, **payload: Any) -> None:
        await self._send(type="res", id=request_id, ok=ok, payload=payload)

    async def _send(self, **frame: Any) -> None:
        await self._socket.send_text(json.dumps(frame))


def _parse(raw: bytes, limits: HttpConfig) -> dict[str, Any]:
    frame = parse_json(raw or b"null", limits)
    if not isinstance(frame, dict) or frame.get("type") != "req":
        raise ApiError(400, "A frame of type 'req' was expected.")
    if not isinstance(frame.get("id"), str):
        raise ApiError(400, "The frame has no 'id'.")
    return frame


def _params(frame: dict[str, Any]) -> AgentParams:
    if frame.get("method", "agent") not in _METHODS:
        raise ApiError(400, f"Unknown method '{frame['method']}'; there is 'agent'.")
    try:
        return AgentParams.model_validate(frame.get("params") or {})
    except ValidationError as error:
        raise validation_error(error) from error


def _payload(event: TurnEvent) -> dict[str, Any] | None:
    """Return what an event frame says about a turn event; None for the first and the last one."""
    match event:
        case TextArrived(text=text):
            return {"delta": text}
        case ReasoningArrived(text=text):
            return {"reasoning": text}
        case ToolCalled(call_id=call_id, name=name, arguments=arguments):
            return {"toolCall": {"name": name, "args": arguments, "callId": call_id}}
        case ToolReturned(call_id=call_id, output=output):
            return {"toolResult": {"callId": call_id, "result": output}}
        case ApprovalRequested():
            return {"approval": approval_to_json(event)}
        case ApprovalAnswered():
            return {"approvalAnswered": approval_to_json(event)}
    return None
