"""The way out of a worker with a network of its own: to its data proxy's relay alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from hermes_tui_services.api.protocol import OWN_NETWORK_PORT

_READ_BYTES = 65_536


@contextlib.asynccontextmanager
async def way_to_relay(relay_socket: Path | None) -> AsyncIterator[None]:
    """Pass connections to ``OWN_NETWORK_PORT`` on to a Unix socket until the block ends.

    Args:
        relay_socket: the data proxy's; None: the worker shares the machine's network.
    """
    if relay_socket is None:
        yield
        return

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there_reader, there_writer = await _connect(relay_socket)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pipe(reader, there_writer))
                both.create_task(_pipe(there_reader, writer))
        writer.close()

    async with await asyncio.start_server(forward, "127.0.0.1", OWN_NETWORK_PORT):
        yield


async def _connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:  # by the directory, since a socket's name has room for 107 bytes only
        return await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy to the end; either side's end ends the other."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
