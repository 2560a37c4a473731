"""An OpenAPI 3.1 description of a server, made of its routing table and its pydantic models."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from hermes_tui_common.routes import ApiRoute, Endpoint, Operation

PATH = "/openapi.json"
"""Where each server has its description."""

_REFS = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    """For a person."""
    type: str
    """OpenAI's class of the error."""
    code: str | None
    """For a program; None when there is none."""
    param: str | None
    """The field at fault; None when it is none."""


class ErrorBody(BaseModel):
    """Every error, in OpenAI's shape."""

    error: ErrorDetail
    """What went wrong."""


class Description(BaseModel):
    """``GET /openapi.json``."""

    openapi: str
    """Version of the format."""
    info: dict[str, str]
    """Title and version."""
    paths: dict[str, Any]
    """What each route takes and answers."""


def described(
    title: str,
    routes: Sequence[BaseRoute],
    guard: Callable[[Endpoint], Endpoint] = lambda endpoint: endpoint,
) -> list[BaseRoute]:
    """Return routes and one more, which describes all of them.

    Args:
        title: what the server is.
        routes: ``ApiRoute`` and ``WebSocketRoute``.
        guard: checks who may read the description, where no middleware does.
    """
    table: list[BaseRoute] = [*routes]

    @functools.cache
    def made() -> dict[str, Any]:
        return describe(title, table)

    async def read_description(_: Request) -> Response:
        """``GET /openapi.json``: what this server's routes take and answer."""
        return JSONResponse(await asyncio.to_thread(made))

    guarded = guard(read_description)
    guarded.__doc__ = read_description.__doc__
    table.append(ApiRoute(PATH, guarded, answer=Description))
    return table


def describe(title: str, routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the OpenAPI description of routes."""
    schemas = _Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        assert isinstance(route, ApiRoute | WebSocketRoute), f"{route} has no operation"
        path = paths.setdefault(_PARAMETER.sub(r"{\1}", route.path), {})
        if isinstance(route, ApiRoute):
            path[route.method.lower()] = _operation(route, schemas)
        else:
            path["get"] = {
                "summary": "A web socket.",
                "responses": {"101": {"description": "It is open."}, "default": _error(schemas)},
            }
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {
            "schemas": schemas.components(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(route: ApiRoute, schemas: _Schemas) -> dict[str, Any]:
    operation = route.operation
    described: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": [*_path_parameters(route), *_query_parameters(operation)],
        "responses": {
            str(operation.status): _answer(operation, schemas),
            "default": _error(schemas),
        },
    }
    if route.path == "/health":
        described["security"] = []
    if operation.body is not None:
        schema = schemas.of(operation.body)
        required = bool(schemas.resolved(operation.body).get("required"))
        described["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": schema}},
        }
    return described


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = _PARAMETER.findall(route.path)
    schema = {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    schema = operation.query.model_json_schema()
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "description": field.get("description", ""),
            "schema": _without_null(field),
        }
        for name, field in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a field's schema as a query has it: left out in place of null."""
    kept = {k: v for k, v in schema.items() if k not in ("title", "description", "default")}
    if "anyOf" in kept:
        kinds = [kind for kind in kept.pop("anyOf") if kind.get("type") != "null"]
        kept |= kinds[0]
    return kept


def _answer(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    schema = {} if operation.answer is None else schemas.of(operation.answer)
    content: dict[str, Any] = {}
    if operation.answer is not None or not operation.events:
        content["application/json"] = {"schema": schema}
    if operation.events:
        content["text/event-stream"] = {}
    return {"description": operation.summary or "Done.", "content": content}


def _error(schemas: _Schemas) -> dict[str, Any]:
    content = {"application/json": {"schema": schemas.of(ErrorBody)}}
    return {"description": "An error.", "content": content}


class _Schemas:
    """The schemas of models, each once."""

    def __init__(self) -> None:
        self._schemas: dict[str, dict[str, Any]] = {}
        self._refs: dict[int, dict[str, Any]] = {}

    def of(self, model: Any) -> dict[str, Any]:
        """Return a schema that refers to a model's."""
        return {"$ref": _REFS.format(model=self._add(model))}

    def resolved(self, model: Any) -> dict[str, Any]:
        """Return a model's schema."""
        return self._schemas[self._add(model)]

    def components(self) -> dict[str, dict[str, Any]]:
        """Return all schemas by name."""
        return self._schemas

    def _add(self, model: Any) -> str:
        schema = TypeAdapter(model).json_schema(ref_template=_REFS)
        self._schemas |= schema.pop("$defs", {})
        name = re.sub(r"\W+", "_", str(schema.get("title") or "Object"))
        if "$ref" in schema:  # a model that holds itself
            return str(schema["$ref"]).rpartition("/")[2]
        known = self._schemas.setdefault(name, schema)
        assert known == schema, f"two models are called {name}"
        return name
