"""A whole stack under load: does it lose, mix up or leak anything?

    python benchmarks/soak.py [--seconds N] [--agents N] [--streams N] [--model PATH]

Agent sessions talk to Hermes, whose model is a scripted server that says each message back. Streams
on the trainer's own engine run beside them, with one session key each. Turns are interrupted,
connections dropped, one key is refreshed over and over, and processes are restarted. In the end
every reply that a client got must be where it belongs: in its conversation, under its session.
Memory and descriptors of each process are fitted with a line, from its last start on. Prints the
figures and, last, one JSON line; exits with 1 when a target was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from fakes import upstream as scripted  # noqa: E402
from fakes.served import Served  # noqa: E402
from outcome import Target, at_most, print_outcome  # noqa: E402

START_S = 300.0
TIMEOUT_S = 300.0
"""How long one request may take on a loaded machine."""

SAMPLE_S = 1.0
DRAIN_S = 30.0
"""How long the engine may take to be rid of its requests once all clients have gone."""

REFRESHES = 100
INTERRUPTED, DROPPED = 0.1, 0.15
"""Share of turns that are interrupted, and of turns and streams that are hung up on."""

RESTARTED = ("worker-0", "data-proxy-1", "router", "trainer")
RESTARTS_END = 0.3
"""Share of the time after which nothing is restarted any more: then leaks are measured."""

AFTERMATH_S = 3.0
"""For so long after a restart an error is its consequence."""

LEAK_RUN_S = 300.0
"""A shorter run measures how caches fill, not leaks: its slopes are shown, not judged."""

SHOWN = 20


@dataclass(slots=True, kw_only=True)
class Soak:
    """One run: where the stack is, what was acknowledged, and what went wrong."""

    agent_url: str
    agent_key: str
    trainer_url: str
    trainer_key: str
    control_url: str
    control_key: str
    ends_at: float
    turns: dict[str, list[str]] = field(default_factory=dict)
    """By session: what was said and answered."""
    completions: dict[str, dict[str, str]] = field(default_factory=dict)
    """By session id: the text of each completion that was read to its end, by its id."""
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """5xx and broken connections that nobody asked for."""
    mixed_up: list[str] = field(default_factory=list)
    """Replies that are another's."""
    missing: list[str] = field(default_factory=list)
    """Acknowledged, and not stored."""
    restarting: int = 0
    calm_at: float = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_at

    def failed(self, what: str) -> None:
        """Count an error: as injected while a process is restarted, else as a fault."""
        injected = self.restarting or time.monotonic() < self.calm_at
        self.counts["injected errors" if injected else "faults"] += 1
        if not injected:
            self.faults.append(what)

    def client(self, key: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"},
            timeout=TIMEOUT_S,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )


# The agent's sessions --------------------------------------------------------------------------


async def talk(soak: Soak, http: httpx.AsyncClient, number: int, dice: random.Random) -> None:
    """Have one conversation; each message has a mark that its reply must have."""
    user = f"soak-{number}"
    said = soak.turns.setdefault(user, [])
    turn = 0
    while not soak.is_over:
        turn += 1
        mark = f"mark-{number}-{turn}"
        fate = dice.random()
        body = {"model": "hermes-agent", "user": user, "input": f"Repeat {mark} please."}
        try:
            if fate < DROPPED:
                await _drop_turn(soak, http, body, interrupt=fate < INTERRUPTED)
                continue
            answer = await http.post(f"{soak.agent_url}/v1/responses", json=body)
        except httpx.HTTPError as error:
            soak.failed(f"turn: {type(error).__name__} {error}")
            continue
        if answer.status_code != 200:
            soak.failed(f"turn: {answer.status_code} {answer.text[:200]}")
            await asyncio.sleep(0.2)
            continue
        soak.counts["turns"] += 1
        said.append(mark)
        if f"Repeat {mark} please." not in answer.text:
            soak.mixed_up.append(f"{user} got {answer.text[-300:]}")


