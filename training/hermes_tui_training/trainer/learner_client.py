"""How the trainer reaches the learner, which may restart at any time. Free of torch."""

from __future__ import annotations

from pathlib import Path

import httpx

from hermes_tui_common import disk
from hermes_tui_common.errors import HermesTuiError, ServiceError
from hermes_tui_common.http import api_error_from
from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_common.serving import INSTANCE_HEADER
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
from hermes_tui_training.store.checkpoint_check import DamagedCheckpointError

HEALTH_TIMEOUT_S = 10.0
"""A learner on a busy machine answers /health late, but it does."""

STEP_TIMEOUT_S = 3600.0
"""Bound of one step; a learner that dies is noticed at once, by its closed connection."""


class LearnerGoneError(ServiceError):
    """No learner is there: nobody is working on a step."""


class LearnerClient:
    """Calls the learner that its run file names, read anew each time."""

    def __init__(self, run_file: Path, admin_key: str) -> None:
        self._run_file = run_file
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {admin_key}"},
            timeout=HEALTH_TIMEOUT_S,
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def health(self) -> LearnerHealth:
        """Return what the learner holds and does.

        Raises: LearnerGoneError: it is not there. ServiceError: it does not answer in time.
        """
        url, instance = self._address()
        try:
            answer = await self._http.get(f"{url}/health")
        except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError) as error:
            raise LearnerGoneError("the learner is not running") from error
        except httpx.HTTPError as error:
            raise ServiceError(f"the learner does not answer ({type(error).__name__})") from error
        if answer.headers.get(INSTANCE_HEADER, "") != instance:
            raise LearnerGoneError("the learner is restarting")
        if answer.status_code != 200:
            raise ServiceError(f"the learner is not well: {api_error_from(answer)}")
        return LearnerHealth.model_validate(answer.json())

    async def step(self, request: StepRequest) -> StepAnswer:
        """Have one step done.

        Raises:
            NonFiniteError, NothingMovedError, VersionExistsError, DamagedCheckpointError: as
                ``Learner.step``.
            ServiceError: it failed, or the connection was lost on the way.
        """
        answer = await self._post("step", request)
        if answer.status_code == 200:
            return StepAnswer.model_validate_json(answer.content)
        raise self._refusal("step", answer)

    async def rollback(self, request: RollbackRequest) -> RollbackAnswer:
        """Have an earlier version saved once more.

        Raises:
            VersionExistsError, DamagedCheckpointError: as ``Learner.rollback``.
            ServiceError: it failed, or the connection was lost on the way.
        """
        answer = await self._post("rollback", request)
        if answer.status_code == 200:
            return RollbackAnswer.model_validate_json(answer.content)
        raise self._refusal("rollback", answer)

    async def _post(self, what: str, request: StepRequest | RollbackRequest) -> httpx.Response:
        url, _ = self._address()
        try:
            return await self._http.post(
                f"{url}/{what}",
                content=request.model_dump_json(),
                timeout=httpx.Timeout(HEALTH_TIMEOUT_S, read=STEP_TIMEOUT_S),
            )
        except httpx.HTTPError as error:
            raise ServiceError(
                f"the connection to the learner was lost during a {what} ({type(error).__name__})"
            ) from error

    @staticmethod
    def _refusal(what: str, answer: httpx.Response) -> HermesTuiError:
        refusal = api_error_from(answer)
        if refusal.code == NON_FINITE:
            return NonFiniteError(refusal.message, answer.json()["episode_ids"])
        if refusal.code == NOTHING_MOVED:
            return NothingMovedError(refusal.message, answer.json()["reason"])
        if refusal.code == VERSION_EXISTS:
            return VersionExistsError(refusal.message)
        if refusal.code == disk.CODE:
            body = answer.json()
            return disk.DiskFullError(
                Path(body["path"]), body["needed_bytes"], free_bytes=body["free_bytes"]
            )
        if refusal.code == VERSION_DAMAGED:
            body = answer.json()
            return DamagedCheckpointError(body["policy_version"], body["reason"])
        return ServiceError(f"the learner could not do the {what}: {refusal.message}")

    def _address(self) -> tuple[str, str]:
        """Return the learner's URL and instance token."""
        try:
            learner = RoleRunFile.read(self._run_file)
            return learner.url, learner.instance
        except (OSError, ValueError) as error:
            raise LearnerGoneError("the learner has not started yet") from error
