"""Backups of a run directory whose databases are written to, and what a restore refuses."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_tui.backup import making
from hermes_tui.backup.contents import Contents
from hermes_tui.backup.copies import Copies
from hermes_tui.backup.making import back_up
from hermes_tui.backup.manifest import BackupError
from hermes_tui.backup.restoring import restore
from hermes_tui.config.paths import RunDir
from hermes_tui.core.errors import AlreadyRunningError
from hermes_tui.supervisor.lock import hold_lock
from hermes_tui_common.disk import DiskFullError
from hermes_tui_common.errors import ConfigError

TARGETS = pytest.mark.parametrize("name", ["copy", "copy.tar", "copy.tar.gz"])
KEYS = {"agent_admin_key": "a", "inference_admin_key": "b", "control_key": "c"}


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Return a run directory such as a stack leaves it."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    run_dir.keys.write_text(json.dumps(KEYS))
    run_dir.keys.chmod(0o600)
    for path in (run_dir.conversations, run_dir.trajectories):
        make_database(path)
    for version in (1, 2):
        add_checkpoint(run_dir, version)
    (run_dir.checkpoints / "policy_version_3").mkdir()
    (run_dir.checkpoints / "policy_version_3" / "half").write_text("not finished")
    (run_dir.checkpoints / ".unfinished-4-ab").mkdir()
    (run_dir.root / "trajectories.db.damaged-2026").write_text("old")
    run_dir.log("trainer").write_text("a line\n")
    session = run_dir.work / "ada"
    session.mkdir(parents=True)
    (session / "script.sh").write_text("echo hello\n")
    (session / "script.sh").chmod(0o750)
    (session / "latest").symlink_to("script.sh")
    make_database(session / "notes.sqlite")
    return run_dir


def make_database(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, twin INTEGER) STRICT")
        db.execute("INSERT INTO rows VALUES (1, 1)")
        db.commit()


def numbers_in(path: Path) -> list[tuple[int, int]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT number, twin FROM rows ORDER BY number").fetchall()


def add_checkpoint(run_dir: RunDir, version: int) -> None:
    folder = run_dir.checkpoints / f"policy_version_{version}"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(bytes([version]) * 1000)
    (folder / "COMPLETE").write_text("{}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Add rows in one transaction after the other, as a running stack does."""
    done, begun = threading.Event(), threading.Event()

    def write() -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            number = 2
            while not done.is_set():
                db.execute("BEGIN IMMEDIATE")
                db.execute("INSERT INTO rows VALUES (?, 0)", (number,))
                db.execute("UPDATE rows SET twin = number WHERE number = ?", (number,))
                db.execute("COMMIT")
                number += 1
                begun.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert begun.wait(30)
    try:
        yield
    finally:
        done.set()
        thread.join()


@TARGETS
def test_a_restored_copy_is_what_was_there(run_dir: RunDir, tmp_path: Path, name: str) -> None:
    with writing(run_dir.trajectories):
        manifest = back_up(run_dir, tmp_path / "backups" / name)
    assert manifest.left_out == ()
    restored = RunDir(tmp_path / "elsewhere" / "run")
    restore(tmp_path / "backups" / name, restored)
    rows = numbers_in(restored.trajectories)
    assert rows == [(number, number) for number in range(1, len(rows) + 1)]
    assert len(rows) > 1
    assert numbers_in(restored.conversations) == [(1, 1)]
    assert json.loads(restored.keys.read_text()) == KEYS
    session = restored.work / "ada"
    assert (session / "script.sh").read_text() == "echo hello\n"
    assert numbers_in(session / "notes.sqlite") == [(1, 1)]
    assert os.readlink(session / "latest") == "script.sh"
    assert {path.name: path.stat().st_mode & 0o777 for path in restored.root.iterdir()} == {
        "keys.json": 0o600,
        "conversations.db": 0o600,
        "trajectories.db": 0o600,
        "checkpoints": 0o700,
        "work": 0o700,
    }
    assert (session / "script.sh").stat().st_mode & 0o777 == 0o750
    assert restored.root.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in restored.checkpoints.iterdir()) == [
        "policy_version_1",
        "policy_version_2",
    ]
    weights = restored.checkpoints / "policy_version_2" / "adapter_model.safetensors"
    assert weights.read_bytes() == bytes([2]) * 1000


