"""Whether a conversation was scored, and the trainer has not trained that yet."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
from pydantic import BaseModel

from hermes_tui_common.auth import SESSION_KEY_PREFIX
from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_services.api.protocol import Upstream

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
_STATES = ("scored", "claimed")
"""Episodes that wait for a step, or are in one."""


class _Episodes(BaseModel):
    data: list[object]


class UntrainedScores:
    """Asks the trainer, as any client could: ``GET /rl/episodes`` under the session's own key.

    Args:
        gateway_run_file: where the trainer's address is; None where there is no trainer.
    """

    def __init__(self, gateway_run_file: Path | None) -> None:
        self._run_file = gateway_run_file

    async def wait_under(self, upstream: Upstream | None) -> bool:
        """Return whether a score waits to be trained; true as well when nobody can tell."""
        if self._run_file is None or upstream is None:
            return False
        key = upstream.api_key
        if not key.startswith(SESSION_KEY_PREFIX):
            return False  # of another model server: not to be sent to anybody else
        try:
            url = RoleRunFile.read(self._run_file).url
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(
                base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False
            ) as client:
                return any([await self._has(client, state) for state in _STATES])
        except (OSError, ValueError, httpx.HTTPError) as error:
            logger.info("it is not known whether scores wait to be trained: %s", error)
            return True

    @staticmethod
    async def _has(client: httpx.AsyncClient, state: str) -> bool:
        answer = await client.get("/rl/episodes", params={"state": state, "limit": 1})
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            return False  # the trainer has forgotten the session, with its scores
        answer.raise_for_status()
        return bool(_Episodes.model_validate_json(answer.content).data)
