"""A process of the agent service that hangs (SIGSTOP) is found, killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fakes.served import Served, is_alive, until
from fakes.upstream import Upstream, echo, running, say

pytestmark = pytest.mark.timeout(300)

PROGRAM = [sys.executable, "-P", "-m", "hermes_tui.cli.main", "--serve"]
HUNG_AFTER_S = 4.0
REPLACED_S = 60.0
"""From the hang until the process answers again; most of it is the start on a loaded machine."""
WORDS = (
    "training.enabled=false",
    "services.pairs.count=2",
    "run.heartbeat_s=0.25",
    f"run.hung_after_s={HUNG_AFTER_S}",
    "upstream.model=plain",
    "upstream.api_key=key-of-the-upstream",
)
FRONT = ("router", "agent-gateway")
PAIRED = ("worker", "data-proxy")


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with running() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Served]:
    run_dir = tmp_path_factory.mktemp("hung")
    words = (*WORDS, f"run.dir={run_dir}", f"upstream.base_url={upstream.url}")
    with Served([*PROGRAM, *words], run_dir) as served:
        served.wait_for("ready", 180)
        yield served


@pytest.fixture
def client(served: Served, upstream: Upstream) -> Iterator[httpx.Client]:
    upstream.script = echo
    ready = next(row for row in served.rows if row["event"] == "ready")
    key = json.loads((served.run_dir / "keys.json").read_text())["agent_admin_key"]
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=ready["agent_gateway"], headers=headers, timeout=90) as client:
        yield client


def turn(client: httpx.Client, user: str, text: str) -> httpx.Response:
    return client.post("/v1/responses", json={"input": text, "model": "m", "user": user})


def history(client: httpx.Client, user: str) -> list[str]:
    answer = client.get(f"/sessions/agent:m:{user}/history")
    assert answer.status_code == 200, answer.text
    return [message["content"] for message in answer.json()["messages"]]


def rows(served: Served) -> dict[str, dict[str, Any]]:
    with served.http() as http:
        return {row["name"]: row for row in http.get("/status").json()["processes"]}


@contextlib.contextmanager
def hung(served: Served, *names: str) -> Iterator[None]:
    """Stop processes; at the end each must have been replaced for that reason."""
    before = rows(served)
    for name in names:
        os.kill(before[name]["pid"], signal.SIGSTOP)
    yield

    def replaced() -> bool:
        now = rows(served)
        return all(
            now[name]["state"] == "ready" and now[name]["restarts"] > before[name]["restarts"]
            for name in names
        )

    until(replaced, REPLACED_S)
    for name, row in rows(served).items():
        if name in names:
            assert "no heartbeat for" in row["last_exit"], row
            assert not is_alive(before[name]["pid"])
        else:
            assert row["pid"] == before[name]["pid"], f"{name} was replaced too"


def reasons(served: Served, name: str) -> list[tuple[str, str | None]]:
    """Return the states that a process went through, each with its reason."""
    with served.http() as http, http.stream("GET", "/events?after=0") as answer:
        found = []
        for line in answer.iter_lines():
            if line.startswith("data: "):
                row = json.loads(line[6:])
                if row.get("name") == name:
                    found.append((row["state"], row["reason"]))
                    if found[-1][0] == "ready" and any(s == "hung" for s, _ in found):
                        return found
    raise AssertionError("the events ended")


@pytest.mark.parametrize("victim", PAIRED)
def test_sessions_of_a_hung_pair_answer_from_the_other_with_their_history(
    served: Served, client: httpx.Client, upstream: Upstream, victim: str
) -> None:
    users = [f"idle-{victim}-{i}" for i in range(4)]
    for user in users:
        assert turn(client, user, "marmalade").status_code == 200
    with hung(served, f"{victim}-0"), ThreadPoolExecutor() as pool:
        began = time.monotonic()
        answers = list(pool.map(lambda user: turn(client, user, "still there?"), users))
        assert [answer.status_code for answer in answers] == [200] * 4, answers[0].text
        assert time.monotonic() - began < HUNG_AFTER_S + 20
        for user in users:
            assert history(client, user) == [*["marmalade"] * 2, *["still there?"] * 2]
    states = reasons(served, f"{victim}-0")
    assert any(state == "hung" and "no heartbeat for" in (why or "") for state, why in states)


@pytest.mark.parametrize("victim", FRONT)
def test_a_hung_front_process_is_replaced_and_turns_go_on(
    served: Served, client: httpx.Client, victim: str
) -> None:
    user = f"idle-{victim}"
    assert turn(client, user, "marmalade").status_code == 200
    with hung(served, victim):
        if victim == "router":  # the gateway remembers the pair; a new session waits
            assert turn(client, user, "again").status_code == 200
            assert turn(client, f"{user}-new", "fresh").status_code == 200
        else:
            with pytest.raises(httpx.TransportError):
                turn(client, user, "lost")
    assert turn(client, user, "again").status_code == 200
    assert history(client, user)[:2] == ["marmalade", "marmalade"]


@pytest.mark.parametrize("victim", [*PAIRED, *FRONT])
def test_a_turn_in_flight_ends_with_a_cause_and_its_text_stays(
    served: Served, client: httpx.Client, upstream: Upstream, victim: str
) -> None:
    release = threading.Event()
    upstream.script = lambda asked: say("half a ", "sentence", hang=not release.is_set())
    names = [f"{victim}-{i}" for i in range(2)] if victim in PAIRED else [victim]
    user = f"mid-{victim}"
    body = {"input": "go", "model": "m", "user": user, "stream": True}
    events: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        try:
            with client.stream("POST", "/v1/responses", json=body) as answer:
                for line in answer.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    events.append(json.loads(line[6:]))
                    if events[-1].get("delta") == "sentence":
                        stack.enter_context(hung(served, *names))
                        began = time.monotonic()
                        if victim == "router":
                            break  # it is not needed for a turn that runs
        except httpx.TransportError:
            assert victim == "agent-gateway"
        assert time.monotonic() - began < HUNG_AFTER_S + 15
    if victim in PAIRED:
        assert events[-1]["type"] == "response.failed", events[-1]
        assert "died during the turn" in events[-1]["response"]["error"]["message"]
    release.set()
    upstream.script = echo
    assert turn(client, user, "and now?").status_code == 200
    kept = [] if victim == "data-proxy" else ["go", "half a sentence"]
    assert history(client, user) == [*kept, "and now?", "and now?"]


def test_lists_do_not_wait_for_a_hung_pair(served: Served, client: httpx.Client) -> None:
    assert turn(client, "listed", "hello").status_code == 200
    with hung(served, "data-proxy-1"):
        sessions = client.get("/sessions").json()["data"]
        assert "agent:m:listed" in [row["session_key"] for row in sessions]


def test_a_machine_that_stood_still_is_no_hang(served: Served, client: httpx.Client) -> None:
    """The supervisor and all its processes stop, as on a laptop that sleeps, and go on."""
    before = rows(served)
    pids = [served.process.pid, *(row["pid"] for row in before.values())]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(HUNG_AFTER_S + 2)  # the time that passes is what is tested
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert turn(client, "slept", "hello").status_code == 200
    deadline = time.monotonic() + HUNG_AFTER_S + 1
    until(lambda: time.monotonic() > deadline)
    assert {n: row["pid"] for n, row in rows(served).items()} == {
        n: row["pid"] for n, row in before.items()
    }
