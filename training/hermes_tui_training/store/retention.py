"""Keeps ``trajectories.db`` within ``training.store.max_bytes``."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time

from hermes_tui_training.api.config import StoreConfig
from hermes_tui_training.store.store import Store

logger = logging.getLogger(__name__)

CHECK_S = 60.0
"""Time between two looks at the size; what arrives meanwhile is small beside the bound."""


async def keep_within(store: Store, config: StoreConfig) -> None:
    """Forget the oldest groups whenever there is too much, until cancelled."""
    while True:
        try:
            await forget_excess(store, config)
        except sqlite3.Error as error:
            # A full or slow disk may recover until the next try; recording reports it too.
            logger.warning("old sessions could not be forgotten error=%s", error)
        await asyncio.sleep(CHECK_S)


async def forget_excess(store: Store, config: StoreConfig) -> int:
    """Forget the oldest groups until the rest fits; return how many sessions are gone.

    One transaction a group, so that requests that are being recorded wait for one group at most.
    """
    number = 0
    while (
        config.max_bytes and await asyncio.to_thread(store.retention.num_bytes) > config.max_bytes
    ):
        idle_since = time.time() - config.keep_s
        session_ids = await asyncio.to_thread(store.retention.forget_oldest, idle_since)
        if not session_ids:
            text = "the store is too large, and all of it is in use max_bytes=%d"
            logger.warning(text, config.max_bytes)
            break
        number += len(session_ids)
    if number:
        logger.info("oldest sessions forgotten num_sessions=%d", number)
    return number
