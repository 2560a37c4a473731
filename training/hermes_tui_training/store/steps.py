"""Steps: which episodes wait for one, which are claimed, and what finished steps did."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

from hermes_tui_training.algorithm.groups import SiblingGroup
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import (
    NAMED_REASONS,
    Episode,
    LineageId,
    TrainedCompletion,
    UntrainableReason,
)
from hermes_tui_training.store.database import floats_to_blob, to_json
from hermes_tui_training.store.episodes import Episodes
from hermes_tui_training.store.heads import move_head
from hermes_tui_training.store.meta import Meta
from hermes_tui_training.store.sibling_groups import read_sibling_groups
from hermes_tui_training.store.transactions import ConflictError, Transactions, Writer


class Steps:
    """Claims episodes for a step, and records what became of them."""

    def __init__(self, transactions: Transactions, episodes: Episodes) -> None:
        self._transactions = transactions
        self._episodes = episodes
        self._meta = Meta(transactions)

    def policy_version(self) -> int:
        """Return the head of the lineage in use; 0 before its first step."""
        return int(self._meta.get("policy_version", 0))

    def newest_version(self) -> int:
        """Return the highest version that anything here names; 0 before the first step."""
        rows = self._transactions.database.query(
            "SELECT max(policy_version) FROM "
            "(SELECT policy_version FROM steps UNION ALL SELECT policy_version FROM canaries)"
        )
        return max(int(rows[0][0] or 0), self.policy_version())

    def newest_recorded(self) -> int:
        """Return the highest version of a recorded step; 0 before the first."""
        rows = self._transactions.database.query("SELECT max(policy_version) FROM steps")
        return max(int(rows[0][0] or 0), self.policy_version())

    def go_back(
        self, version: int, baselines: Mapping[str, Any], *, lost_version: int, reason: str
    ) -> None:
        """Go on from an earlier version: the weights of the current one are lost.

        Args:
            version: one with weights, or 0.
            baselines: as they were after it.
            lost_version: the version that was current.
            reason: what happened to its weights.
        """
        with self._transactions.write() as write:
            move_head(write, version, baselines)
            payload = {"policy_version": lost_version, "reason": reason}
            write.event(EventKind.PUBLISH_FAILED, payload)

    def sibling_groups(self) -> list[SiblingGroup]:
        """Return the scored groups and lone episodes, oldest first."""
        with self._transactions.database.exclusive() as connection:
            return read_sibling_groups(connection, self._transactions.now())

    def claim(
        self,
        *,
        step: int,
        limit: int,
        min_count: int,
        scored_before: float,
        min_policy_version: int,
        group_scored_before: float = math.inf,
    ) -> list[list[Episode]]:
        """Take scored groups and lone episodes for a step, oldest first; nothing if too few.

        Episodes that can never be trained are dropped on the way, with their reason: ``stale``,
        ``incomplete`` (a completion was lost), or why its completions are untrainable. A group
        goes on without them.

        Args:
            step: the step that claims.
            limit: how many groups or lone episodes at most.
            min_count: how many at least.
            scored_before: only those whose rewards were given up to then, seconds since the epoch.
            min_policy_version: oldest version that may be trained.
            group_scored_before: groups whose first reward was given up to then wait no longer for
                their siblings.

        Returns: siblings of a group together, each with its completions.
        """
        with self._transactions.write() as write:
            taken: list[list[str]] = []
            for group in read_sibling_groups(write.connection, write.at):
                if len(taken) == limit:
                    break
                waits = group.num_awaited and group.first_scored_at > group_scored_before
                if waits or group.last_scored_at > scored_before:
                    continue
                if members := _trainable_members(write, group, min_policy_version):
                    taken.append(members)
            if len(taken) < min_count:
                taken = []
            for episode_id in (episode_id for members in taken for episode_id in members):
                write.set_episode(episode_id, EventKind.EPISODE_CLAIMED, state="claimed", step=step)
        return [[self._episodes.get(episode_id) for episode_id in members] for members in taken]

    def claimed(self) -> list[Episode]:
        """Return the claimed episodes, oldest first."""
        return self._episodes.find(state="claimed", limit=-1)

    def release_claims(self, except_ids: Collection[str] = ()) -> None:
        """Give claimed episodes back to ``scored``, except some."""
        with self._transactions.write() as write:
            rows = write.execute(
                "SELECT episode_id FROM episodes WHERE state = 'claimed' ORDER BY seq"
            ).fetchall()
            for row in rows:
                if row["episode_id"] not in except_ids:
                    write.set_episode(
                        row["episode_id"], EventKind.EPISODE_SCORED, state="scored", step=None
                    )

    def drop(self, episode_ids: Collection[str], reason: str, *, known_only: bool = False) -> None:
        """Mark episodes as never to be trained; trained ones stay what they are.

        Args:
            episode_ids: which.
            reason: why.
            known_only: whether unknown ones are left out, which else are an error.

        Raises: UnknownIdError.
        """
        with self._transactions.write() as write:
            for episode_id in episode_ids:
                if known_only and _state(write, episode_id) is None:
                    continue
                if write.episode_row(episode_id)["state"] not in ("trained", "dropped"):
                    _drop(write, episode_id, reason)

    def commit(
        self,
        row: dict[str, Any],
        trained: Sequence[TrainedCompletion],
        baselines: dict[str, Any],
        *,
        adopted: bool = False,
        lineage: LineageId | None = None,
    ) -> int:
        """Record a finished step in one transaction.

        Its episodes become ``trained``, its completions get what was done to them, and the policy
        version becomes the step's.

        Args:
            row: the step's row; needs step, policy_version and episode_ids. With a
                rolled_back_to it is a rollback's row, and the event says so.
            trained: what the step did to each completion.
            baselines: stored as the meta value ``baselines``.
            adopted: whether the step is known from its checkpoint alone. This file may then have
                been deleted or be an old copy: what it does not know is left out, and what it
                takes for untrained is trained.
            lineage: of the version, whose head it becomes; None is the one in use.

        Returns: how many of the episodes are not known here; 0 unless adopted.
        Raises: ConflictError: the step is recorded already, or an episode is neither claimed nor
            scored. UnknownIdError.
        """
        with self._transactions.write() as write:
            try:
                write.execute(
                    "INSERT INTO steps (step, policy_version, row) VALUES (?, ?, ?)",
                    (row["step"], row["policy_version"], to_json(row)),
                )
            except sqlite3.IntegrityError as error:
                raise ConflictError(f"step {row['step']} is recorded already") from error
            states = {id_: _state(write, id_) for id_ in row["episode_ids"]} if adopted else {}
            skipped = [id_ for id_, state in states.items() if state in (None, "trained")]
            for episode_id in row["episode_ids"]:
                if episode_id in skipped:
                    continue
                state = write.episode_row(episode_id)["state"]
                if state not in ("claimed", "scored") and not adopted:
                    raise ConflictError(f"episode {episode_id} is {state}, it cannot be trained")
                write.set_episode(
                    episode_id, EventKind.EPISODE_TRAINED, state="trained", step=row["step"]
                )
            for completion in trained:
                write.execute(
                    "UPDATE completions SET advantage = ?, proximal_logprobs = ?, "
                    "after_logprobs = ? WHERE completion_id = ?",
                    (
                        completion.advantage,
                        floats_to_blob(completion.proximal_logprobs),
                        floats_to_blob(completion.after_logprobs),
                        completion.completion_id,
                    ),
                )
            move_head(write, row["policy_version"], baselines, lineage)
            rolled_back = row.get("rolled_back_to") is not None
            kind = EventKind.VERSION_ROLLED_BACK if rolled_back else EventKind.STEP_FINISHED
            write.event(kind, row)
        return sum(state is None for state in states.values())

    def rows(self, *, after: int = -1, limit: int = 1000) -> list[dict[str, Any]]:
        """Return the rows of steps whose number is above ``after``, oldest first."""
        rows = self._transactions.database.query(
            "SELECT row FROM steps WHERE step > ? ORDER BY step LIMIT ?", (after, limit)
        )
        return [json.loads(row["row"]) for row in rows]


def _state(write: Writer, episode_id: str) -> str | None:
    """Return an episode's state, or None for one that is not known."""
    row = write.execute("SELECT state FROM episodes WHERE episode_id = ?", (episode_id,)).fetchone()
    return None if row is None else str(row["state"])


