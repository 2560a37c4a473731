"""Ends sessions in which nothing was said for ``training.gateway.session_timeout_s``."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time

from hermes_tui_training.store.store import Store

logger = logging.getLogger(__name__)

MAX_CHECK_S = 30.0
"""Longest time between two looks."""


async def end_idle(store: Store, timeout_s: float) -> None:
    """End idle sessions until cancelled.

    Args:
        timeout_s: seconds since a session's last completion began; 0 ends none.
    """
    while timeout_s:
        try:
            for session_id in await asyncio.to_thread(
                store.sessions.end_idle, time.time() - timeout_s
            ):
                logger.info("idle session ended session=%s timeout_s=%g", session_id, timeout_s)
        except sqlite3.Error as error:
            # A full or slow disk may recover until the next look; recording reports it too.
            logger.warning("idle sessions could not be ended error=%s", error)
        await asyncio.sleep(min(timeout_s / 2, MAX_CHECK_S))
