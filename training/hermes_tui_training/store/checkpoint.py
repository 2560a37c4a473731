"""Checkpoint directories ``policy_version_<N>``: written atomically, read, pruned. Free of torch.

A directory appears under its final name by one rename, complete: its files and a ``COMPLETE``
marker were flushed to the disk before. A directory without the marker is never read. The marker
names every file with its checksum (``checkpoint_check``). Version 0 is the model itself and has
none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.api.config import CheckpointConfig
from hermes_tui_training.api.learner import RollbackResult, StepResult
from hermes_tui_training.api.types import LineageId
from hermes_tui_training.store.checkpoint_check import (
    DamagedCheckpointError,
    Manifest,
    describe,
    read_manifest,
    require_whole,
)

logger = logging.getLogger(__name__)

COMPLETE = "COMPLETE"
"""File that a finished checkpoint holds: its manifest, or nothing in an old one."""

STEP_FILE = "step.json"
"""What made the checkpoint, as JSON of ``StepResult`` or ``RollbackResult``."""

_OLD_STATE = "training_state.json"
"""Names the model, in checkpoints from before their manifest did."""

DAMAGE_FILE = "damage.txt"
"""In a checkpoint that was set aside: what is wrong with it."""

_MADE_BY: TypeAdapter[StepResult | RollbackResult] = TypeAdapter(StepResult | RollbackResult)
_NAME = re.compile(r"policy_version_(\d+)")
_ANY_NAME = re.compile(r"(?:damaged-)?policy_version_(\d+)(?:-.*)?")
_UNFINISHED = ".unfinished-"


def checkpoint_path(root: Path, version: int) -> Path:
    """Return where a version's checkpoint is, or would be."""
    return root / f"policy_version_{version}"


def is_complete(root: Path, version: int) -> bool:
    """Return whether a version has a finished checkpoint."""
    return (checkpoint_path(root, version) / COMPLETE).exists()


def complete_versions(root: Path) -> list[int]:
    """Return the versions with a finished checkpoint, ascending."""
    if not root.exists():
        return []
    found = (_NAME.fullmatch(path.name) for path in root.iterdir())
    return sorted(v for m in found if m and is_complete(root, v := int(m[1])))


class _OldState(BaseModel):
    """What checkpoints said of their model before their manifest did."""

    model: str


def lineage_of(root: Path, version: int) -> LineageId | None:
    """Return what a finished checkpoint is a version of; None when it does not say."""
    path = checkpoint_path(root, version)
    try:
        manifest = read_manifest(path)
        if manifest is not None and manifest.base:
            return LineageId(base=manifest.base, adapter=manifest.adapter)
        state = (path / _OLD_STATE).read_text(encoding="utf-8")
        return LineageId(base=_OldState.model_validate_json(state).model)
    except (OSError, ValueError):
        return None  # damaged, which whoever loads it finds out


def versions_of(root: Path, lineage: LineageId) -> list[int]:
    """Return the versions of a lineage with a finished checkpoint, ascending.

    Those that do not say what they are of belong to every one.
    """
    return [v for v in complete_versions(root) if lineage_of(root, v) in (None, lineage)]


def highest_version(root: Path) -> int:
    """Return the highest number that a checkpoint has or had, damaged ones included; 0 without."""
    if not root.exists():
        return 0
    found = (_ANY_NAME.fullmatch(path.name) for path in root.iterdir())
    return max((int(m[1]) for m in found if m), default=0)


def read_parent(root: Path, version: int) -> int | None:
    """Return the version that a version was made from; None when its step file cannot be read."""
    try:
        made_by = read_step(root, version)
    except TrainingError:
        return None
    return parent_of(made_by)


def parent_of(made_by: StepResult | RollbackResult) -> int:
    """Return the version that a step or a rollback started from."""
    if isinstance(made_by, RollbackResult):
        return made_by.rolled_back_to
    return made_by.base_version


@contextlib.contextmanager
def reading(root: Path, version: int) -> Iterator[None]:
    """Verify a checkpoint before the block loads it.

    Raises:
        DamagedCheckpointError: it is gone, or its files are not what was written. Of an old
            checkpoint, without a manifest, a file that the block cannot read tells that.
        TrainingError: it cannot be read now, or the block raised it.
    """
    path = checkpoint_path(root, version)
    if not is_complete(root, version):
        raise DamagedCheckpointError(version, "it is gone")
    require_whole(path, version)
    try:
        yield
    except TrainingError as error:
        if read_manifest(path) is None:
            raise DamagedCheckpointError(version, str(error)) from error
        raise


def set_aside(root: Path, version: int, reason: str) -> Path:
    """Take a damaged checkpoint out of use, keep its files, and return where they are.

    Args:
        reason: what is wrong with it; written beside its files.
    """
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    path = checkpoint_path(root, version)
    aside = root / f"damaged-{path.name}-{stamp}-{secrets.token_hex(2)}"
    path.rename(aside)
    logger.error("checkpoint set aside version=%s path=%s: %s", version, aside, reason)
    with contextlib.suppress(OSError):  # on a full disk it is said elsewhere
        (aside / DAMAGE_FILE).write_text(f"{reason}\n", encoding="utf-8")
    return aside


