"""``doctor --report`` holds what helps to find a fault, and no key."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fakes.served import Served

from hermes_tui.cli.main import cli
from hermes_tui.config.paths import RunDir

SESSION_KEY = "sk-sess-" + "s" * 43
WORKER_KEY = "worker-made-up-key"
SECRETS = {
    "training.admin_api_key": "training-made-up-key",
    "services.gateway.admin_api_key": 'gateway-"made\\up"-key',
    "upstream.api_key": "upstream-made-up-key",
}
FOREIGN = ("sk-proj-abcdefghijklmnop", "ey-bearer-made-up", "ada:pass-word", "env-made-up-token")


def doctor(report: Path, run_dir: RunDir, *words: str) -> Result:
    args = ["doctor", "--report", str(report), f"run.dir={run_dir.root}", *words]
    return CliRunner().invoke(cli, args)


def contents(report: Path) -> dict[str, str]:
    with zipfile.ZipFile(report) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    return run_dir


def test_no_key_is_in_a_report(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", FOREIGN[3])
    keys = {f"{name}_key": f"sk-{name}-made-up" for name in ("agent_admin", "control")}
    run_dir.keys.write_text(json.dumps({**keys, "inference_admin_key": "k-inference"}))
    run_dir.config_file("worker-0").write_text(json.dumps({"inner": [{"admin_key": WORKER_KEY}]}))
    all_keys = [*keys.values(), "k-inference", *SECRETS.values(), SESSION_KEY, WORKER_KEY, *FOREIGN]
    log = "\n".join(f"got {key}" for key in all_keys)
    log = log.replace("got ey-", "got Bearer ey-").replace("got ada", "got http://ada")
    log = log.replace("pass-word", "pass-word@host/")
    log += "\n" + json.dumps({"config": SECRETS}) + "\nthe end"
    run_dir.log("trainer").write_text(log)

    overrides = [f"{key}={json.dumps(value)}" for key, value in SECRETS.items()]
    result = doctor(tmp_path / "report.zip", run_dir, *overrides, 'tui.theme="nord"')

    assert "wrote" in result.output
    parts = contents(tmp_path / "report.zip")
    assert parts["logs/trainer.log"].endswith("the end")
    text = "\n".join(parts.values())
    escaped = [json.dumps(key)[1:-1] for key in all_keys]
    assert [key for key in (*all_keys, *escaped) if key in text] == []
    assert json.loads(parts["configuration.json"])["tui"]["theme"] == "nord"
    assert (tmp_path / "report.zip").stat().st_mode & 0o777 == 0o600


def test_what_is_in_a_report(run_dir: RunDir, tmp_path: Path) -> None:
    with closing(sqlite3.connect(run_dir.conversations)) as db:
        db.execute("CREATE TABLE sessions (x TEXT)")
        db.execute("INSERT INTO sessions VALUES ('what was said')")
        db.commit()
    run_dir.trajectories.write_bytes(b"no database" * 1000)
    version = run_dir.checkpoints / "policy_version_3"
    version.mkdir(parents=True)
    (version / "step.json").write_text('{"base_version": 2, "secret": 1}')
    (run_dir.checkpoints / "damaged-policy_version_4-x").mkdir()
    (run_dir.checkpoints / "damaged-policy_version_4-x" / "damage.txt").write_text("cut")

    doctor(tmp_path / "report.zip", run_dir)

    parts = contents(tmp_path / "report.zip")
    assert "hermes-tui" in parts["doctor.txt"]
    assert "nothing runs in" in parts["not-answered.txt"]
    databases = json.loads(parts["databases.json"])
    assert databases["conversations.db"]["rows"] == {"sessions": 1}
    assert databases["conversations.db"]["check"] == "ok"
    assert databases["trajectories.db"]["check"] == "file is not a database"
    damaged, third = json.loads(parts["checkpoints.json"])
    assert (third["name"], third["base_version"]) == ("policy_version_3", 2)
    assert damaged["damage.txt"] == "cut"
    assert "what was said" not in "\n".join(parts.values())


def test_a_report_overwrites_nothing(run_dir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "report.zip").write_text("mine")
    result = doctor(tmp_path / "report.zip", run_dir)
    assert "File exists; name another file" in str(result.exception)
    assert (tmp_path / "report.zip").read_text() == "mine"


def test_a_running_stack_says_how_it_is(run_dir: RunDir, tmp_path: Path) -> None:
    with Served.fakes(run_dir.root) as served:
        served.wait_for("ready")
        doctor(tmp_path / "report.zip", run_dir)
        keys = json.loads(run_dir.keys.read_text()).values()
    parts = contents(tmp_path / "report.zip")
    assert json.loads(parts["status.json"])["state"] == "ready"
    assert json.loads(parts["health.json"])["router"] == {"status": "ok", "problem": ""}
    assert "cpu_percent" in json.loads(parts["system.json"])
    assert "ready role=router" in parts["logs/router.log"]
    assert [key for key in keys if key in "".join(parts.values())] == []
