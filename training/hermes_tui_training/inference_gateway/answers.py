"""Wire models as HTTP answers.

Python's json writes them and not pydantic's, which refuses values nested more than 255 deep
(pydantic 2.13); tools that a client sent may be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse

from hermes_tui_training.api.types import CanaryAnswer, Session

Row = BaseModel | Session | CanaryAnswer
"""What a list is made of."""


def model_response(model: BaseModel, *, status_code: int = 200) -> JSONResponse:
    """Return a model as JSON; only fields that were set are in it."""
    return JSONResponse(_plain(model), status_code=status_code)


def rows_response(rows: Iterable[Row]) -> JSONResponse:
    """Return rows under ``data``, as OpenAI's lists have them."""
    return JSONResponse({"data": [_plain(row) for row in rows]})


def _plain(row: Row) -> dict[str, Any]:
    return row.model_dump(exclude_unset=True) if isinstance(row, BaseModel) else asdict(row)
