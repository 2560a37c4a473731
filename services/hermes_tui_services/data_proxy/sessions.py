"""The data proxy's sessions: each one's queue and running turn; finished turns go to the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from hermes_tui_common.errors import ApiError
from hermes_tui_common.upstream_hosts import UpstreamHosts
from hermes_tui_services.api.agent import UPSTREAM_KEY, AgentRequest
from hermes_tui_services.api.config import UpstreamConfig
from hermes_tui_services.api.events import (
    ApprovalAnswered,
    TurnCompleted,
    TurnEnd,
    TurnEvent,
    TurnFailed,
    turn_interrupted,
)
from hermes_tui_services.api.protocol import (
    NO_TURN,
    PROXY_UNAVAILABLE,
    ApprovalBody,
    ChatMessage,
    TurnRequest,
    Upstream,
)
from hermes_tui_services.data_proxy.messages import interrupted_messages, messages_of, replayed
from hermes_tui_services.data_proxy.model_access import ModelAccess
from hermes_tui_services.data_proxy.store import ConversationStore, TurnRow
from hermes_tui_services.data_proxy.turns import Turn
from hermes_tui_services.data_proxy.worker_client import WorkerClient

logger = logging.getLogger(__name__)

INTERRUPT_S = 3.0
"""A turn that was interrupted and does not end by itself is cut off after this long."""

INTERRUPT_AGAIN_S = 0.3
"""The interrupt is repeated this often: the first call may arrive before the turn does."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Session:
    """One session's turns, in the order in which they came."""

    key: str
    waiting: deque[Turn] = field(default_factory=deque)
    running: Turn | None = None
    task: asyncio.Task[None] | None = None
    closing: bool = False
    last_active: float = field(default_factory=time.monotonic)

    @property
    def turns(self) -> list[Turn]:
        """The running turn and those that wait."""
        return [*([self.running] if self.running else []), *self.waiting]


