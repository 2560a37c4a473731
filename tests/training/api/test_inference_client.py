"""The inference gateway's client, without a gateway."""

from __future__ import annotations

import asyncio

import pytest

from hermes_tui_training.api import client as module
from hermes_tui_training.api.client import InferenceClient


async def test_events_end_when_the_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a view goes on to the stack that took the place of the one it knew."""
    monkeypatch.setattr(module, "_RECONNECT_S", (0.0,))
    client = InferenceClient("http://127.0.0.1:1", "sk-admin")
    tried = asyncio.Event()
    once = client._events_once

    def counted(after: int | None):  # type: ignore[no-untyped-def]
        tried.set()
        return once(after)

    monkeypatch.setattr(client, "_events_once", counted)
    reader = asyncio.create_task(anext(client.events(), None))  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await tried.wait()
        await client.aclose()
        assert await reader is None
