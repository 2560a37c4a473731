"""What the routes of the inference gateway share, and who may call them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from hermes_tui_common.auth import bearer, same_key
from hermes_tui_common.errors import ApiError
from hermes_tui_common.routes import Endpoint
from hermes_tui_training.api.config import TrainerRole
from hermes_tui_training.api.types import CompletionOutcome, Session
from hermes_tui_training.chat_template.prefix_match import Recorded, recorded
from hermes_tui_training.engine.base import Engine
from hermes_tui_training.inference_gateway.completions_keys import CompletionsKeys
from hermes_tui_training.inference_gateway.external_models import ExternalModels
from hermes_tui_training.store.store import Store, hash_key

if TYPE_CHECKING:  # the renderers behind it take seconds to import
    from hermes_tui_training.chat_template.renderer import Chat
    from hermes_tui_training.trainer.orchestrator import Orchestrator

_MAX_SESSIONS = 64
"""Sessions whose completions are kept in memory; the others are read when they are needed."""

_MAX_PARENTS = 8
"""Newest completions per session that a next prompt may continue; at 8,192 tokens each, all
sessions together take 150 MB at most."""

_MAX_OLDER = 64
"""Newest completions of a session that are read back for a turn that forks from further back."""

_DRAIN_S = 2.0
"""How long the process waits for records before it ends; each is a write of a millisecond."""


class Parents:
    """The newest finished completions of each session, in memory; the store has them all.

    Methods block and may be called from any thread.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._by_session: OrderedDict[str, deque[Recorded]] = OrderedDict()

    def of(self, session_id: str) -> list[Recorded]:
        """Return a session's completions, oldest first."""
        with self._lock:
            kept = self._by_session.get(session_id)
            if kept is None:
                kept = deque(self._stored(session_id, _MAX_PARENTS), maxlen=_MAX_PARENTS)
                self._by_session[session_id] = kept
            self._by_session.move_to_end(session_id)
            while len(self._by_session) > _MAX_SESSIONS:
                self._by_session.popitem(last=False)
            return list(kept)

    def older(self, session_id: str) -> list[Recorded]:
        """Return the completions before those of ``of``, oldest first; reads the store."""
        kept = {known.completion_id for known in self.of(session_id)}
        if len(kept) < _MAX_PARENTS:
            return []
        stored = self._stored(session_id, _MAX_OLDER)
        return [known for known in stored if known.completion_id not in kept]

    def _stored(self, session_id: str, limit: int) -> list[Recorded]:
        stored = self._store.completions.of_session(session_id, limit=limit)
        return [known for completion in stored if (known := recorded(completion)) is not None]

    def add(self, session_id: str, completion: Recorded) -> None:
        """Remember a completion that just finished."""
        with self._lock:
            kept = self._by_session.get(session_id)
            if kept is not None:
                kept.append(completion)


