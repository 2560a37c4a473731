"""From a finished checkpoint to served weights. Runs in the trainer; free of torch."""

from __future__ import annotations

import asyncio
import logging
import time

from hermes_tui_training.api.config import TrainerRole
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import LineageId
from hermes_tui_training.engine.base import Engine
from hermes_tui_training.store import checkpoint
from hermes_tui_training.store.store import Store

logger = logging.getLogger(__name__)

_PINNED = "pinned_versions"


class Publisher:
    """Has the engine serve versions, and keeps as many checkpoints as it should."""

    def __init__(self, store: Store, engine: Engine, config: TrainerRole) -> None:
        self._store = store
        self._engine = engine
        self._root = config.checkpoints
        self._lineage = LineageId(base=config.model.path)
        self._config = config.training.checkpoint
        self.error: str | None = None
        """Why the engine did not take the last version; None when it did."""
        self.kept: tuple[int, ...] = ()
        """Versions of the lineage in use that have a checkpoint, ascending."""

    @property
    def served(self) -> int:
        """Version that the engine samples with."""
        return self._engine.policy_version

    async def swap(self, version: int) -> bool:
        """Have the engine take a version's weights; return whether it did."""
        try:
            await self._engine.swap(checkpoint.checkpoint_path(self._root, version), version)
        except Exception as error:
            # Whatever it was, the old version serves on; the loop tries again and says so.
            reason = str(error)
            if reason != self.error:
                logger.error("publish failed version=%s: %s", version, reason)
                payload = {"policy_version": version, "reason": reason}
                await asyncio.to_thread(self._store.events.add, EventKind.PUBLISH_FAILED, payload)
            self.error = reason
            return False
        self.error = None
        return True

    async def publish(self, version: int) -> bool:
        """Have the engine serve a version that the store knows; return whether it does."""
        if self.served == version:
            return True
        started = time.monotonic()
        if not await self.swap(version):
            return False
        await self.announce(version, time.monotonic() - started)
        return True

    async def announce(self, version: int, seconds: float) -> None:
        """Say that a version is served, and delete checkpoints that are needed no longer."""
        await asyncio.to_thread(
            self._store.events.add,
            EventKind.VERSION_PUBLISHED,
            {"policy_version": version, "seconds": seconds},
        )
        logger.info("published version=%s seconds=%.2f", version, seconds)
        pinned = await asyncio.to_thread(self._store.meta.get, _PINNED, [])
        others = await asyncio.to_thread(self._store.heads.others)
        await asyncio.to_thread(
            checkpoint.prune,
            self._root,
            self._config,
            protected={version, self.served, *pinned, *others.values()},
            now=time.time(),
        )
        await self.look()

    async def look(self) -> None:
        """See which checkpoints there are."""
        kept = await asyncio.to_thread(checkpoint.versions_of, self._root, self._lineage)
        self.kept = tuple(kept)

    async def pin(self, version: int) -> str:
        """Keep a version for good; return where it is."""
        pinned = await asyncio.to_thread(self._store.meta.get, _PINNED, [])
        await asyncio.to_thread(self._store.meta.set, _PINNED, sorted({*pinned, version}))
        return str(checkpoint.checkpoint_path(self._root, version))
