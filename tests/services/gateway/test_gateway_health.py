"""What the agent gateway says of what is behind it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from hermes_tui_services.gateway.data_proxies import DataProxies

DOWN = "1 of 2 pairs are down: worker is down (refused)"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": "ok"}, ""),
        ({"status": "degraded", "problem": DOWN}, DOWN),
        (
            None,
            "the router does not answer: conversations that have a pair go on, new ones wait",
        ),
    ],
)
async def test_the_failing_part_is_named(answer: dict[str, Any] | None, said: str) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if answer is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json=answer)

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
        assert await DataProxies(client, "http://router", 1.0).problem() == said
