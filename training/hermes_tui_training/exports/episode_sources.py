"""Where episodes to export come from: a running gateway, or a database file that is only read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from hermes_tui_common.errors import ConfigError
from hermes_tui_training.api.client import InferenceClient
from hermes_tui_training.api.types import Episode

_PAGE = 100
"""Episodes asked for at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which episodes; None is no condition."""

    session_id: str | None = None
    """Of this session."""
    group_id: str | None = None
    """Of this group."""
    state: str | None = None
    """In this state."""
    episode_ids: tuple[str, ...] = ()
    """These, whatever the other conditions; empty names none."""


async def from_gateway(client: InferenceClient, selection: Selection) -> AsyncIterator[Episode]:
    """Yield a gateway's episodes, oldest first.

    Raises: RefusedError: an episode is unknown, or the key is not the admin's. UnreachableError.
    """
    for episode_id in selection.episode_ids:
        yield (await client.episode(episode_id)).to_episode()
    after: str | None = None
    while not selection.episode_ids:
        page = await client.episodes(
            session_id=selection.session_id,
            group_id=selection.group_id,
            state=selection.state,
            after=after,
            limit=_PAGE,
        )
        for summary in page:
            yield (await client.episode(summary.episode_id)).to_episode()
        if len(page) < _PAGE:
            return
        after = page[-1].episode_id


def from_database(path: Path, selection: Selection) -> Iterator[Episode]:
    """Yield the episodes of a ``trajectories.db``, oldest first; nothing in the file is changed.

    Raises: ConfigError: it cannot be read. UnknownIdError: an episode is unknown.
    """
    try:
        from hermes_tui_training.store.episodes import Episodes
        from hermes_tui_training.store.transactions import Transactions
    except ImportError as error:  # numpy, which asking a gateway needs no part of
        raise ConfigError(
            f"reading a database needs {error.name}: pip install 'hermes-tui[train]'"
        ) from error
    transactions = Transactions(path, read_only=True)
    episodes = Episodes(transactions)
    try:
        for episode_id in selection.episode_ids:
            yield episodes.get(episode_id)
        after: str | None = None
        while not selection.episode_ids:
            page = episodes.find(
                session_id=selection.session_id,
                group_id=selection.group_id,
                state=selection.state,
                after=after,
                limit=_PAGE,
            )
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].episode_id
    finally:
        transactions.close()