def read_step(root: Path, version: int) -> StepResult | RollbackResult:
    """Return the step or the rollback that made a version.

    Raises: TrainingError: the checkpoint's step file is missing or damaged.
    """
    path = checkpoint_path(root, version) / STEP_FILE
    try:
        return _MADE_BY.validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise TrainingError(f"{path} cannot be read: {error}") from error


def read_baselines(root: Path, version: int) -> dict[str, float]:
    """Return the baselines as they were after a version; none for version 0.

    Raises: TrainingError: as ``read_step``.
    """
    if version == 0:
        return {}
    made_by = read_step(root, version)
    return made_by.facts.baselines if isinstance(made_by, StepResult) else made_by.baselines


@contextlib.contextmanager
def writing(
    root: Path, version: int, *, base: str = "", adapter: str = "", parent: int | None = None
) -> Iterator[Path]:
    """Give a directory to fill; on leaving without an error it becomes the version's checkpoint.

    Args:
        root: the directory of the checkpoints.
        version: the version to make.
        base: ``model.path`` that it is trained from.
        adapter: which of the base's adapters it is.
        parent: the version that it was made from; None when it is not known.

    Raises: FileExistsError: the version has a finished checkpoint.
    """
    target = checkpoint_path(root, version)
    if is_complete(root, version):
        raise FileExistsError(f"{target} is finished")
    root.mkdir(parents=True, exist_ok=True)
    temporary = root / f"{_UNFINISHED}{version}-{secrets.token_hex(4)}"
    temporary.mkdir(mode=0o700)
    try:
        yield temporary
        manifest = Manifest(base=base, adapter=adapter, parent=parent, files=describe(temporary))
        (temporary / COMPLETE).write_text(manifest.model_dump_json(), encoding="utf-8")
        for path in [*temporary.rglob("*"), temporary]:
            _flush(path)
        shutil.rmtree(target, ignore_errors=True)  # can only be one without the marker
        temporary.rename(target)
        _flush(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_unfinished(root: Path) -> None:
    """Delete what a crash left half written or deleted; only while nothing is being written."""
    halves = [path for path in root.glob("policy_version_*") if not (path / COMPLETE).exists()]
    for path in [*root.glob(f"{_UNFINISHED}*"), *halves]:
        logger.info("removed unfinished checkpoint path=%s", path.name)
        shutil.rmtree(path, ignore_errors=True)


def prune(
    root: Path, config: CheckpointConfig, *, protected: Collection[int], now: float
) -> list[int]:
    """Delete the checkpoints that are kept no longer and return their versions.

    Args:
        root: the directory of the checkpoints.
        config: how many are kept, how thin, and how much they may take.
        protected: versions that stay in any case: served, pinned, or the next step's base.
        now: seconds since the epoch.
    """
    made = [_kept(root, version) for version in complete_versions(root)]
    keep = versions_to_keep(made, config, protected=protected, now=now)
    removed = [one.version for one in made if one.version not in keep]
    for version in removed:
        path = checkpoint_path(root, version)
        # Without its marker first: a crash half way must not leave a directory that looks whole.
        (path / COMPLETE).unlink()
        shutil.rmtree(path, ignore_errors=True)
    return removed


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoint:
    """A finished checkpoint on disk."""

    version: int
    """The version that it holds."""
    made_at: float
    """When it was finished, seconds since the epoch."""
    num_bytes: int
    """Size of its files without the marker."""


def versions_to_keep(
    made: Sequence[KeptCheckpoint],
    config: CheckpointConfig,
    *,
    protected: Collection[int],
    now: float,
) -> set[int]:
    """Return the versions that stay: all recent ones, one in so many of the older ones.

    When they take too much, those that reach back are worth more than one of many recent ones: the
    ``keep_every``-th ones come first, newest first, then the others.

    Args:
        made: the finished checkpoints, ascending by version.
        config, protected, now: as for ``prune``.
    """
    newest = {one.version for one in made[-config.keep_last :]}
    keep = {one.version for one in made if one.version in newest or one.version in protected}
    num_bytes = sum(one.num_bytes for one in made if one.version in keep)
    for one in sorted(made, key=lambda one: (one.version % config.keep_every != 0, -one.version)):
        thinned_out = one.version % config.keep_every != 0
        if one.version in keep or (thinned_out and now - one.made_at > config.keep_all_s):
            continue
        num_bytes += one.num_bytes
        if config.max_bytes and num_bytes > config.max_bytes:
            break
        keep.add(one.version)
    return keep


def _kept(root: Path, version: int) -> KeptCheckpoint:
    path = checkpoint_path(root, version)
    files = (file for file in path.rglob("*") if file.is_file() and file.name != COMPLETE)
    sizes = (file.stat().st_size for file in files)
    made_at = (path / COMPLETE).stat().st_mtime
    return KeptCheckpoint(version=version, made_at=made_at, num_bytes=sum(sizes))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
