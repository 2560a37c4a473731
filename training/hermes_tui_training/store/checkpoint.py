"""Checkpoint directories ``policy_version_<N>``: written atomically, read, pruned. Free of torch.

A directory appears under its final name by one rename, complete: its files and a ``COMPLETE``
marker were flushed to the disk before. A directory without the marker is never read. Version 0 is
the model itself and has none.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.api.config import CheckpointConfig
from hermes_tui_training.api.learner import RollbackResult, StepResult

logger = logging.getLogger(__name__)

COMPLETE = "COMPLETE"
"""Empty file that a finished checkpoint holds."""

STEP_FILE = "step.json"
"""What made the checkpoint, as JSON of ``StepResult`` or ``RollbackResult``."""

_MADE_BY: TypeAdapter[StepResult | RollbackResult] = TypeAdapter(StepResult | RollbackResult)
_NAME = re.compile(r"policy_version_(\d+)")
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


@contextmanager
def writing(root: Path, version: int) -> Iterator[Path]:
    """Give a directory to fill; on leaving without an error it becomes the version's checkpoint.

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
        (temporary / COMPLETE).touch()
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
    """Size of its files."""


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
    sizes = (file.stat().st_size for file in path.rglob("*") if file.is_file())
    made_at = (path / COMPLETE).stat().st_mtime
    return KeptCheckpoint(version=version, made_at=made_at, num_bytes=sum(sizes))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
