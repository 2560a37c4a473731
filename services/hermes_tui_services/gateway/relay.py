"""Passes on an answer that an agent got from another server, byte for byte."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from hermes_tui_common.streaming import LiveResponse
from hermes_tui_services.api.events import BytesRelayed, RelayStarted, TurnEvent, TurnFailed


def relayed(
    started: RelayStarted, events: AsyncGenerator[TurnEvent, None], headers: Mapping[str, str]
) -> LiveResponse:
    """Return the answer that follows in a turn's events.

    Args:
        started: its status and headers.
        events: the turn's events after that.
        headers: headers of ours, beside its own.
    """
    return LiveResponse(_parts(events), {**started.headers, **headers}, status=started.status)


async def _parts(events: AsyncGenerator[TurnEvent, None]) -> AsyncGenerator[bytes, None]:
    """Yield the answer's bytes. Raises: ApiError: it broke off; the connection must, too."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, BytesRelayed):
                yield event.data
            elif isinstance(event, TurnFailed):
                raise event.error()
