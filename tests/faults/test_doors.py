"""What was tried on the doors of the stack, and what it gets: a refusal, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.inference import Gateway, running_gateway
from fakes.roles import chain
from fakes.served import Served
from pydantic import ValidationError

from hermes_tui.cli.main import main
from hermes_tui.config.paths import RunDir
from hermes_tui.config.secrets import Keys, read_keys, weak_keys
from hermes_tui.config.settings import load_config
from hermes_tui_common.errors import ConfigError
from hermes_tui_services.api.protocol import UpstreamFields
from hermes_tui_training.api.learner import RollbackRequest

GOOD = {name: f"sk-{name}-0123456789" for name in Keys.__dataclass_fields__}


@pytest.mark.parametrize("key", [None, "", "  ", "None", "null", 5, True, [], {}, "a b", "ü"])
@pytest.mark.parametrize("name", list(GOOD))
def test_a_key_file_with_something_else_opens_nothing(
    tmp_path: Path, name: str, key: object
) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({**GOOD, name: key}))
    with pytest.raises(ConfigError, match=name) as refused:
        read_keys(RunDir(tmp_path))
    assert "\n" not in str(refused.value)


def test_a_stack_does_not_start_with_a_null_key(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "keys.json").write_text(json.dumps({**GOOD, "control_key": None}))
    command = [sys.executable, "-P", "-m", "hermes_tui.cli.main", "--serve", f"run.dir={run_dir}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "keys.json" in line
    assert "control_key" in line


def test_weak_and_equal_keys_are_said_on_loopback() -> None:
    keys = Keys(**{**GOOD, "agent_admin_key": "areal-agent-admin", "control_key": "short"})
    said = weak_keys(keys)
    assert [line.split()[0] for line in said] == ["agent_admin_key", "control_key"]
    same = Keys(**dict.fromkeys(GOOD, "vG7rXW2mQ9bLk3Tz"))
    assert [line for line in weak_keys(same) if "same" in line]
    assert "areal-agent-admin" not in " ".join(said)


def test_one_key_for_two_open_gateways_is_refused(tmp_path: Path) -> None:
    key = "vG7rXW2mQ9bLk3Tz"
    words = [
        f"services.gateway.admin_api_key={key}",
        f"training.admin_api_key={key}",
        "services.gateway.host=0.0.0.0",
    ]
    with pytest.raises(ConfigError, match="is the same as") as refused:
        load_config(words, environ={}, cwd=tmp_path)
    assert key not in str(refused.value)


@pytest.mark.parametrize("key", ["None", "null", "undefined"])
def test_a_turn_without_a_real_key_is_refused(key: str) -> None:
    with pytest.raises(Exception, match="no key"):
        UpstreamFields(inf_base_url="http://127.0.0.1:1", session_api_key=key).upstream()


async def test_a_turn_to_a_metadata_address_is_not_sent(tmp_path: Path) -> None:
    async with chain(tmp_path) as one:
        body = {"session_api_key": "sk-sess-12345678"}
        for stream in (False, True):
            refused = await one.say(
                "hi", inf_base_url="http://169.254.169.254/latest", stream=stream, **body
            )
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "inf_base_url"
        assert one.agent.seen == []
        assert (await one.say("hi", inf_base_url="http://127.0.0.1:9", **body)).status_code == 200


@pytest.mark.parametrize("service", ["..", ".", "", "a/b", "../x", "/etc", "a\nb", "-x", "~"])
@pytest.mark.parametrize("command", ["stop", "status", "logs"])
def test_a_name_of_a_service_does_not_climb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, service: str
) -> None:
    words = ["agent", command, f"--service={service}", f"run.dir={tmp_path}"]
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 2
    assert "no such service" in capsys.readouterr().err


def test_the_main_stack_survives_agent_stop(tmp_path: Path) -> None:
    with Served.fakes(tmp_path) as stack:
        stack.wait_for("ready")
        words = ["agent", "stop", "--service", "..", f"run.dir={tmp_path}"]
        with pytest.raises(SystemExit):
            main(words)
        assert stack.process.poll() is None
        with stack.http() as http:
            assert http.get("/status").status_code == 200
            for tail in ("9" * 5000, "-1", "x", "1e3", "٣"):
                refused = http.get("/services/router/logs", params={"tail": tail})
                assert refused.status_code == 400
                assert refused.json()["error"]["param"] == "tail"
                assert http.get("/events", params={"after": tail}).status_code == 400
        stack.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", [9223372036854775808, 9223372036854775807, -1, 10**30])
def test_a_version_beyond_all_numbers_is_refused(number: int) -> None:
    with pytest.raises(ValidationError):
        RollbackRequest.model_validate({"version": 0, "target_version": number})


def test_a_directory_that_was_open_is_closed(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    foreign = run_dir.root / "mine"
    opened = [run_dir.root, run_dir.run, run_dir.logs, run_dir.work, run_dir.root / "hermes"]
    for folder in (*opened, foreign):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    files = [run_dir.view, run_dir.trajectories, run_dir.run / "x.json", run_dir.logs / "x.log"]
    for file in files:
        file.write_text("")
        file.chmod(0o644)
    (run_dir.run / "link").symlink_to("/etc/hostname")
    before = Path("/etc/hostname").stat().st_mode
    run_dir.create()
    assert [f"{path.stat().st_mode & 0o777:o}" for path in opened] == ["700"] * len(opened)
    assert [f"{path.stat().st_mode & 0o777:o}" for path in files] == ["600"] * len(files)
    assert foreign.stat().st_mode & 0o777 == 0o755
    assert Path("/etc/hostname").stat().st_mode == before


@pytest.mark.parametrize("place", ["/", os.path.expanduser("~"), "/tmp"])
def test_a_directory_that_others_need_is_not_taken(place: str) -> None:
    before = Path(place).stat().st_mode
    with pytest.raises(ConfigError, match="directory of its own"):
        RunDir(Path(place)).create()
    assert Path(place).stat().st_mode == before


KEY = "sk-sess-abcdefghijklmnop"


@pytest.fixture
async def gateway(tmp_path: Path) -> Any:
    async with running_gateway(tmp_path) as gateway:
        yield gateway


async def test_a_key_sent_as_an_id_does_not_come_back(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    _, key = await gateway.session()
    for sent in (KEY, "areal-admin-key", key):
        for method, path, body in (
            ("POST", "/rl/end_session", {"session_id": sent}),
            ("POST", "/rl/set_reward", {"reward": 1, "session_id": sent}),
            ("POST", "/rl/set_reward", {"reward": 1, "episode_id": sent}),
            ("POST", "/rl/set_reward", {"reward": 1, "interaction_id": sent}),
            ("POST", "/export_trajectories", {"session_ids": [sent]}),
            ("GET", f"/rl/episodes/{sent}", None),
        ):
            answer = await gateway.call(method, path, body)
            assert answer.status_code == 404, (path, answer.text)
            assert sent not in answer.text
    assert KEY not in caplog.text


async def test_numbers_beyond_all_events_are_refused(gateway: Gateway) -> None:
    for number in ("9" * 5000, "-1", str(2**63)):
        for path in ("/rl/events", "/rl/steps"):
            answer = await gateway.call("GET", f"{path}?after={number}")
            if (path, number) != ("/rl/steps", "-1"):
                assert answer.status_code == 400, (path, number)
    assert (await gateway.call("GET", "/rl/episodes?state=lost")).status_code == 400


async def test_a_model_server_that_is_never_called_is_not_registered(gateway: Gateway) -> None:
    body = {"model": "m", "url": "http://169.254.169.254/v1", "api_key": "k"}
    assert (await gateway.call("POST", "/register_model", body)).status_code == 400


async def test_a_description_needs_a_key(gateway: Gateway) -> None:
    assert (await gateway.call("GET", "/openapi.json", key=None)).status_code == 401
    assert (await gateway.call("GET", "/openapi.json")).status_code == 200
