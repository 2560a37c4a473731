"""What became of lessons, and how to undo them: ``/rl/rollback``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui_services.errors import ApiError, ServiceError, TrainingError
from hermes_tui_services.http import read_body
from hermes_tui_training.gateway.services import require_admin, services_of
from hermes_tui_training.orchestrator import UnknownVersionError
from hermes_tui_training.protocol import Rollback


async def rollback(request: Request) -> Response:
    """``POST /rl/rollback``: make an earlier version current, under a new number."""
    await require_admin(request)
    body = await read_body(request, Rollback)
    try:
        row = await services_of(request).orchestrator.rollback(body.policy_version)
    except UnknownVersionError as error:
        raise ApiError(404, _sentence(error), param="policy_version") from error
    except TrainingError as error:
        raise ApiError(409, _sentence(error)) from error
    except ServiceError as error:
        raise ApiError(503, _sentence(error)) from error
    return JSONResponse(row)


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[0].upper()}{text[1:]}."
