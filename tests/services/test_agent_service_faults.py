"""Killing the agent service's processes: turns work again, histories stay and move."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes import services
from fakes.upstream import Upstream, echo, running, say

AGENT = {"max_tokens": 16}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with running() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> Iterator[services.Services]:
    """Two pairs, and a supervisor of sorts: ``revive`` starts what a test killed."""
    fallback = {"base_url": upstream.url, "api_key": "key-of-the-upstream", "model": "plain"}
    folder = tmp_path_factory.mktemp("faults")
    with services.running(folder, pairs=2, agent=AGENT, upstream=fallback) as stack:
        yield stack


@pytest.fixture
def client(stack: services.Services, upstream: Upstream) -> Iterator[httpx.Client]:
    upstream.script = echo
    upstream.asked.clear()
    with stack.client() as client:
        yield client


def turn(client: httpx.Client, user: str, text: str, **fields: str) -> httpx.Response:
    body = {"input": text, "model": "m", "user": user, **fields}
    return client.post("/v1/responses", json=body)


def history(client: httpx.Client, user: str) -> list[str]:
    answer = client.get(f"/sessions/agent:m:{user}/history")
    assert answer.status_code == 200, answer.text
    return [message["content"] for message in answer.json()["messages"]]


@contextlib.contextmanager
def dead_for(after_s: float, *processes: services.Process) -> Iterator[ThreadPoolExecutor]:
    """Kill processes; yield a pool for what is done meanwhile; then start the first one again.

    Started in this thread: a process dies with the thread that started it.
    """
    for process in processes:
        process.kill()
    with ThreadPoolExecutor() as pool:
        yield pool
        time.sleep(after_s)  # the time that a supervisor takes to notice
        processes[0].start()
        processes[0].wait_ready()


def test_plain_chat_uses_the_configured_upstream(client: httpx.Client, upstream: Upstream) -> None:
    assert turn(client, "plain", "hello").status_code == 200
    assert upstream.chats[0].key == "key-of-the-upstream"
    assert upstream.chats[0].body["model"] == "plain"
    assert turn(client, "plain", "hello", inf_model="named").status_code == 200
    assert turn(client, "plain", "hello").status_code == 200
    assert [chat.body["model"] for chat in upstream.chats[1:]] == ["named", "plain"]


@pytest.mark.parametrize("victim", ["router", "agent-gateway"])
def test_a_killed_front_process_comes_back_and_nothing_is_lost(
    stack: services.Services, client: httpx.Client, victim: str
) -> None:
    user = f"front-{victim}"
    turn(client, user, "marmalade")
    with dead_for(0.3, stack[victim]) as pool:
        if victim == "router":  # a new session needs it, and waits
            fresh = pool.submit(turn, client, f"{user}-new", "fresh")
    if victim == "router":
        assert fresh.result().status_code == 200
    assert turn(client, user, "again").status_code == 200
    assert history(client, user) == ["marmalade", "marmalade", "again", "again"]


@pytest.mark.parametrize("victim", ["worker", "data-proxy"])
def test_sessions_of_a_killed_pair_move_with_their_history(
    stack: services.Services, client: httpx.Client, upstream: Upstream, victim: str
) -> None:
    users = [f"moving-{victim}-{i}" for i in range(4)]
    for user in users:
        turn(client, user, "marmalade")
    process = stack[f"{victim}-0"]
    process.kill()
    try:
        for user in users:
            began = time.monotonic()
            assert turn(client, user, "still there?").status_code == 200
            assert time.monotonic() - began < 5
            assert "marmalade" in str(upstream.chats[-1].messages)
            assert history(client, user)[0] == "marmalade"
    finally:
        process.start()
        process.wait_ready()


def test_with_every_worker_dead_a_turn_waits_for_one(
    stack: services.Services, client: httpx.Client
) -> None:
    turn(client, "waits", "marmalade")
    with dead_for(0.5, stack["worker-0"], stack["worker-1"]) as pool:
        waiting = pool.submit(turn, client, "waits", "hello?")
    assert waiting.result().status_code == 200
    assert history(client, "waits")[2] == "hello?"
    stack["worker-1"].start()
    stack["worker-1"].wait_ready()


@pytest.mark.parametrize("victim", ["worker", "data-proxy"])
def test_a_process_that_dies_mid_turn_is_an_explicit_failure(
    stack: services.Services, client: httpx.Client, upstream: Upstream, victim: str
) -> None:
    upstream.script = lambda asked: say("half a ", "sentence", hang=True)
    body = {"input": "go", "model": "m", "user": f"mid-{victim}", "stream": True}
    events: list[dict[str, Any]] = []
    killed: list[services.Process] = []
    with client.stream("POST", "/v1/responses", json=body) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            events.append(json.loads(line[6:]))
            if events[-1].get("delta") == "sentence":
                killed = [stack[f"{victim}-0"], stack[f"{victim}-1"]]
                for process in killed:
                    process.kill()
    try:
        assert events[-1]["type"] == "response.failed"
        message = events[-1]["response"]["error"]["message"]
        assert victim.replace("-", " ") in message
        assert "died" in message
    finally:
        for process in killed:
            process.start()
        for process in killed:
            process.wait_ready()
    upstream.script = echo
    assert turn(client, f"mid-{victim}", "and now?").status_code == 200
    kept = ["go", "half a sentence"] if victim == "worker" else []
    assert history(client, f"mid-{victim}") == [*kept, "and now?", "and now?"]


def test_the_database_and_the_configs_are_private(stack: services.Services) -> None:
    folder = stack["router"].run_dir
    for name in ("conversations.db", "conversations.db-wal", "hermes-0/config.yaml"):
        assert stat.S_IMODE((folder / name).stat().st_mode) & 0o077 == 0


def test_no_key_is_on_a_command_line_or_in_a_log(
    stack: services.Services, client: httpx.Client
) -> None:
    key = "sk-sess-visible-0123456789"
    fields = {"inf_base_url": "http://127.0.0.1:9", "session_api_key": key}
    client.post("/v1/responses", json={"input": "x", "model": "m", "user": "keys", **fields})
    for process in stack.processes.values():
        assert process.popen
        command = Path(f"/proc/{process.popen.pid}/cmdline").read_bytes().decode()
        for secret in (services.ADMIN_KEY, "key-of-the-upstream", key):
            assert secret not in command
            assert secret not in process.log


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ({"class": "no_such_module.Agent"}, ["services.agent.class", "no_such_module"]),
        ({"class": "json.JSONDecoder"}, ["services.agent.class", "async def run"]),
        ({"enabled_toolsets": ["flying"]}, ["enabled_toolsets", "flying", "todo"]),
    ],
)
def test_a_worker_that_cannot_start_says_why_in_one_line(
    tmp_path: Path, agent: dict[str, Any], words: list[str]
) -> None:
    config = {
        "serve": {"name": "worker-0"},
        "admin_key": services.ADMIN_KEY,
        "agent": agent,
        "home": str(tmp_path / "home"),
        "workdir": str(tmp_path / "work"),
    }
    path = tmp_path / "worker.json"
    path.write_text(json.dumps(config))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hermes_tui_services.worker", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    for word in words:
        assert word in errors[0]
