"""What every HTTP surface shares: error answers, request bodies, server-sent events."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from hermes_tui_common.auth import redact
from hermes_tui_common.errors import ApiError, RefusedError, ServiceError, cause_of
from hermes_tui_common.json_body import parse_json
from hermes_tui_common.limits import THREAD_BYTES, HttpConfig, limits_of
from hermes_tui_common.routes import operation_of

logger = logging.getLogger(__name__)
Model = TypeVar("Model")
Result = TypeVar("Result")
Query = TypeVar("Query", bound=BaseModel)


async def read_body(request: Request, model: type[Model]) -> Model:
    """Return the request's JSON body as ``model``: the one that the routing table has.

    Raises: ApiError: 400 that names the field, when the body is no JSON or does not validate;
        413, when it is too large, by what its header says before it is read.
    """
    expected = operation_of(request.scope).body
    assert expected in (None, model), f"{request.url.path} reads another body"
    raw, limits = await limited_body(request), _limits(request)
    return await _threaded(raw, lambda: validated(parse_json(raw, limits), model))


async def read_json(request: Request) -> Any:
    """Return the value of the request's JSON body.

    Raises: ApiError: 400, when it is no JSON; 413, when it is too large.
    """
    raw, limits = await limited_body(request), _limits(request)
    return await _threaded(raw, lambda: parse_json(raw, limits))


def validated(value: Any, model: type[Model]) -> Model:
    """Return a JSON value as ``model``. Raises: ApiError: 400 that names the field."""
    try:
        body: Model = _adapter(cast(Hashable, model)).validate_python(value)
        return body
    except ValidationError as error:
        raise validation_error(error) from error


async def _threaded(raw: bytes, parse: Callable[[], Result]) -> Result:
    return await asyncio.to_thread(parse) if len(raw) > THREAD_BYTES else parse()


def _limits(request: Request) -> HttpConfig:
    """Return the limits of the request's body: the route's own where it has some."""
    return operation_of(request.scope).size.limits(limits_of(request.scope))


def read_query(request: Request, model: type[Query], *, last_event_id: str = "") -> Query:
    """Return the request's query as ``model``: the one that the routing table has.

    Args:
        request: whose query it is.
        model: what it must be.
        last_event_id: the parameter in whose place the header ``Last-Event-ID`` may stand; a
            client that joins a stream again sends both, and the header is the newer.

    Raises: ApiError: 400 that names the parameter.
    """
    assert operation_of(request.scope).query in (None, model)
    given = dict(request.query_params)
    if last_event_id and (newer := request.headers.get("last-event-id")):
        given[last_event_id] = newer
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise validation_error(error) from error


@functools.cache
def _adapter(model: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(model)


async def limited_body(request: Request) -> bytes:
    """Return the request's body. Raises: ApiError: 413: it is larger than the route takes."""
    max_bytes = _limits(request).max_body_bytes
    too_large = ApiError(413, f"The body is larger than {max_bytes} bytes.")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > max_bytes):
        raise too_large
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


def validation_error(error: ValidationError) -> ApiError:
    """Return the first problem of a validation as a 400 that names its field."""
    first = error.errors(include_url=False, include_input=False)[0]
    places = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    param = "".join(places).removeprefix(".") or None
    where = f"'{param}': " if param else ""
    return ApiError(400, f"{where}{first['msg']}.", param=param)


def error_response(error: ApiError) -> JSONResponse:
    """Return the HTTP answer of an error."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    # What a client sent by mistake, such as a key as an id, does not come back to it.
    body = {name: redact(text) if text else text for name, text in error.body()["error"].items()}
    return JSONResponse({"error": body}, status_code=error.status, headers=headers)


def health_response(problem: str = "", **facts: object) -> JSONResponse:
    """Return the answer to ``GET /health``: 200, since who answers lives.

    Args:
        problem: which part does not work and what that means, in one sentence without addresses:
            anybody may read it. Empty when all is well.
        facts: more fields.
    """
    status = {"status": "degraded", "problem": problem} if problem else {"status": "ok"}
    return JSONResponse({**status, **facts})


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}."
    return error_response(ApiError(error.status_code, message))


async def _on_client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _on_crash(request: Request, error: Exception) -> Response:
    logger.error("request failed path=%s", request.url.path, exc_info=error)
    return error_response(ApiError(500, f"{type(error).__name__}: {error}"))


EXCEPTION_HANDLERS: Mapping[Any, Any] = {
    ApiError: _on_api_error,
    HTTPException: _on_http_exception,
    ClientDisconnect: _on_client_gone,
    Exception: _on_crash,
}
"""For ``Starlette(exception_handlers=...)``: every error leaves in OpenAI's shape."""