def test_what_a_backup_takes(run_dir: RunDir, tmp_path: Path) -> None:
    """On the same file system weights take no room twice, and nobody else can read the copy."""
    target = tmp_path / "copy"
    back_up(run_dir, target)
    weights = "checkpoints/policy_version_1/adapter_model.safetensors"
    assert os.path.samefile(target / weights, run_dir.root / weights)
    assert target.stat().st_mode & 0o777 == 0o700
    assert (target / "keys.json").stat().st_mode & 0o777 == 0o600
    assert not list(target.rglob("*-wal"))
    back_up(run_dir, tmp_path / "copy.tar")
    assert (tmp_path / "copy.tar").stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "copy.tar", "run"]


def test_both_databases_show_one_moment(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written while files are copied is in neither of them."""
    take = Copies.take

    def write_first(copies: Copies, contents: Contents, snapshots: dict[Path, object]) -> None:
        for path in (run_dir.conversations, run_dir.trajectories):
            with contextlib.closing(sqlite3.connect(path)) as db:
                db.execute("INSERT INTO rows VALUES (2, 2)")
                db.commit()
        take(copies, contents, snapshots)  # type: ignore[arg-type]

    monkeypatch.setattr(Copies, "take", write_first)
    back_up(run_dir, tmp_path / "copy")
    assert numbers_in(tmp_path / "copy" / "conversations.db") == [(1, 1)]
    assert numbers_in(tmp_path / "copy" / "trajectories.db") == [(1, 1)]
    assert numbers_in(run_dir.trajectories) == [(1, 1), (2, 2)]


def test_a_checkpoint_that_is_deleted_meanwhile_is_left_out(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def delete_first(source: Path, target: Path) -> None:
        if "policy_version_1" in str(source):
            shutil.rmtree(run_dir.checkpoints / "policy_version_1", ignore_errors=True)
        link(source, target)

    monkeypatch.setattr("hermes_tui.backup.copies.os.link", delete_first)
    manifest = back_up(run_dir, tmp_path / "copy")
    assert manifest.left_out == ("checkpoints/policy_version_1: was deleted meanwhile",)
    assert [p.name for p in (tmp_path / "copy" / "checkpoints").iterdir()] == ["policy_version_2"]


def test_without_links_checkpoints_are_copied(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("hermes_tui.backup.copies.os.link", refuse)
    back_up(run_dir, tmp_path / "copy")
    weights = "checkpoints/policy_version_1/adapter_model.safetensors"
    assert (tmp_path / "copy" / weights).read_bytes() == bytes([1]) * 1000
    assert not os.path.samefile(tmp_path / "copy" / weights, run_dir.root / weights)


def test_agent_services_are_copied_too(run_dir: RunDir, tmp_path: Path) -> None:
    service = RunDir(run_dir.root / "agents" / "mine")
    service.create()
    make_database(service.conversations)
    back_up(run_dir, tmp_path / "copy")
    restored = RunDir(tmp_path / "restored")
    restore(tmp_path / "copy", restored)
    assert [path.name for path in (restored.root / "agents" / "mine").iterdir()] == [
        "conversations.db"
    ]


@TARGETS
def test_what_fails_half_way_leaves_nothing(
    run_dir: RunDir, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(making, "write_private", full)
    with pytest.raises(DiskFullError, match="the disk is full"):
        back_up(run_dir, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_there_must_be_room(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(run_dir, tmp_path / "copy")
    monkeypatch.setattr("hermes_tui_common.disk.free_of", lambda path: 100)
    with pytest.raises(DiskFullError, match="0 MB free, 16 MB needed in"):
        back_up(run_dir, tmp_path / "second")
    restored = RunDir(tmp_path / "restored")
    with pytest.raises(DiskFullError):
        restore(tmp_path / "copy", restored)
    assert not restored.root.exists()


def test_a_damaged_database_is_named(run_dir: RunDir, tmp_path: Path) -> None:
    data = bytearray(run_dir.trajectories.read_bytes())
    data[4096:] = b"x" * len(data[4096:])
    run_dir.trajectories.write_bytes(data)
    with pytest.raises(BackupError, match=r"trajectories\.db cannot be backed up \("):
        back_up(run_dir, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_damaged_database_of_a_tool_is_copied_as_it_is(run_dir: RunDir, tmp_path: Path) -> None:
    notes = run_dir.work / "ada" / "notes.sqlite"
    notes.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    back_up(run_dir, tmp_path / "copy")
    assert (tmp_path / "copy" / "work" / "ada" / "notes.sqlite").read_bytes() == notes.read_bytes()


def test_where_a_backup_may_go(run_dir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for target, said in [
        (tmp_path / "there", "exists; name"),
        (run_dir.root / "copy", "is inside of"),
    ]:
        with pytest.raises(ConfigError, match=said):
            back_up(run_dir, target)
    with pytest.raises(ConfigError, match="holds nothing to back up"):
        back_up(RunDir(tmp_path / "nothing"), tmp_path / "copy")


def test_what_a_restore_refuses_to_overwrite(run_dir: RunDir, tmp_path: Path) -> None:
    back_up(run_dir, tmp_path / "copy")
    with pytest.raises(ConfigError, match="is not empty, and nothing is overwritten"):
        restore(tmp_path / "copy", run_dir)
    with hold_lock(run_dir, print), pytest.raises(AlreadyRunningError):
        restore(tmp_path / "copy", run_dir)
    empty = RunDir(tmp_path / "empty")
    empty.root.mkdir()
    restore(tmp_path / "copy", empty)
    assert numbers_in(empty.conversations) == [(1, 1)]


def test_a_folder_without_its_manifest_is_no_backup(run_dir: RunDir, tmp_path: Path) -> None:
    back_up(run_dir, tmp_path / "copy")
    (tmp_path / "copy" / "backup.json").unlink()
    with pytest.raises(BackupError, match="is no whole backup"):
        restore(tmp_path / "copy", RunDir(tmp_path / "restored"))


@pytest.mark.parametrize("damage", ["scribbled", "cut", "gone"])
def test_a_damaged_file_is_named_and_nothing_is_made(
    run_dir: RunDir, tmp_path: Path, damage: str
) -> None:
    back_up(run_dir, tmp_path / "copy")
    file = tmp_path / "copy" / "conversations.db"
    data = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if damage == "cut" else bytes([*data[:-1], data[-1] ^ 1]))
    with pytest.raises(BackupError, match=r"copy is damaged: conversations\.db"):
        restore(tmp_path / "copy", RunDir(tmp_path / "restored"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "run"]


@pytest.mark.parametrize("name", ["copy.tar", "copy.tar.gz"])
@pytest.mark.parametrize("kept_frac", [0.0, 0.02, 0.6])
def test_a_cut_archive_is_no_backup(
    run_dir: RunDir, tmp_path: Path, name: str, kept_frac: float
) -> None:
    archive = tmp_path / name
    back_up(run_dir, archive)
    archive.write_bytes(archive.read_bytes()[: int(kept_frac * archive.stat().st_size)])
    with pytest.raises((BackupError, ConfigError), match=r"is no (whole )?backup|is damaged"):
        restore(archive, RunDir(tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_a_manifest_that_leads_out_of_the_directory_is_refused(
    run_dir: RunDir, tmp_path: Path, name: str
) -> None:
    back_up(run_dir, tmp_path / "copy")
    manifest = json.loads((tmp_path / "copy" / "backup.json").read_text())
    manifest["files"][name] = manifest["files"]["keys.json"]
    (tmp_path / "copy" / "backup.json").write_text(json.dumps(manifest))
    with pytest.raises(BackupError, match="no place in a backup"):
        restore(tmp_path / "copy", RunDir(tmp_path / "restored"))


def test_a_backup_of_a_newer_version_is_refused(run_dir: RunDir, tmp_path: Path) -> None:
    back_up(run_dir, tmp_path / "copy")
    manifest = json.loads((tmp_path / "copy" / "backup.json").read_text())
    (tmp_path / "copy" / "backup.json").write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(BackupError, match="newer version"):
        restore(tmp_path / "copy", RunDir(tmp_path / "restored"))


def test_the_archive_begins_with_its_manifest(run_dir: RunDir, tmp_path: Path) -> None:
    back_up(run_dir, tmp_path / "copy.tar")
    with tarfile.open(tmp_path / "copy.tar") as archive:
        assert archive.getnames()[0] == "backup.json"
