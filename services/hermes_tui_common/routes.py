"""The routing table of a server: for each route what it takes, how much of it, what it answers.

The table decides what is read, and the OpenAPI description is made of it: so the two agree.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hermes_tui_common.limits import HttpConfig

Row = TypeVar("Row")
Endpoint = Callable[[Request], Awaitable[Response]]

_SCOPE_KEY = "hermes_tui.operation"


class BodySize(enum.Enum):
    """How large a body may be."""

    SMALL = "small"
    """1 MiB: ids, a number, a sentence."""
    CONVERSATION = "conversation"
    """``http.max_body_bytes``."""
    STEP = "step"
    """64 MiB and ten million values: the tokens of a training step, from the trainer itself."""

    def limits(self, limits: HttpConfig) -> HttpConfig:
        """Return the limits of a body of this size."""
        match self:
            case BodySize.SMALL:
                changed: dict[str, int] = {"max_body_bytes": 1024 * 1024}
            case BodySize.CONVERSATION:
                changed = {}
            case BodySize.STEP:
                changed = {"max_body_bytes": 64 * 1024 * 1024, "max_json_values": 10_000_000}
        return limits.model_copy(update=changed) if changed else limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one route takes and answers."""

    summary: str
    """One line for a person: the first of the endpoint's docstring."""
    body: Any = None
    """Model or dataclass of the request's body; None takes none."""
    size: BodySize = BodySize.SMALL
    """How large the body may be."""
    query: type[BaseModel] | None = None
    """Model of the query; None takes none."""
    answer: Any = None
    """Model of the answer's JSON; None has none."""
    status: int = 200
    """Status of a good answer."""
    events: bool = False
    """Whether the answer is, or may be, a stream of server-sent events."""


class ApiRoute(Route):
    """A route of one method with its operation."""

    def __init__(
        self, path: str, endpoint: Endpoint, *, method: str = "GET", **operation: Any
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method = method
        summary = (endpoint.__doc__ or "").strip().partition("\n")[0]
        self.operation = Operation(summary=summary, **operation)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; its endpoint finds the operation in the scope."""
        scope[_SCOPE_KEY] = self.operation
        await super().handle(scope, receive, send)


_UNDESCRIBED = Operation(summary="")


def operation_of(scope: Mapping[str, Any]) -> Operation:
    """Return the operation that a request is for."""
    operation = scope.get(_SCOPE_KEY, _UNDESCRIBED)
    assert isinstance(operation, Operation)
    return operation


JsonObject = dict[str, Any]
"""An answer in a shape of OpenAI's or Anthropic's, as their clients' types have it."""


class Health(BaseModel):
    """``GET /health``: a server answers, and says what does not work."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    status: Literal["ok", "degraded"] = "ok"
    """degraded: ``problem`` says what."""
    problem: str = ""
    """Which part does not work, in a sentence; left out when all is well."""


class Rows(BaseModel, Generic[Row]):
    """A list, as OpenAI wraps it."""

    data: list[Row]
    """The rows."""
