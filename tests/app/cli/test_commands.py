"""The commands against a real agent service in the background, its model a scripted one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import upstream as scripted
from fakes.served import is_alive, until
from fakes.upstream import Asked, Reply, Upstream, say

from hermes_tui.config.paths import RunDir
from hermes_tui.supervisor.lock import lock_owner

TIMEOUT_S = 100


class Shell:
    """Runs the program as a person would, in one home."""

    def __init__(self, home: Path, upstream: str) -> None:
        self.home = home
        self._environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HERMES_TUI__")},
            "HERMES_TUI_HOME": str(home),
            "HERMES_UPSTREAM_BASE_URL": upstream,
            "HERMES_UPSTREAM_API_KEY": "sk-upstream-secret",
            "HERMES_UPSTREAM_MODEL": "scripted",
        }

    def open(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "hermes_tui.cli.main", *args],
            stdout=subprocess.PIPE,
            text=True,
            env=self._environ,
            cwd=self.home,
            # What a shell runs in the background, it and its children ignore this signal.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *args: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "hermes_tui.cli.main", *args],
            input=typed,
            capture_output=True,
            text=True,
            env=self._environ,
            cwd=self.home,
            timeout=TIMEOUT_S,
            check=False,
        )


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with scripted.running() as server:
        yield server


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("home"), upstream.url)
    started = shell.run("agent", "run", "--num-pairs", "1", "--admin-api-key", "sk-123456")
    assert started.returncode == 0, started.stderr
    assert "Started agent service 'default'." in started.stdout
    yield shell
    shell.run("agent", "stop")


def in_turn(*replies: Reply) -> Callable[[Asked], Reply]:
    rest = iter(replies)
    return lambda _: next(rest)


def gateway_of(shell: Shell) -> str:
    rows = json.loads(shell.run("agent", "ps", "--json").stdout)
    assert [(row["service"], row["state"]) for row in rows] == [("default", "running")]
    return str(rows[0]["gateway"])


def test_chat_streams_and_keeps_the_conversation(shell: Shell, upstream: Upstream) -> None:
    upstream.script = in_turn(say("Hello", " Ada", "."), say("You are Ada."))
    typed = "I am Ada.\n\nWho am I?\nquit\n"
    done = shell.run("chat", gateway_of(shell), "--admin-api-key", "sk-123456", typed=typed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Session: hermes-")
    assert "Agent: Hello Ada.\n" in done.stdout
    assert "Agent: You are Ada.\n" in done.stdout
    asked = [m["content"] for m in upstream.chats[-1].messages if m["role"] != "system"]
    assert asked == ["I am Ada.", "Hello Ada.", "Who am I?"]
    assert upstream.chats[-1].key == "sk-upstream-secret"


def test_chat_shows_a_failure_and_goes_on(shell: Shell, upstream: Upstream) -> None:
    upstream.script = in_turn(Reply(status=400, error="the model is tired"), say("Better."))
    words = ("--admin-api-key", "sk-123456")
    done = shell.run("chat", gateway_of(shell), *words, typed="one\ntwo\n")
    assert done.returncode == 0
    assert "the model is tired" in done.stdout
    assert "Agent: Better." in done.stdout


def test_chat_refuses_half_a_route(shell: Shell) -> None:
    done = shell.run("chat", "http://127.0.0.1:1", "--inf-base-url", "http://127.0.0.1:2")
    assert done.returncode == 2
    assert "go together" in done.stderr


def test_a_key_of_ours_goes_to_no_other_gateway(shell: Shell) -> None:
    done = shell.run("session", "start", "http://127.0.0.1:1")
    assert done.returncode == 1  # nothing runs in the main run directory
    assert done.stderr.startswith("error: nothing runs in")


def test_status_and_logs(shell: Shell) -> None:
    shown = shell.run("agent", "status")
    assert shown.returncode == 0
    for name in ("agent-gateway", "router", "worker-0", "data-proxy-0"):
        assert f"\n{name} " in shown.stdout
    assert json.loads(shell.run("agent", "status", "--json").stdout)["state"] == "ready"
    named = json.loads(shell.run("agent", "status", "--json").stdout)
    assert named["gateway"]["url"] == named["agent_gateway"] == gateway_of(shell)
    assert named["pairs"][0]["worker"]["state"] == "ready"
    for component, name in (("gateway", "agent-gateway"), ("proxy-0", "data-proxy-0")):
        log = shell.run("agent", "logs", "--component", component, "-n", "500")
        assert f"ready role={name}" in log.stdout


def test_status_says_what_is_wrong_and_what_was_lost(shell: Shell) -> None:
    notice = RunDir(shell.home / "agents" / "default").run / "data-proxy-0.notice"
    notice.write_text("a was damaged\nb, too")
    shown = shell.run("agent", "status").stdout
    assert shown.endswith("\ndata-proxy-0: a was damaged\ndata-proxy-0: b, too\n")
    notice.unlink()
    assert "damaged" not in shell.run("agent", "status").stdout


def test_no_key_in_argv_or_logs(shell: Shell) -> None:
    home = RunDir(shell.home / "agents" / "default")
    keys = ["sk-123456", "sk-upstream-secret", *json.loads(home.keys.read_text()).values()]
    pids = [
        row["pid"] for row in json.loads(shell.run("agent", "status", "--json").stdout)["processes"]
    ]
    owner = lock_owner(home)
    argv = b" ".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (*pids, owner))
    logs = b" ".join(file.read_bytes() for file in home.logs.iterdir())
    assert not [key for key in keys if key.encode() in argv + logs]


def test_running_twice_is_refused(shell: Shell) -> None:
    again = shell.run("agent", "run")
    assert again.returncode == 4
    owner = lock_owner(RunDir(shell.home / "agents" / "default"))
    assert f"already served by pid {owner};" in again.stderr


def test_wrong_agent_class_is_one_line_and_leaves_nothing(shell: Shell) -> None:
    done = shell.run("agent", "run", "--service", "wrong", "--agent", "nowhere.Agent")
    assert done.returncode == 3
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert "worker-0: services.agent.class = 'nowhere.Agent': cannot import nowhere" in done.stderr
    assert lock_owner(RunDir(shell.home / "agents" / "wrong")) is None


def test_a_status_that_is_watched_comes_again(shell: Shell) -> None:
    words = ("agent", "status", "--json", "--watch", "--interval", "0.1")
    with shell.open(*words) as watching:
        assert watching.stdout
        shown = [json.loads(watching.stdout.readline())["state"] for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=60)  # reads on: a closed pipe is another end
    assert shown == ["ready", "ready"]
    assert watching.returncode == 130


def test_stop_leaves_nothing(shell: Shell) -> None:
    """It ends the service that the others use."""
    rows = json.loads(shell.run("agent", "status", "--json").stdout)
    assert shell.run("agent", "stop", "--keep-state").returncode == 0
    until(lambda: not any(is_alive(row["pid"]) for row in rows["processes"]), 1)
    assert shell.run("agent", "stop").returncode == 1
    assert json.loads(shell.run("agent", "ps", "--json").stdout) == []
    rows = json.loads(shell.run("agent", "ps", "--all", "--json").stdout)
    assert ("default", "stopped") in [(row["service"], row["state"]) for row in rows]


def test_a_service_that_is_killed_leaves_nothing(shell: Shell) -> None:
    """With the settings of AReaL's newer flags."""
    times = "--setup-timeout 90 --session-timeout 30 --health-poll-interval 0.5 --drain-timeout 3"
    model = ("--inf-addr", "http://127.0.0.1:1/v1", "--inf-api-key", "k", "--inf-model", "m")
    started = shell.run("agent", "run", "--service", "two", *times.split(), *model)
    assert started.returncode == 0, started.stderr
    used = RunDir(shell.home / "agents" / "two").config_file("supervisor").read_text()
    config = json.loads(used)
    assert config["run"]["start_timeout_s"] == 90
    assert config["services"]["session_timeout_s"] == 30
    assert config["services"]["router"]["poll_s"] == 0.5
    assert config["services"]["pairs"]["drain_timeout_s"] == 3
    assert config["upstream"]["base_url"] == "http://127.0.0.1:1/v1"
    status = json.loads(shell.run("agent", "status", "--service", "two", "--json").stdout)
    pids = [status["pid"], *(row["pid"] for row in status["processes"])]
    assert shell.run("agent", "stop", "--service", "two", "--force").returncode == 0
    assert not any(is_alive(pid) for pid in pids)
    assert shell.run("agent", "stop", "--service", "two", "--force").returncode == 1
