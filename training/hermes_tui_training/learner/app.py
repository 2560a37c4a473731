"""The learner over HTTP: ``GET /health``, ``POST /step``, ``POST /rollback``.

The work runs in one thread of its own, so that /health answers meanwhile; steps wait in line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tokenizers import Tokenizer

from hermes_tui_common.disk import DiskFullError
from hermes_tui_common.errors import ApiError, TrainingError
from hermes_tui_common.heartbeat import working
from hermes_tui_common.http import EXCEPTION_HANDLERS, read_body
from hermes_tui_common.openapi import described
from hermes_tui_common.request_keys import RequireKey
from hermes_tui_common.routes import ApiRoute, BodySize
from hermes_tui_common.serving import report_stage
from hermes_tui_training.api.config import LearnerRole
from hermes_tui_training.api.learner import (
    NON_FINITE,
    NOTHING_MOVED,
    VERSION_DAMAGED,
    VERSION_EXISTS,
    LearnerHealth,
    NonFiniteError,
    NothingMovedError,
    RollbackAnswer,
    RollbackRequest,
    StepAnswer,
    StepRequest,
    VersionExistsError,
)
from hermes_tui_training.learner.learner import Learner
from hermes_tui_training.models.prepare import prepare_model
from hermes_tui_training.store.checkpoint_check import DamagedCheckpointError

logger = logging.getLogger(__name__)
T = TypeVar("T")

NICENESS = 5
"""Engine and servers go first: of a core that both want, the learner gets a quarter."""


class LearnerService:
    """One learner and the thread that it works in."""

    def __init__(self, config: LearnerRole) -> None:
        self._config = config
        # Always the same thread: OpenMP keeps a team of threads for each that ever computed.
        self._executor = ThreadPoolExecutor(1, "learner", initializer=_step_back)
        self._learner: Learner | None = None
        self._busy_with: int | None = None

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Load the model before the first request; let no step begin after the last."""
        try:
            self._learner = await self._in_thread(self._load)
            yield
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def health(self) -> LearnerHealth:
        """Return which version is held, and what is being made."""
        assert self._learner is not None
        return LearnerHealth(policy_version=self._learner.version, busy_with=self._busy_with)

    async def step(self, request: StepRequest) -> StepAnswer:
        """Do one step; see ``Learner.step``."""
        return await self._making(request.target_version, lambda held: held.step(request))

    async def rollback(self, request: RollbackRequest) -> RollbackAnswer:
        """Save an earlier version once more; see ``Learner.rollback``."""
        return await self._making(request.target_version, lambda held: held.rollback(request))

    def _load(self) -> Learner:
        serve = self._config.serve
        directory = prepare_model(self._config.model.path, lambda line: report_stage(serve, line))
        report_stage(serve, "loading weights")
        training = self._config.training
        # The plain tokenizer: a reference text is text, whatever the chat template is.
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        return Learner(
            directory,
            self._config.model,
            training,
            self._config.checkpoints,
            tokenizer.encode(training.step.reference_text).ids,
        )

    async def _making(self, version: int, work: Callable[[Learner], T]) -> T:
        def make() -> T:
            assert self._learner is not None
            self._busy_with = version
            try:
                with working(f"making version {version}"):
                    return work(self._learner)
            finally:
                self._busy_with = None

        return await self._in_thread(make)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _step_back() -> None:
    """Lower this thread's priority, and that of the threads which torch makes for it."""
    if sys.platform == "linux":  # elsewhere it would lower that of /health too
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _damaged(error: DamagedCheckpointError) -> Response:
    """Return the answer to a request that needs a damaged checkpoint."""
    logger.error("%s", error)
    refusal = ApiError(409, str(error), code=VERSION_DAMAGED)
    content = {**refusal.body(), "policy_version": error.version, "reason": error.reason}
    return JSONResponse(content, status_code=409)


def _disk_full(error: DiskFullError) -> Response:
    """Return the answer to a request whose checkpoint finds no room."""
    logger.warning("%s", error)
    content = {
        **error.body(),
        "path": str(error.path),
        "needed_bytes": error.needed_bytes,
        "free_bytes": error.free_bytes,
    }
    return JSONResponse(content, status_code=error.status)


def create_app(config: LearnerRole) -> Starlette:
    """Return the learner's app; the model is loaded when it starts."""
    service = LearnerService(config)

    async def health(_: Request) -> Response:
        return JSONResponse(service.health().model_dump())

    async def step(request: Request) -> Response:
        body = await read_body(request, StepRequest)
        try:
            answer = await service.step(body)
        except NonFiniteError as error:
            logger.warning("step dropped version=%s: %s", body.target_version, error)
            refusal = ApiError(422, str(error), code=NON_FINITE)
            content = {**refusal.body(), "episode_ids": list(error.episode_ids)}
            return JSONResponse(content, status_code=422)
        except NothingMovedError as error:
            logger.info("nothing moved version=%s: %s", body.target_version, error)
            refusal = ApiError(422, str(error), code=NOTHING_MOVED)
            return JSONResponse({**refusal.body(), "reason": error.reason}, status_code=422)
        except VersionExistsError as error:
            raise ApiError(409, str(error), code=VERSION_EXISTS) from error
        except DamagedCheckpointError as error:
            return _damaged(error)
        except DiskFullError as error:
            return _disk_full(error)
        except TrainingError as error:
            raise ApiError(500, str(error)) from error
        metrics = answer.result.metrics
        logger.info(
            "step done version=%s tokens=%s moved=%.3f of %.3f kl=%.3g trials=%s limit=%s",
            body.target_version,
            metrics.num_trained_tokens,
            metrics.moved_nats,
            metrics.target_nats,
            metrics.kl_step,
            metrics.num_trials,
            metrics.limit,
        )
        return JSONResponse(answer.model_dump(mode="json"))

    async def rollback(request: Request) -> Response:
        body = await read_body(request, RollbackRequest)
        try:
            answer = await service.rollback(body)
        except VersionExistsError as error:
            raise ApiError(409, str(error), code=VERSION_EXISTS) from error
        except DamagedCheckpointError as error:
            return _damaged(error)
        except DiskFullError as error:
            return _disk_full(error)
        except TrainingError as error:
            raise ApiError(500, str(error)) from error
        logger.info("rolled back to=%s version=%s", body.version, body.target_version)
        return JSONResponse(answer.model_dump(mode="json"))

    routes = [
        ApiRoute("/health", health, answer=LearnerHealth),
        ApiRoute(
            "/step", step, method="POST", body=StepRequest, size=BodySize.STEP, answer=StepAnswer
        ),
        ApiRoute("/rollback", rollback, method="POST", body=RollbackRequest, answer=RollbackAnswer),
    ]
    return Starlette(
        routes=described("Hermes TUI: the learner", routes),
        middleware=[Middleware(RequireKey, key=config.admin_key.get_secret_value())],
        lifespan=service.lifespan,
        exception_handlers=EXCEPTION_HANDLERS,
    )
