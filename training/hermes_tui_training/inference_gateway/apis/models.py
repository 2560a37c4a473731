"""``/v1/models``: the model that is served, in OpenAI's shape or Anthropic's."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui_common.errors import ApiError
from hermes_tui_training.api.wire import ServedModel, ServedModels
from hermes_tui_training.inference_gateway.answers import model_response
from hermes_tui_training.inference_gateway.apis.anthropic import KEY_HEADER, refusal
from hermes_tui_training.inference_gateway.context import caller_of, services_of

OWNER = "hermes-tui"
"""``owned_by`` of our models."""

VERSION_HEADER = "anthropic-version"
"""Every client of Anthropic's API sends it; OpenAI's do not."""


async def list_models(request: Request) -> Response:
    """``GET /v1/models``: the one that is served."""
    try:
        model = await _served(request)
    except ApiError as error:
        if VERSION_HEADER not in request.headers:
            raise
        return refusal(error)
    if VERSION_HEADER not in request.headers:
        names = (model.id, *services_of(request).external.names())
        return model_response(ServedModels(object="list", data=(model,), models=names))
    page = {"data": [_anthropic(model)], "has_more": False}
    return JSONResponse({**page, "first_id": model.id, "last_id": model.id})


async def read_model(request: Request) -> Response:
    """``GET /v1/models/{id}``: the model of that name; 404 where another is served."""
    asked = request.path_params["model_id"]
    try:
        model = await _served(request)
        if asked != model.id:
            text = f"Model '{asked}' is not served here; '{model.id}' is."
            raise ApiError(404, text, code="model_not_found", param="model")
    except ApiError as error:
        if VERSION_HEADER not in request.headers:
            raise
        return refusal(error)
    if VERSION_HEADER not in request.headers:
        return model_response(model)
    return JSONResponse(_anthropic(model))


async def _served(request: Request) -> ServedModel:
    await caller_of(request, request.headers.get(KEY_HEADER), for_completions=True)
    services = services_of(request)
    return ServedModel(
        id=services.config.model.path,
        object="model",
        created=0,
        owned_by=OWNER,
        max_model_len=services.engine.max_model_len,
        policy_version=services.engine.policy_version,
    )


def _anthropic(model: ServedModel) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": "1970-01-01T00:00:00Z",  # as OpenAI's shape has 0: it is not known
        "max_input_tokens": model.max_model_len,
    }
