"""Which version to go on from: the head, found again after whatever happened to the files.

Each lineage (a base model and one of its adapters) has a head of its own, which the store names.
The head's checkpoint is verified before it is used; when it is damaged or gone, the version that it
was made from takes its place, and so on down to 0, the model itself. Steps that the store does not
know, since its file was deleted or is an old copy, are taken from their checkpoints. A version's
number is never given twice, in no lineage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.api.learner import RollbackResult, StepResult
from hermes_tui_training.api.types import LineageId, TrainedCompletion
from hermes_tui_training.store import checkpoint
from hermes_tui_training.store.checkpoint_check import DamagedCheckpointError
from hermes_tui_training.store.store import Store

logger = logging.getLogger(__name__)


class Lineage:
    """Finds heads over a store and its checkpoints. Methods block; one thread at a time."""

    def __init__(
        self,
        store: Store,
        root: Path,
        lineage: LineageId,
        report: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """
        Args:
            store: knows the heads and the steps.
            root: the directory of the checkpoints.
            lineage: the one that is served and trained.
            report: gets all notices whenever there is another one.
        """
        self._store = store
        self._root = root
        self._id = lineage
        self._report = report
        self._parents: dict[int, int] = {}
        self.notices = [store.notice] if store.notice else []
        """What was lost and what took its place, in words, oldest first."""

    def enter(self) -> int:
        """Take the lineage into use, and return its head; a new one begins with version 0."""
        heads, head = self._store.heads, self._store.steps.policy_version()
        left = heads.in_use() or checkpoint.lineage_of(self._root, head) or self._id
        heads.enter(self._id, left)
        if left != self._id:
            self._say(
                f"{self._id.name} has versions of its own in this run directory; what {left.name} "
                f"sampled and is not trained yet waits for it, at version {head}"
            )
        return self._store.steps.policy_version()

    def owns(self, made_by: StepResult | RollbackResult) -> bool:
        """Return whether a step or a rollback made a version of this lineage."""
        return self._of(made_by) == self._id

    def _of(self, made_by: StepResult | RollbackResult) -> LineageId:
        if made_by.base is None:
            known = checkpoint.lineage_of(self._root, made_by.target_version)
            return known or self._id
        return LineageId(base=made_by.base, adapter=made_by.adapter or "")

    def next_version(self) -> int:
        """Return a number that no version has had."""
        return 1 + max(self._store.steps.newest_version(), checkpoint.highest_version(self._root))

    def unrecorded(self) -> list[StepResult | RollbackResult]:
        """Return what made the finished checkpoints that the store does not know, oldest first.

        Those that are damaged are set aside.

        Raises: TrainingError: one cannot be read now.
        """
        recorded = self._store.steps.newest_recorded()
        found = []
        for version in checkpoint.complete_versions(self._root):
            if version <= recorded:
                continue
            try:
                with checkpoint.reading(self._root, version):
                    found.append(checkpoint.read_step(self._root, version))
            except DamagedCheckpointError as error:
                self._set_aside(error)
                self._say(f"{error}; it was set aside")
        return found

    def commit(
        self, result: StepResult | RollbackResult, row: dict[str, Any], *, adopted: bool
    ) -> None:
        """Record what made a version; of an adopted one, say what the store does not know.

        Args:
            result: the step or the rollback.
            row: its row for ``Steps.commit``.
            adopted: as there.
        """
        steps = self._store.steps
        is_next = result.target_version == steps.newest_recorded() + 1
        if isinstance(result, RollbackResult):
            trained: tuple[TrainedCompletion, ...] = ()
            baselines = result.baselines
        else:
            trained, baselines = result.completions, result.facts.baselines
        num_unknown = steps.commit(
            row, trained, baselines, adopted=adopted, lineage=self._of(result)
        )
        if isinstance(result, StepResult):
            steps.drop(result.stale_episode_ids, "stale", known_only=adopted)
        if adopted and (num_unknown or not is_next):
            self._say(
                f"the database did not know version {result.target_version}: it was recorded from "
                f"its checkpoint; {num_unknown} of its {len(row['episode_ids'])} episodes are "
                "forgotten"
            )

    def condemn(self, error: DamagedCheckpointError) -> None:
        """Set a checkpoint aside that somebody could not load."""
        self._set_aside(error)

    def settle(self) -> int:
        """Return the head; when its weights are lost, go on from the version it was made from.

        Raises: TrainingError: its checkpoint cannot be read now.
        """
        head = version = self._store.steps.policy_version()
        reasons = []
        while version > 0 and (reason := self._why_lost(version)) is not None:
            reasons.append(reason)
            version = self._older(version)
        if version != head:
            taken = f"version {version}" if version else "the model that training began with"
            text = f"{reasons[0]}; {taken} serves, and training goes on from it"
            baselines = checkpoint.read_baselines(self._root, version)
            self._store.steps.go_back(version, baselines, lost_version=head, reason=text)
            self._say(text)
        return version

    def _why_lost(self, version: int) -> str | None:
        """Return what is wrong with a version's checkpoint, or None; a damaged one is set aside."""
        try:
            with checkpoint.reading(self._root, version):
                checkpoint.read_step(self._root, version)
        except DamagedCheckpointError as error:
            self._set_aside(error)
            return str(error)
        return None

    def _older(self, version: int) -> int:
        """Return the version that a lost one was made from, as far as that is known."""
        older = [v for v in checkpoint.versions_of(self._root, self._id) if v < version]
        parent = self._parents.get(version)
        if parent is None:
            rows = self._store.steps.rows(after=version - 1, limit=1)
            if rows and rows[0]["step"] == version:
                parent = rows[0].get("rolled_back_to")
        if parent is None or (parent > 0 and parent not in older):
            return max(older, default=0)
        return parent

    def _set_aside(self, error: DamagedCheckpointError) -> None:
        parent = checkpoint.read_parent(self._root, error.version)
        if parent is not None:
            self._parents[error.version] = parent
        try:
            checkpoint.set_aside(self._root, error.version, error.reason)
        except FileNotFoundError:
            pass  # gone altogether
        except OSError as moving:
            raise TrainingError(f"{error}; it cannot be set aside: {moving}") from moving

    def _say(self, text: str) -> None:
        logger.warning("%s", text)
        if text not in self.notices:
            self.notices.append(text)
            self._report(self.notices)
