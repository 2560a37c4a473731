"""Checkpoints appear whole or not at all, and are pruned without touching what is needed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.api.config import CheckpointConfig
from hermes_tui_training.store import checkpoint
from hermes_tui_training.store.checkpoint import KeptCheckpoint


def _write(root: Path, *versions: int) -> None:
    for version in versions:
        with checkpoint.writing(root, version) as directory:
            (directory / "weights").write_text(str(version))


def test_a_checkpoint_appears_complete(tmp_path: Path) -> None:
    with checkpoint.writing(tmp_path, 1) as directory:
        (directory / "weights").write_text("1")
        assert not checkpoint.checkpoint_path(tmp_path, 1).exists()
        assert not checkpoint.is_complete(tmp_path, 1)
    assert checkpoint.is_complete(tmp_path, 1)
    assert {p.name for p in (tmp_path / "policy_version_1").iterdir()} == {"COMPLETE", "weights"}
    assert [p.name for p in tmp_path.iterdir()] == ["policy_version_1"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk full"), checkpoint.writing(tmp_path, 1):
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []


def test_a_finished_version_is_never_written_again(tmp_path: Path) -> None:
    _write(tmp_path, 1)
    with pytest.raises(FileExistsError), checkpoint.writing(tmp_path, 1):
        pass
    assert (tmp_path / "policy_version_1" / "weights").read_text() == "1"


def test_what_a_crash_left_is_not_read_and_is_removed(tmp_path: Path) -> None:
    _write(tmp_path, 1)
    (tmp_path / "policy_version_2").mkdir()
    (tmp_path / ".unfinished-3-abcd").mkdir()
    assert checkpoint.complete_versions(tmp_path) == [1]
    checkpoint.remove_unfinished(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["policy_version_1"]
    _write(tmp_path, 2)
    assert checkpoint.complete_versions(tmp_path) == [1, 2]


def test_versions_are_numbers(tmp_path: Path) -> None:
    _write(tmp_path, 2, 10, 9)
    (tmp_path / "policy_version_x").mkdir()
    assert checkpoint.complete_versions(tmp_path) == [2, 9, 10]
    assert checkpoint.complete_versions(tmp_path / "none") == []


def test_pruning_keeps_the_newest_and_the_protected(tmp_path: Path) -> None:
    _write(tmp_path, 1, 2, 3, 4, 5)
    later = time.time() + 1
    config = CheckpointConfig(keep_last=2, keep_all_s=0)
    assert checkpoint.prune(tmp_path, config, protected={2}, now=later) == [1, 3]
    assert checkpoint.complete_versions(tmp_path) == [2, 4, 5]
    config = CheckpointConfig(keep_last=5, keep_all_s=0)
    assert checkpoint.prune(tmp_path, config, protected=(), now=later) == []


def test_what_a_checkpoint_takes_is_counted(tmp_path: Path) -> None:
    _write(tmp_path, 7, 8, 9)  # a byte each
    config = CheckpointConfig(keep_last=1, max_bytes=2)
    assert checkpoint.prune(tmp_path, config, protected=(), now=time.time()) == [7]


MINUTE_S = 60.0


def _kept(config: CheckpointConfig, *protected: int, num: int = 200) -> list[int]:
    """Return what stays of versions made one a minute, of 10 bytes each; the last just now."""
    made = [
        KeptCheckpoint(version=v, made_at=v * MINUTE_S, num_bytes=10) for v in range(1, num + 1)
    ]
    now = num * MINUTE_S
    return sorted(checkpoint.versions_to_keep(made, config, protected=protected, now=now))


def test_checkpoints_are_thinned_out_over_time() -> None:
    tens = list(range(10, 140, 10))
    assert _kept(CheckpointConfig(), 33) == [*sorted([*tens, 33]), *range(140, 201)]


def test_a_bound_on_their_size_keeps_those_that_reach_back() -> None:
    reaching = sorted([*range(10, 200, 10), 197, 198, 199, 200])
    assert _kept(CheckpointConfig(max_bytes=230, keep_last=3)) == reaching
    # Too little even for those: the newest of them, and what is kept in any case.
    assert _kept(CheckpointConfig(max_bytes=50, keep_last=2), 1) == [1, 180, 190, 199, 200]
    assert _kept(CheckpointConfig(max_bytes=1, keep_last=2), 1) == [1, 199, 200]


def test_a_damaged_step_file_is_said(tmp_path: Path) -> None:
    with checkpoint.writing(tmp_path, 1) as directory:
        (directory / checkpoint.STEP_FILE).write_text("{")
    with pytest.raises(TrainingError, match=r"step\.json cannot be read"):
        checkpoint.read_step(tmp_path, 1)