def _trainable_members(write: Writer, group: SiblingGroup, min_policy_version: int) -> list[str]:
    """Return the ids of a group's episodes that can be trained; the others are dropped."""
    members = []
    for episode_id in group.episode_ids:
        obstacle = _claim_obstacle(write, episode_id, min_policy_version)
        if obstacle is None:
            members.append(episode_id)
        else:
            _drop(write, episode_id, obstacle)
    return members


def _claim_obstacle(write: Writer, episode_id: str, min_policy_version: int) -> str | None:
    """Return why an episode can never be trained, or None."""
    rows = write.execute(
        "SELECT status, trainable, untrainable_reason, reward, policy_version_min "
        "FROM completions "
        "WHERE episode_id = ? ORDER BY seq",
        (episode_id,),
    ).fetchall()
    if any(row["status"] != "finished" for row in rows):
        return "incomplete"
    trainable = [row for row in rows if row["trainable"] or _is_named(row)]
    if not trainable:
        return next((row["untrainable_reason"] for row in rows), None) or "no_token_ids"
    if min(row["policy_version_min"] for row in trainable) < min_policy_version:
        return "stale"
    return None


def _is_named(row: sqlite3.Row) -> bool:
    """Return whether a reward names a reply that was cut or stopped; see ``NAMED_REASONS``."""
    sampled = row["policy_version_min"] is not None
    return sampled and row["reward"] is not None and row["untrainable_reason"] in NAMED_REASONS


def _drop(write: Writer, episode_id: str, reason: str) -> None:
    """Drop an episode; a reason that is one of completions' is written on them too."""
    if reason in get_args(UntrainableReason):
        write.execute(
            "UPDATE completions SET trainable = 0, untrainable_reason = ? "
            "WHERE episode_id = ? AND trainable = 1",
            (reason, episode_id),
        )
    write.set_episode(episode_id, EventKind.EPISODE_DROPPED, state="dropped", dropped_reason=reason)
