"""Keeps ``conversations.db`` within ``services.store.max_bytes``."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable

from hermes_tui_common.disk import DiskFullError
from hermes_tui_services.api.config import StoreConfig
from hermes_tui_services.api.protocol import Upstream
from hermes_tui_services.data_proxy.store import ConversationStore

logger = logging.getLogger(__name__)

CHECK_S = 60.0
"""Time between two looks at the size; what arrives meanwhile is small beside the bound."""

LONGEST_TURN_S = 3600.0
"""A conversation whose last turn began within this time is kept, whatever ``keep_s`` says: another
data proxy may be at work on it."""

_BATCH = 100


class Retention:
    """Deletes the conversations that were used the longest ago; each in a transaction of its own.

    Several data proxies may do so at once: none of them deletes what another one is using.

    Args:
        store: the conversations.
        config: how much is kept.
        is_kept: whether one stays however old it is, by its session key and its upstream.
        report: gets what was deleted, in a sentence, whenever that changes.
    """

    def __init__(
        self,
        store: ConversationStore,
        config: StoreConfig,
        *,
        is_kept: Callable[[str, Upstream | None], Awaitable[bool]],
        report: Callable[[str], None],
    ) -> None:
        self._store = store
        self._config = config
        self._is_kept = is_kept
        self._report = report
        self._num_forgotten = 0

    async def keep_within(self) -> None:
        """Delete the oldest conversations whenever there is too much, until cancelled."""
        while True:
            try:
                await self.forget_excess()
            except (sqlite3.Error, DiskFullError) as error:
                # A full or slow disk may recover until the next try; storing turns reports it too.
                logger.warning("old conversations could not be deleted error=%s", error)
            await asyncio.sleep(CHECK_S)

    async def forget_excess(self) -> int:
        """Delete the oldest conversations until the rest fits; return how many are gone."""
        since = time.time() - max(self._config.keep_s, LONGEST_TURN_S)
        number = num_kept = 0
        while await self._is_too_large():
            batch = await self._store.idle(since, skip=num_kept, limit=_BATCH)
            if not batch:
                text = "the conversations are too large, and all are in use max_bytes=%d"
                logger.warning(text, self._config.max_bytes)
                break
            for session_key, upstream in batch:
                if not await self._is_too_large():
                    break
                if await self._is_kept(session_key, upstream):
                    num_kept += 1
                elif await self._store.forget_idle(session_key, since):
                    number += 1
        if number:
            self._tell(number)
        return number

    def _tell(self, number: int) -> None:
        logger.info("oldest conversations deleted num_sessions=%d", number)
        self._num_forgotten += number
        at = time.strftime("%Y-%m-%d %H:%M")
        self._report(
            f"{self._num_forgotten} conversations that were used the longest ago were deleted, the "
            f"last at {at}: services.store.max_bytes is {self._config.max_bytes}"
        )

    async def _is_too_large(self) -> bool:
        bound = self._config.max_bytes
        return bool(bound) and await self._store.num_bytes() > bound
