"""Policy versions: going back to one (``/rl/rollback``), what each says (``/rl/canaries``)."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from hermes_tui_common.errors import ApiError, ServiceError, TrainingError
from hermes_tui_common.http import read_body, read_query
from hermes_tui_training.api.protocol import CanariesQuery, Rollback
from hermes_tui_training.api.wire import StepRecord
from hermes_tui_training.inference_gateway.answers import model_response, rows_response
from hermes_tui_training.inference_gateway.context import require_admin, services_of
from hermes_tui_training.trainer.orchestrator import UnknownVersionError


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
    return model_response(StepRecord.model_validate(row))


async def list_canaries(request: Request) -> Response:
    """``GET /rl/canaries``: a version's answers, or those of the two newest that answered."""
    await require_admin(request)
    version = read_query(request, CanariesQuery).policy_version
    answers = await asyncio.to_thread(services_of(request).store.canaries.answers, version)
    return rows_response(answers)


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[0].upper()}{text[1:]}."