class Outcomes:
    """Records how completions ended. Those that end during a write share the next one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[CompletionOutcome, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def record(self, outcome: CompletionOutcome) -> None:
        """Return once an outcome is on the disk.

        Raises: whatever the store raises about it.
        """
        recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((outcome, recorded))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="outcomes")
        await recorded

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._write_batch(batch)
        finally:
            self._writing = None

    async def _write_batch(
        self, batch: list[tuple[CompletionOutcome, asyncio.Future[None]]]
    ) -> None:
        outcomes = [outcome for outcome, _ in batch]
        try:
            await asyncio.to_thread(self._store.completions.finish, *outcomes)
        except Exception as error:
            if len(batch) > 1:  # nothing was written: find the one at fault
                for one in batch:
                    await self._write_batch([one])
                return
            _resolve(batch, error)
        else:
            _resolve(batch, None)


def _resolve(
    batch: list[tuple[CompletionOutcome, asyncio.Future[None]]], error: Exception | None
) -> None:
    for _, waiting in batch:
        if waiting.done():  # nobody waits any more
            continue
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)


@dataclass(slots=True)
class Services:
    """The parts of the trainer's process."""

    config: TrainerRole
    """How the process was started."""
    store: Store
    """What is remembered."""
    engine: Engine
    """What samples."""
    chat: Chat
    """The model's chat format."""
    orchestrator: Orchestrator
    """What trains."""
    parents: Parents = field(init=False)
    """What next prompts may continue."""

    external: ExternalModels = field(init=False)
    """Models of other servers."""

    outcomes: Outcomes = field(init=False)
    """Records how completions ended."""

    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while sessions are counted and started: the count must still be true then."""

    completions_keys: CompletionsKeys = field(init=False)
    """Keys that are good for a session's completions alone."""

    running: set[str] = field(default_factory=set)
    """Ids of the completions that are being answered."""

    def __post_init__(self) -> None:
        self.parents = Parents(self.store)
        self.external = ExternalModels(self.store)
        self.outcomes = Outcomes(self.store)
        self.completions_keys = CompletionsKeys(self.store)

    async def drain(self) -> None:
        """Wait until no completion is being answered, so that the store may close."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while self.running:  # noqa: ASYNC110  # at the process's end, for a moment
                    await asyncio.sleep(0.01)


def services_of(request: Request) -> Services:
    """Return the services of the app that a request came to."""
    found = request.app.state.services
    assert isinstance(found, Services)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request."""

    session: Session | None
    """The session of the key; None for the admin key."""

    @property
    def is_admin(self) -> bool:
        """Whether the admin key was sent."""
        return self.session is None

    def require_own(self, session_id: str) -> None:
        """Refuse a session key to touch another session.

        Raises: ApiError: 403.
        """
        if self.session is not None and self.session.session_id != session_id:
            raise ApiError(403, "This session key may only use its own session.")


async def caller_of(
    request: Request, key: str | None = None, *, for_completions: bool = False
) -> Caller:
    """Return who makes a request; keys of ended sessions may still read and judge.

    Args:
        key: where another header than ``Authorization`` carries it.
        for_completions: whether a key for completions alone is good for this, too.

    Raises: ApiError: 401: no key, or one that is not known. 403: a key for completions alone.
    """
    services = services_of(request)
    key = key or bearer(request)
    if same_key(key, services.config.admin_key.get_secret_value()):
        return Caller(session=None)
    sessions = services.store.sessions
    session_id = services.completions_keys.session_id_of(key)
    if session_id is None:
        session = await asyncio.to_thread(sessions.by_key_hash, hash_key(key))
    elif for_completions:
        session = await asyncio.to_thread(sessions.sharing_key, session_id)
    else:
        raise ApiError(403, "This key is for completions alone; this needs the session's key.")
    if session is None:
        raise ApiError(401, "This key is not known here.", code="invalid_api_key")
    return Caller(session=session)


async def require_admin(request: Request) -> None:
    """Let a request pass only with the admin key.

    Raises: ApiError: 401: no key or an unknown one. 403: a session's key.
    """
    if not (await caller_of(request)).is_admin:
        raise ApiError(403, f"{request.url.path} needs the admin key, this is a session's key.")


def known_callers_only(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that answers whoever has a key that is known here."""

    async def guarded(request: Request) -> Response:
        await caller_of(request)
        return await endpoint(request)

    return guarded


async def require_session(request: Request, key: str | None = None) -> Session:
    """Return the session of a request's key, which must not have ended.

    Args:
        key: where another header than ``Authorization`` carries it.

    Raises: ApiError: 401: no key, an unknown one, or one of an ended session. 403: the admin key.
    """
    session = (await caller_of(request, key, for_completions=True)).session
    if session is None:
        raise ApiError(
            403,
            "Completions are recorded under a session key, this is the admin key; get a session "
            "key with POST /rl/start_session.",
        )
    if session.ended_at is not None:
        idle = "timed out (training.gateway.session_timeout_s: it was idle)"
        how = idle if session.end_reason == "idle" else "has been ended"
        raise ApiError(401, f"Session {session.session_id} {how}: its key works no longer.")
    return session