async def _drop_turn(
    soak: Soak, http: httpx.AsyncClient, body: dict[str, Any], *, interrupt: bool
) -> None:
    """Begin a turn, and interrupt it or hang up once it runs."""
    url = f"{soak.agent_url}/v1/responses"
    async with http.stream("POST", url, json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            await answer.aread()
            soak.failed(f"turn: {answer.status_code} {answer.text[:200]}")
            return
        asked = False
        async for _ in answer.aiter_lines():
            if not interrupt:
                soak.counts["turns hung up on"] += 1
                return
            if not asked:
                asked = True
                key = answer.headers["x-areal-session-key"]
                await http.post(f"{soak.agent_url}/sessions/{key}/interrupt")
    soak.counts["turns interrupted"] += 1


async def check_conversations(soak: Soak, http: httpx.AsyncClient) -> None:
    """Compare each conversation with what its client was told."""
    for user, said in soak.turns.items():
        number = user.removeprefix("soak-")
        url = f"{soak.agent_url}/sessions/agent:hermes-agent:{user}/history"
        answer = await http.get(url)
        if answer.status_code == 404 and not said:
            continue
        history = json.dumps(answer.json().get("messages", []))
        soak.missing += [f"{user}: {mark}" for mark in said if f"{mark} " not in history]
        own = history.count(f"mark-{number}-")
        if own != history.count("mark-"):
            soak.mixed_up.append(f"{user} has another's messages")


# The trainer's streams -------------------------------------------------------------------------


async def stream(soak: Soak, admin: httpx.AsyncClient, number: int, dice: random.Random) -> None:
    """Ask the engine again and again under one session key."""
    started = await admin.post(
        f"{soak.trainer_url}/rl/start_session", json={"task_id": f"soak-{number}"}
    )
    session = started.json()
    got = soak.completions.setdefault(session["session_id"], {})
    async with soak.client(session["api_key"]) as http:
        while not soak.is_over:
            try:
                await _complete(soak, http, got, number, dice)
            except httpx.HTTPError as error:
                soak.failed(f"stream: {type(error).__name__} {error}")
                await asyncio.sleep(0.2)


async def _complete(
    soak: Soak, http: httpx.AsyncClient, got: dict[str, str], number: int, dice: random.Random
) -> None:
    """Stream one completion: to its end, or hang up after some chunks."""
    hang_up_after = dice.randrange(1, 6) if dice.random() < DROPPED else None
    body = {
        "messages": [{"role": "user", "content": f"Tell {number} a story."}],
        "max_tokens": dice.randrange(4, 24),
        "stream": True,
    }
    url = f"{soak.trainer_url}/v1/chat/completions"
    completion_id, text, ended = "", "", False
    async with http.stream("POST", url, json=body) as answer:
        if answer.status_code != 200:
            await answer.aread()
            soak.failed(f"stream: {answer.status_code} {answer.text[:200]}")
            await asyncio.sleep(0.2)
            return
        async for chunk in _chunks(answer):
            if "error" in chunk:
                soak.failed(f"stream: {chunk['error']}")
                return
            completion_id = chunk["id"]
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                ended = ended or choice["finish_reason"] is not None
            if hang_up_after is not None and (hang_up_after := hang_up_after - 1) <= 0:
                soak.counts["streams hung up on"] += 1
                return
    if ended:
        soak.counts["completions"] += 1
        got[completion_id] = text
    else:
        soak.failed("stream: it ended without a reason")


async def _chunks(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        data = line.removeprefix("data: ")
        if line and data != "[DONE]":
            yield json.loads(data)


async def refresh(soak: Soak, admin: httpx.AsyncClient) -> None:
    """Refresh one key many times, several at once; one session of it is open in the end."""
    url = f"{soak.trainer_url}/rl/start_session"
    key = (await admin.post(url, json={"task_id": "refreshed"})).json()["api_key"]

    async def once() -> None:
        try:
            answer = await admin.post(url, json={"task_id": "refreshed", "api_key": key})
        except httpx.HTTPError as error:
            soak.failed(f"refresh: {type(error).__name__} {error}")
            return
        if answer.status_code not in (201, 409):
            soak.failed(f"refresh: {answer.status_code} {answer.text[:200]}")
        soak.counts["refreshes"] += 1

    for _ in range(REFRESHES // 10):
        await asyncio.gather(*(once() for _ in range(10)))
    rows = (await admin.get(f"{soak.trainer_url}/rl/sessions", params={"limit": 1000})).json()
    open_ones = [
        row for row in rows["data"] if row["task_id"] == "refreshed" and row["ended_at"] is None
    ]
    soak.counts["sessions of the refreshed key that are open"] = len(open_ones)


async def check_completions(soak: Soak, admin: httpx.AsyncClient) -> None:
    """Compare what the store has with what the clients read."""
    for session_id, got in soak.completions.items():
        stored: dict[str, str] = {}
        answer = await admin.get(
            f"{soak.trainer_url}/rl/episodes", params={"session_id": session_id, "limit": 1000}
        )
        for row in answer.json()["data"]:
            episode = await admin.get(f"{soak.trainer_url}/rl/episodes/{row['episode_id']}")
            for completion in episode.json()["completions"]:
                message = completion["message"] or {}
                stored[completion["completion_id"]] = message.get("content") or ""
        soak.missing += [f"{session_id}: {one}" for one in got if one not in stored]
        soak.mixed_up += [
            f"{session_id}: {one}: {text!r} is stored as {stored[one]!r}"
            for one, text in got.items()
            if one in stored and stored[one].strip() != text.strip()
        ]


async def engine_left(soak: Soak, admin: httpx.AsyncClient) -> int:
    """Return how many requests the engine still has once it had time to be rid of them."""
    deadline = time.monotonic() + DRAIN_S
    while True:
        engine = (await admin.get(f"{soak.trainer_url}/rl/status")).json()["engine"]
        left = int(engine["num_running"]) + int(engine["num_waiting"])
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.2)


# The processes ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Samples:
    """Memory and descriptors of each process, since its last start."""

    pids: dict[str, int] = field(default_factory=dict)
    rows: dict[str, list[tuple[float, int, int]]] = field(default_factory=dict)
    """Seconds, resident bytes, open descriptors."""

    def take(self, name: str, pid: int) -> None:
        if self.pids.get(name) != pid:
            self.pids[name], self.rows[name] = pid, []
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            row = (time.monotonic(), process.memory_info().rss, process.num_fds())
            self.rows[name].append(row)

    def slopes(self, column: int) -> dict[str, float]:
        """Return the growth a minute of each process over the second half of its samples."""
        found = {}
        for name, rows in self.rows.items():
            late = rows[len(rows) // 2 :]
            if len(late) > 2:
                times, values = [row[0] for row in late], [row[column] for row in late]
                found[name] = statistics.linear_regression(times, values).slope * 60
        return found


async def watch(soak: Soak, control: httpx.AsyncClient, samples: Samples) -> None:
    """Sample every process until cancelled."""
    while True:
        try:
            status = (await control.get(f"{soak.control_url}/status")).json()
            for row in status["processes"]:
                if row["pid"] and row["state"] == "ready":
                    samples.take(row["name"], row["pid"])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            soak.failed(f"status: {type(error).__name__} {error}")
        await asyncio.sleep(SAMPLE_S)


async def restart(soak: Soak, control: httpx.AsyncClient, seconds: float) -> None:
    """Restart one process after the other in the first part of the run."""
    pause_s = seconds * RESTARTS_END / (len(RESTARTED) + 1)
    for name in RESTARTED:
        await asyncio.sleep(pause_s)
        soak.restarting += 1
        try:
            answer = await control.post(f"{soak.control_url}/services/{name}/restart")
            answer.raise_for_status()
            soak.counts["restarts"] += 1
        finally:
            soak.restarting -= 1
            soak.calm_at = time.monotonic() + AFTERMATH_S


# The run ---------------------------------------------------------------------------------------


async def run(soak: Soak, seconds: float, agents: int, streams: int) -> list[Target]:
    """Load the stack, then look at what it kept; print the figures, return the targets."""
    samples = Samples()
    async with (
        soak.client(soak.agent_key) as agent,
        soak.client(soak.trainer_key) as admin,
        soak.client(soak.control_key) as control,
    ):
        watching = asyncio.create_task(watch(soak, control, samples))
        dice = random.Random(7)
        async with asyncio.TaskGroup() as group:
            for number in range(agents):
                group.create_task(talk(soak, agent, number, random.Random(dice.random())))
            for number in range(streams):
                group.create_task(stream(soak, admin, number, random.Random(dice.random())))
            group.create_task(disturb(soak, admin, control, seconds))
        left = await engine_left(soak, admin)
        watching.cancel()
        await check_conversations(soak, agent)
        await check_completions(soak, admin)
    return _outcome(soak, samples, left, seconds)


async def disturb(
    soak: Soak, admin: httpx.AsyncClient, control: httpx.AsyncClient, seconds: float
) -> None:
    """Restart processes; once nothing is restarted any more, refresh one key over and over."""
    await restart(soak, control, seconds)
    await asyncio.sleep(AFTERMATH_S)
    await refresh(soak, admin)


def _outcome(soak: Soak, samples: Samples, left: int, seconds: float) -> list[Target]:
    memory = {name: slope / 1e6 for name, slope in samples.slopes(1).items()}
    descriptors = samples.slopes(2)
    for title, lines in (
        ("faults", soak.faults),
        ("mixed up", soak.mixed_up),
        ("missing", soak.missing),
    ):
        _show(title, lines)
    for name, count in sorted(soak.counts.items()):
        print(f"{count:>8} {name}")
    for name, rows in samples.rows.items():
        if rows:
            print(
                f"{name:<15} {rows[-1][1] / 1e6:7.0f} MB {memory.get(name, 0.0):+8.2f} MB/min"
                f" {rows[-1][2]:5} descriptors {descriptors.get(name, 0.0):+7.2f} /min"
            )
    targets = [
        at_most("errors that were not injected", len(soak.faults), 0),
        at_most("replies that are another's", len(soak.mixed_up), 0),
        at_most("acknowledged and not stored", len(soak.missing), 0),
        at_most("requests left in the engine", left, 0),
        at_most(
            "sessions of the refreshed key that are open",
            soak.counts["sessions of the refreshed key that are open"],
            1,
        ),
    ]
    if seconds >= LEAK_RUN_S:
        targets += [
            at_most(
                "memory growth of the worst process, MB/min",
                max(memory.values(), default=math.inf),
                2.0,
            ),
            at_most(
                "descriptor growth of the worst, 1/min",
                max(descriptors.values(), default=math.inf),
                1.0,
            ),
        ]
    figures = {
        "seconds": seconds,
        **soak.counts,
        "memory_mb_per_min": memory,
        "descriptors_per_min": descriptors,
    }
    print_outcome("soak", figures, targets)
    return targets


def _worst(slopes: dict[str, float]) -> float:
    return max(slopes.values(), default=math.inf)  # nothing was measured: not met


def _show(title: str, lines: Iterable[str]) -> None:
    for line in list(lines)[:SHOWN]:
        print(f"{title}: {line}")


def main() -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--agents", type=int, default=256)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--model", default="", help="model.path; the embedded model when not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, scripted.running() as upstream:
        run_dir = Path(folder) / "run"
        words = [
            f"run.dir={run_dir}",
            "services.pairs.count=2",
            f"upstream.base_url={upstream.url}",
            "upstream.api_key=sk-scripted",
            "upstream.model=scripted",
            *([f"model.path={options.model}"] if options.model else []),
        ]
        command = [sys.executable, "-P", "-m", "hermes_tui.cli.main", "--serve", *words]
        with Served(command, run_dir, cwd=Path(folder)) as served:
            ready = served.wait_for("ready", START_S)
            keys = json.loads((run_dir / "keys.json").read_text())
            soak = Soak(
                agent_url=ready["agent_gateway"],
                agent_key=keys["agent_admin_key"],
                trainer_url=ready["inference_gateway"],
                trainer_key=keys["inference_admin_key"],
                control_url=ready["control"],
                control_key=keys["control_key"],
                ends_at=time.monotonic() + options.seconds,
            )
            targets = asyncio.run(run(soak, options.seconds, options.agents, options.streams))
    return 0 if all(target["met"] for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