def sse(data: object, *, event: str | None = None, event_id: str | int | None = None) -> bytes:
    """Return one server-sent event; a str is sent as it is, anything else as JSON.

    The JSON is ASCII: clients disagree on which other characters end a line.
    """
    text = data if isinstance(data, str) else json.dumps(data)
    head = f"event: {event}\n" if event else ""
    if event_id is not None:
        head += f"id: {event_id}\n"
    return f"{head}data: {text}\n\n".encode()


class SseResponse(StreamingResponse):
    """A stream of ``sse()`` chunks that no proxy may buffer."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[bytes], **kwargs: Any) -> None:
        super().__init__(content, **kwargs)
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class SseEvent:
    """One received server-sent event."""

    data: str
    """The data lines, joined with newlines."""
    event: str | None = None
    """The event's name, or None."""
    event_id: str | None = None
    """The event's id, or None."""

    def json(self) -> Any:
        """Return the data as JSON."""
        return json.loads(self.data)


async def iter_sse(response: httpx.Response) -> AsyncIterator[SseEvent]:
    """Yield the events of a streamed answer as they arrive; comments are skipped."""
    data: list[str] = []
    event = event_id = None
    async for line in response.aiter_lines():
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield SseEvent(data="\n".join(data), event=event, event_id=event_id)
            data, event = [], None
        elif name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id":
            event_id = value


def parsed(
    service: str, kind: type[Model] | TypeAdapter[Model], source: httpx.Response | SseEvent
) -> Model:
    """Return the JSON of an answer or an event as a pydantic model, a dataclass or a list of them.

    pydantic checks decoded JSON here: its own decoder refuses what is nested deeply.

    Args:
        service: who sent it, for the error: ``the inference gateway``.
        kind: what it must be.
        source: the answer, already read, or the event.

    Raises: ServiceError: it is no JSON, or of another shape.
    """
    try:
        adapter = kind if isinstance(kind, TypeAdapter) else _adapter(cast(Hashable, kind))
        value: Model = adapter.validate_python(source.json())
        return value
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        problem = f"{where}: {first['msg']}" if where else first["msg"]
    except (ValueError, RecursionError) as error:
        problem = f"not JSON: {error}"
    raise ServiceError(f"{service} sent what this version cannot read: {problem}")


class SkippedEvents:
    """Counts the events of a stream that cannot be read; the first of each kind is logged.

    Args:
        service: who sends them.
    """

    def __init__(self, service: str) -> None:
        self.counts: Counter[str] = Counter()
        """How many were skipped, by kind."""
        self._service = service

    def add(self, kind: str, error: Exception) -> None:
        """Count an event that was skipped because of ``error``."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            logger.warning(
                "event skipped service=%s kind=%s error=%s", self._service, kind, cause_of(error)
            )


async def require_ok(response: httpx.Response) -> None:
    """Let an answer pass that is no error. Raises: RefusedError: what it says."""
    if not response.is_success:
        await response.aread()
        raise RefusedError(api_error_from(response))


def api_error_from(response: httpx.Response) -> ApiError:
    """Return the error that another of our services answered; its body must have been read."""
    try:
        error = response.json()["error"]
        return ApiError(
            response.status_code, error["message"], code=error.get("code"), param=error.get("param")
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        url = redact(str(response.request.url))
        return ApiError(
            response.status_code,
            f"{url} answered {response.status_code}, and not as this program's servers do.",
        )
