"""The models of other servers that were registered by name."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, ConfigDict

from hermes_tui_training.store.store import Store

_META = "external_models"


class ExternalModel(BaseModel):
    """A model of another server."""

    model_config = ConfigDict(frozen=True)

    name: str
    """What requests call it."""
    url: str
    """Base URL of an OpenAI-compatible server, ending in ``/v1`` or what stands in its place."""
    provider_model: str
    """What the server calls it."""
    api_key: str | None = None
    """Key of the server."""
    policy_version: int | None = None
    """Version of the policy that the server serves; None: it serves another model."""


class ExternalModels:
    """The registered models; they survive restarts, since a request that names one which is not
    known is answered by the policy."""

    def __init__(self, store: Store) -> None:
        self._store = store
        rows = store.meta.get(_META, [])
        self._models = {row["name"]: ExternalModel.model_validate(row) for row in rows}

    def names(self) -> list[str]:
        """Return the names in the order of registration."""
        return list(self._models)

    def get(self, name: object) -> ExternalModel | None:
        """Return a model, or None when no model of that name was registered."""
        return self._models.get(name) if isinstance(name, str) else None

    async def put(self, model: ExternalModel) -> None:
        """Register a model, in place of one of the same name."""
        self._models[model.name] = model
        await self._save()

    async def remove(self, name: str) -> bool:
        """Forget a model; return whether there was one."""
        found = self._models.pop(name, None) is not None
        await self._save()
        return found

    async def _save(self) -> None:
        rows = [model.model_dump() for model in self._models.values()]
        await asyncio.to_thread(self._store.meta.set, _META, rows)
