"""Routes of AReaL's inference gateway: other servers' models, generation on hold, the version.

AReaL addresses one of several workers by an id in the path; there is one engine here, so that any
id means it.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import read_body
from hermes_tui_common.upstream_hosts import UpstreamHosts
from hermes_tui_training.api.protocol import DeregisterModel, RegisterModel, SetVersion
from hermes_tui_training.inference_gateway.context import require_admin, services_of
from hermes_tui_training.inference_gateway.external_models import ExternalModel

_OWN = "the engine"

_SERVERS = UpstreamHosts(None, "url")
"""Any server but those that are never called: the admin key may name them."""


async def register_model(request: Request) -> Response:
    """``POST /register_model``: requests that name this model go to its server."""
    await require_admin(request)
    services = services_of(request)
    body = await read_body(request, RegisterModel)
    if body.model == services.config.model.path:
        raise ApiError(409, f"'{body.model}' is the model that is trained here.", param="model")
    await _SERVERS.check(body.url)
    model = ExternalModel(
        name=body.model,
        url=body.url,
        provider_model=body.provider_model or body.model,
        api_key=body.api_key,
        policy_version=body.policy_version,
    )
    await services.external.put(model)
    return JSONResponse({"status": "ok", "model": model.name, "data_proxy_addrs": []})


async def deregister_model(request: Request) -> Response:
    """``POST /deregister_model``: forget another server's model."""
    await require_admin(request)
    body = await read_body(request, DeregisterModel)
    if not await services_of(request).external.remove(body.model):
        raise ApiError(404, f"No model '{body.model}' was registered.", param="model")
    return JSONResponse({"status": "ok", "model": body.model})


async def pause_generation(request: Request) -> Response:
    """``POST /pause_generation``: sampling holds between two tokens; requests wait."""
    await require_admin(request)
    await services_of(request).engine.pause()
    return _done()


async def continue_generation(request: Request) -> Response:
    """``POST /continue_generation``: sampling goes on."""
    await require_admin(request)
    await services_of(request).engine.resume()
    return _done()


def _done() -> Response:
    """Return what AReaL's broadcasts answer: one row for each worker."""
    row = {"worker_addr": _OWN, "status": 200, "ok": True, "error": None}
    return JSONResponse({"results": [row]})


async def set_version(request: Request) -> Response:
    """``POST /set_version``: agree on the served version; it names weights, so it cannot be set."""
    await require_admin(request)
    served = services_of(request).engine.policy_version
    version = (await read_body(request, SetVersion)).version
    if version != served:
        raise ApiError(
            409,
            f"Version {served} is served. A version names the weights of one training step and "
            "cannot be set; POST /rl/rollback goes back to an earlier one's weights.",
            param="version",
        )
    return JSONResponse({"status": "ok", "version": served})


async def get_version(request: Request) -> Response:
    """``GET /get_version``: the policy version that is served."""
    await require_admin(request)
    return JSONResponse({"version": services_of(request).engine.policy_version})
