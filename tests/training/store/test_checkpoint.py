"""Checkpoints appear whole or not at all, and are pruned without touching what is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.store import checkpoint


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
    assert checkpoint.prune(tmp_path, keep_last=2, protected={2}) == [1, 3]
    assert checkpoint.complete_versions(tmp_path) == [2, 4, 5]
    assert checkpoint.prune(tmp_path, keep_last=5, protected=()) == []


def test_a_damaged_step_file_is_said(tmp_path: Path) -> None:
    with checkpoint.writing(tmp_path, 1) as directory:
        (directory / checkpoint.STEP_FILE).write_text("{")
    with pytest.raises(TrainingError, match=r"step\.json cannot be read"):
        checkpoint.read_step(tmp_path, 1)
