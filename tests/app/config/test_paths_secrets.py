"""The run directory and its keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes_tui.config.paths import RunDir
from hermes_tui.config.secrets import ensure_keys, read_keys
from hermes_tui.config.settings import load_config
from hermes_tui_common.errors import ConfigError


def run_dir_of(*words: str, **environ: str) -> RunDir:
    return RunDir.of(load_config(words, path=None, environ=environ, cwd=Path("/")), environ)


def test_where_the_run_directory_is(tmp_path: Path) -> None:
    assert run_dir_of(XDG_STATE_HOME="/s").root == Path("/s/hermes-tui")
    assert run_dir_of(HERMES_TUI_HOME="/h", XDG_STATE_HOME="/s").root == Path("/h")
    assert run_dir_of("run.dir=/w", HERMES_TUI_HOME="/h").root == Path("/w")
    assert run_dir_of("run.dir=~/w").root == Path.home() / "w"


def test_made_for_the_owner_only(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "new" / "run")
    run_dir.create()
    run_dir.create()
    for folder in (run_dir.root, run_dir.run, run_dir.logs):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run\.dir: .* cannot be made"):
        RunDir(tmp_path / "file" / "run").create()


def test_keys_are_minted_once_and_private(tmp_path: Path) -> None:
    config = load_config(path=None, environ={}, cwd=tmp_path)
    run_dir = RunDir(tmp_path)
    assert read_keys(run_dir) is None
    keys = ensure_keys(run_dir, config)
    assert ensure_keys(run_dir, config) == keys == read_keys(run_dir)
    assert len(set(keys.values())) == 3
    assert all(len(key) >= 43 for key in keys.values())
    assert run_dir.keys.stat().st_mode & 0o777 == 0o600
    assert not [key for key in keys.values() if key in repr(keys)]
    assert set(json.loads(run_dir.keys.read_text())) == {
        "agent_admin_key",
        "inference_admin_key",
        "control_key",
    }


def test_keys_of_the_configuration_win(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    minted = ensure_keys(run_dir, load_config(path=None, environ={}, cwd=tmp_path))
    words = ("services.gateway.admin_api_key=mine", "training.admin_api_key=other")
    keys = ensure_keys(run_dir, load_config(words, path=None, environ={}, cwd=tmp_path))
    assert (keys.agent_admin_key, keys.inference_admin_key) == ("mine", "other")
    assert keys.control_key == minted.control_key
    assert read_keys(run_dir) == keys


def test_readable_key_file_is_closed_again(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    config = load_config(path=None, environ={}, cwd=tmp_path)
    ensure_keys(run_dir, config)
    run_dir.keys.chmod(0o644)
    ensure_keys(run_dir, config)
    assert run_dir.keys.stat().st_mode & 0o777 == 0o600


def test_broken_key_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    with pytest.raises(ConfigError, match="no valid key file"):
        read_keys(RunDir(tmp_path))
