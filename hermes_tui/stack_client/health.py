"""What the processes themselves say is wrong: their ``/health``."""

from __future__ import annotations

import asyncio

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from hermes_tui.core.stack_status import ProcessState, StackStatus

TIMEOUT_S = 5.0


class Health(BaseModel):
    """Answer of a process to ``GET /health``."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    status: str
    """``ok``, or ``degraded``."""
    problem: str = ""
    """Which part does not work, in one sentence; empty when all is well."""


async def read_health(stack: StackStatus) -> dict[str, Health]:
    """Return what each process that is ready says, by its name."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as http:
        urls = {
            row.name: row.url
            for row in stack.processes
            if row.url and row.state is ProcessState.READY
        }
        found = await asyncio.gather(*(_read(http, url) for url in urls.values()))
    return dict(zip(urls, found, strict=True))


async def _read(http: httpx.AsyncClient, url: str) -> Health:
    try:
        answer = await http.get(f"{url}/health")
        answer.raise_for_status()
        return Health.model_validate_json(answer.content)
    except httpx.TimeoutException:
        return Health(status="degraded", problem=f"/health does not answer within {TIMEOUT_S:g} s")
    except (httpx.HTTPError, ValidationError) as error:
        return Health(status="degraded", problem=f"/health does not answer as it should: {error}")