class Sessions:
    """All sessions of one data proxy. Turns of a session run one after another.

    Args:
        store: keeps the conversations.
        worker: runs the turns.
        access: gives the worker access to a turn's model server.
        fallback: where turns go that name no upstream.
        hosts: which upstreams turns may name.
        on_released: called with the key of a session that is no longer held here, be it idle for
            long or one that was for one turn only.
    """

    def __init__(
        self,
        store: ConversationStore,
        worker: WorkerClient,
        access: ModelAccess,
        fallback: UpstreamConfig,
        hosts: UpstreamHosts,
        on_released: Callable[[str], Awaitable[None]],
    ) -> None:
        self._store = store
        self._worker = worker
        self._access = access
        self._fallback = fallback
        self._hosts = hosts
        self._on_released = on_released
        self._sessions: dict[str, _Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def keys(self) -> list[str]:
        """Return the sessions that were served here."""
        return list(self._sessions)

    def is_running(self, session_key: str) -> bool:
        """Return whether a turn of the session is in flight."""
        session = self._sessions.get(session_key)
        return session is not None and session.running is not None

    def in_flight(self) -> list[Turn]:
        """Return every session's running turn."""
        return [session.running for session in self._sessions.values() if session.running]

    def running(self, session_key: str) -> Turn:
        """Return the session's turn in flight, for a reader to join.

        Raises: ApiError: 404, there is none.
        """
        session = self._sessions.get(session_key)
        if session is None or session.running is None:
            raise ApiError(404, "No turn runs in this session.", code=NO_TURN)
        return session.running

    async def submit(self, session_key: str, request: TurnRequest) -> Turn:
        """Queue a turn and return it; ``follow`` yields its events.

        Raises: ApiError: 409 when the session is closing; 400 when its upstream is not allowed.
        """
        if request.upstream:
            await self._hosts.check(request.upstream.base_url)
        repeated = request.idempotency_key
        if known := repeated and await self._earlier(session_key, repeated):
            return known
        session = self._sessions.setdefault(session_key, _Session(key=session_key))
        if session.closing:
            raise ApiError(409, "The session is being closed.", code="session_closing")
        if session.waiting and session.waiting[-1].collects(request):
            return session.waiting[-1]
        turn = Turn(session_key=session_key, request=request)
        session.waiting.append(turn)
        if session.task is None:
            session.task = self._spawn(self._serve(session))
        return turn

    async def follow(self, turn: Turn) -> AsyncGenerator[list[TurnEvent], None]:
        """Yield the turn's events; when its last reader leaves, a foreground turn is stopped."""
        turn.followers += 1
        try:
            async with aclosing(turn.follow()) as batches:
                async for batch in batches:
                    yield batch
        finally:
            turn.followers -= 1
            if not (turn.over or turn.followers or turn.background):
                self._stop(turn)

    def interrupt(self, session_key: str) -> bool:
        """Stop the turn in flight; return whether there was one."""
        session = self._sessions.get(session_key)
        if session is None or session.running is None:
            return False
        self._stop(session.running)
        return True

    async def answer(self, session_key: str, approval_id: str, body: ApprovalBody) -> None:
        """Answer an approval request; the turn's other readers learn of it.

        Raises: ApiError: 404 unknown, 410 too late.
        """
        await self._worker.answer(session_key, approval_id, body)
        session = self._sessions.get(session_key)
        if session and session.running and not session.running.over:
            answered = ApprovalAnswered(approval_id=approval_id, choice=body.choice)
            session.running.publish(answered)

    async def close(self, session_key: str) -> None:
        """Stop the session's turns, forget its history, and tell the worker."""
        if session := self._sessions.get(session_key):
            session.closing = True
            error = ApiError(409, "The session was closed.", code="session_closed")
            while session.waiting:
                session.waiting.popleft().publish(TurnFailed.of(error))
            if session.running:
                self._stop(session.running)
                await session.running.wait()
        try:
            await self._worker.close(session_key)
            await self._store.forget(session_key)
        finally:
            self._sessions.pop(session_key, None)

    async def release_idle(self, timeout_s: float) -> list[str]:
        """Have the worker free the agents of sessions without a turn for this long; return them."""
        before = time.monotonic() - timeout_s
        idle = [s for s in self._sessions.values() if s.task is None and s.last_active < before]
        for session in idle:
            session.task = self._spawn(self._release(session))
        await asyncio.gather(*(session.task for session in idle if session.task))
        return [session.key for session in idle if session.key not in self._sessions]

    async def stop(self, timeout_s: float) -> None:
        """Interrupt all turns and wait until what they said is stored."""
        unavailable = ApiError(
            503,
            "The data proxy stops before the turn began; send it again.",
            code=PROXY_UNAVAILABLE,
            retry_after_s=1.0,
        )
        for session in self._sessions.values():
            session.closing = True
            while session.waiting:
                session.waiting.popleft().publish(TurnFailed.of(unavailable))
            if session.running:
                self._stop(session.running)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()

    async def _earlier(self, session_key: str, idempotency_key: str) -> Turn | None:
        """Return the turn that had this key before: one in flight, or one that was stored."""
        row = await self._store.find(session_key, idempotency_key)
        session = self._sessions.get(session_key)
        for turn in session.turns if session else ():
            if idempotency_key in turn.idempotency_keys:
                return turn
        return Turn.stored(session_key, row) if row else None

    async def _serve(self, session: _Session) -> None:
        while session.waiting:
            turn = session.running = session.waiting.popleft()
            turn.running_since = time.time()
            try:
                turn.publish(await self._run(turn))
            except ApiError as error:
                turn.publish(TurnFailed.of(error))
            except Exception as error:  # the next turn of the session must still get its chance
                logger.exception("turn failed session=%s run=%s", session.key, turn.run_id)
                text = f"{type(error).__name__}: {error}"
                turn.publish(TurnFailed(message=text, status=500))
            finally:
                session.running = None
                session.last_active = time.monotonic()
            if turn.request.once and not session.waiting:
                await self._release(session)
                return
        session.task = None

    async def _run(self, turn: Turn) -> TurnEnd:
        """Run a turn and keep it; return its last event."""
        request, upstream = await self._prepare(turn)
        try:
            if upstream is None:
                end = await self._relay(turn, request)
            else:
                async with self._access.granted(upstream) as granted:
                    request.metadata[UPSTREAM_KEY] = granted.model_dump()
                    end = await self._relay(turn, request)
        except ApiError:
            await self._keep_begun(turn)
            raise
        if isinstance(end, TurnCompleted):
            messages = end.messages
            if messages is None:
                messages = messages_of(turn.events, end.text)
            await self._keep(turn, messages, end.text, dict(end.metadata))
            return TurnCompleted(text=end.text, metadata=end.metadata)
        if end.interrupted:
            await self._keep(turn, interrupted_messages(turn.events), interrupted=True)
        else:
            await self._keep_begun(turn)
        return end

    async def _keep_begun(self, turn: Turn) -> None:
        """Keep what a turn that failed had said; one that said nothing leaves nothing.

        Without its idempotency keys: sent again, the message is to be answered.
        """
        if messages_of(turn.events):
            messages = interrupted_messages(turn.events)
            await self._keep(turn, messages, interrupted=True, repeatable=True)

    async def _release(self, session: _Session) -> None:
        """Free the session's agent. A turn that arrives meanwhile waits, and gets a new agent."""
        try:
            await self._worker.close(session.key)
        except ApiError as error:
            logger.warning("session not released session=%s cause=%s", session.key, error)
        session.task = None
        if session.waiting:
            session.task = self._spawn(self._serve(session))
        else:
            self._sessions.pop(session.key, None)
            await self._on_released(session.key)

    async def _prepare(self, turn: Turn) -> tuple[AgentRequest, Upstream | None]:
        """Return what the agent is asked, and the upstream that it is to get access to."""
        request = turn.request
        history, upstream = request.history, request.upstream
        if history is None:
            state = await self._store.load(turn.session_key)
            history = replayed(state.messages)
            if upstream and upstream != state.upstream:
                await self._store.remember(turn.session_key, upstream)
            if state.upstream and not upstream:
                upstream = state.upstream  # it was allowed when it was named, perhaps long ago
                await self._hosts.check(upstream.base_url)
        metadata = dict(request.metadata)
        upstream = upstream or self._configured_upstream()
        if upstream:
            model = request.model or upstream.model or self._fallback.model
            upstream = upstream.model_copy(update={"model": model})
        elif request.model:
            metadata["inf_model"] = request.model
        asked = AgentRequest(
            message=turn.message,
            session_key=turn.session_key,
            run_id=turn.run_id,
            history=history,
            queue_mode=request.queue_mode,
            metadata=metadata,
        )
        return asked, upstream

    def _configured_upstream(self) -> Upstream | None:
        url = self._fallback.base_url.rstrip("/")
        key = self._fallback.api_key.get_secret_value()
        return Upstream(base_url=url, api_key=key) if url else None

    async def _relay(self, turn: Turn, request: AgentRequest) -> TurnEnd:
        """Publish the worker's events; return the last one, which is published once it is kept."""
        stopped = turn_interrupted()
        if turn.interrupted:
            return stopped
        reader = turn.reader = asyncio.create_task(self._read(turn, request))
        try:
            return await reader
        except ApiError:
            if not turn.interrupted:
                raise
        except asyncio.CancelledError:
            if not (turn.interrupted and reader.cancelled()):
                raise
        finally:
            reader.cancel()
        return stopped

    async def _read(self, turn: Turn, request: AgentRequest) -> TurnEnd:
        async with aclosing(self._worker.run(request)) as events:
            async for event in events:
                if isinstance(event, TurnEnd):
                    return event
                turn.publish(event)
        raise ApiError(502, "The worker ended the turn without a result.", code="worker_died")

    async def _keep(
        self,
        turn: Turn,
        messages: list[ChatMessage],
        summary: str = "",
        metadata: dict[str, Any] | None = None,
        *,
        interrupted: bool = False,
        repeatable: bool = False,
    ) -> None:
        if turn.request.history is not None:
            return
        row = TurnRow(
            run_id=turn.run_id,
            messages=[{"role": "user", "content": turn.message}, *messages],
            summary=summary,
            metadata=metadata or {},
            idempotency_keys=() if repeatable else turn.idempotency_keys,
            interrupted=interrupted,
            started_at=turn.started_at,
            finished_at=time.time(),
        )
        await self._store.append(turn.session_key, row)

    def _stop(self, turn: Turn) -> None:
        """Stop a turn; one that waits is taken out of its queue."""
        if turn.interrupted or turn.over:
            return
        turn.interrupted = True
        session = self._sessions.get(turn.session_key)
        if session and turn in session.waiting:
            session.waiting.remove(turn)
            turn.publish(turn_interrupted())
            return
        self._spawn(self._insist(turn))

    async def _insist(self, turn: Turn) -> None:
        """Repeat the interrupt until the turn ends; after ``INTERRUPT_S``, close its connection."""
        over = asyncio.create_task(turn.wait())
        try:
            async with asyncio.timeout(INTERRUPT_S):
                while not turn.over:
                    await self._worker.interrupt(turn.session_key)
                    await asyncio.wait((over,), timeout=INTERRUPT_AGAIN_S)
        except TimeoutError:
            if turn.reader:
                turn.reader.cancel()
        finally:
            over.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
