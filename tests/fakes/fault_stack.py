"""A whole stack to break: real processes, the real agent, and real training of a tiny model.

What is done to it goes over HTTP, signals and files, as other people's programs would do it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fakes.served import Served, is_alive, until

SUPERVISOR = "supervisor"
CHILDREN = ("agent-gateway", "router", "worker-0", "data-proxy-0", "trainer", "learner")

HUNG_AFTER_S = 5.0
STARTING_HUNG_AFTER_S = 20.0
START_S = 240.0
TURN_S = 120.0
TRAINED_S = 120.0
GONE_S = 15.0
"""What is promised after the death of the supervisor."""
FLAPPING_S = 60.0
"""Three deaths within this time count as flapping, which is not what is tested here."""

WORDS = (
    f"run.hung_after_s={HUNG_AFTER_S}",
    f"run.starting_hung_after_s={STARTING_HUNG_AFTER_S}",
    "run.heartbeat_s=0.25",
    "services.agent.max_tokens=1200",
    "services.agent.temperature=1.0",
    "training.train_truncated=true",
    "training.reward.grace_s=0.0",
    "training.canary.prompts=[]",
    "training.step.nats_per_unit=0.02",  # more would soon break a random model of 32 dimensions
)
PROGRAM = [sys.executable, "-P", "-m", "hermes_tui.cli.main", "--serve"]


@dataclass(slots=True)
class LiveTurn:
    """One streamed turn of the agent, followed in a thread."""

    text: str = ""
    """What has arrived."""
    end: str = ""
    """"" while it runs, "answered", or in what words it failed."""
    began: threading.Event = field(default_factory=threading.Event)
    """Set with the first text, or at the end."""
    over: threading.Event = field(default_factory=threading.Event)
    leave: threading.Event = field(default_factory=threading.Event)
    """Set by whoever wants its client to hang up."""

    def take(self, event: dict[str, Any]) -> None:
        """Take one event of the stream."""
        kind = event["type"]
        if kind == "response.output_text.delta":
            self.text += event["delta"]
            self.began.set()
        elif kind == "response.completed":
            self.end = "answered"
        elif kind == "response.failed":
            self.end = event["response"]["error"]["message"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A turn that was answered and may be judged."""

    user: str
    session_key: str
    episode_id: str
    text: str


class FaultStack:
    """One stack and its run directory; started, struck, and started again.

    Args:
        run_dir: its run directory.
        model: of ``make_byte_model``.
        words: more configuration.
    """

    def __init__(self, run_dir: Path, model: Path, *words: str) -> None:
        self.run_dir = run_dir
        self._command = [*PROGRAM, *WORDS, f"run.dir={run_dir}", f"model.path={model}", *words]
        self._served: Served | None = None
        self.deaths: defaultdict[str, list[float]] = defaultdict(list)
        """When a process was made to die, on the monotonic clock, by name."""
        self.ready: dict[str, Any] = {}
        self.keys: dict[str, str] = {}

    # -- its life ---------------------------------------------------------------------------------

    def spawn(self) -> Served:
        """Start the supervisor without waiting for its processes."""
        self._served = Served(self._command, self.run_dir)
        return self._served

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.wait_ready(self.spawn())

    def wait_ready(self, served: Served) -> None:
        """Wait until all processes are there, and remember where."""
        self.ready = served.wait_for("ready", START_S)
        self.keys = json.loads((self.run_dir / "keys.json").read_text())

    @property
    def served(self) -> Served:
        """The supervisor that was started last."""
        assert self._served
        return self._served

    def stop(self) -> None:
        """End it as its user would, and wait until nothing is left."""
        pids = self.pids()
        self.served.process.send_signal(signal.SIGTERM)
        self.served.wait()
        all_gone(pids)
        self.close()

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._served:
            with contextlib.suppress(ProcessLookupError):
                self._served.process.send_signal(signal.SIGCONT)
            self._served.__exit__(None, None, None)
            self._served = None

    def status(self) -> dict[str, dict[str, Any]]:
        """Return each process's row, by name."""
        with self.served.http() as http:
            return {row["name"]: row for row in http.get("/status").json()["processes"]}

    def pid(self, name: str) -> int:
        """Return a process's id."""
        return self.served.process.pid if name == SUPERVISOR else int(self.status()[name]["pid"])

    def pids(self) -> list[int]:
        """Return the ids of all children."""
        return [row["pid"] for row in self.status().values() if row["pid"]]

    def wait_all_ready(self) -> None:
        """Wait until every process is ready."""
        until(lambda: {row["state"] for row in self.status().values()} == {"ready"}, START_S)

    def strike(self, name: str, pid: int, number: signal.Signals) -> float:
        """Send a signal; return when, seconds since the epoch."""
        self.deaths[name].append(time.monotonic())
        os.kill(pid, number)
        return time.time()

    def calm(self, name: str) -> None:
        """Wait until one more death of a process would not be its third within a minute."""
        recent = self.deaths[name][-2:]
        if len(recent) == 2 and name != SUPERVISOR:
            time.sleep(max(0.0, recent[0] + FLAPPING_S - time.monotonic()))

    # -- what its users do ------------------------------------------------------------------------

    def agent(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """Ask the agent gateway."""
        return self._ask(self.ready["agent_gateway"], "agent_admin_key", method, path, **kwargs)

    def trainer(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """Ask the inference gateway."""
        url = self.ready["inference_gateway"]
        return self._ask(url, "inference_admin_key", method, path, **kwargs)

    def session(self, task: str) -> str:
        """Return the key of a new session."""
        answer = self.trainer("POST", "/rl/start_session", json={"task_id": task})
        answer.raise_for_status()
        return str(answer.json()["api_key"])

    def turn(self, user: str, text: str, session_key: str) -> LiveTurn:
        """Send a message; return the turn, which goes on in a thread.

        Without a session's key the configured upstream answers.
        """
        live = LiveTurn()
        body = {
            "input": text,
            "model": "m",
            "user": user,
            "stream": True,
        }
        if session_key:
            body |= {
                "inf_base_url": self.ready["inference_gateway"],
                "session_api_key": session_key,
            }
        url = f"{self.ready['agent_gateway']}/v1/responses"
        headers = self._headers("agent_admin_key")

        def follow() -> None:
            try:
                with httpx.stream(
                    "POST", url, json=body, headers=headers, timeout=TURN_S, trust_env=False
                ) as answer:
                    if answer.status_code != 200:
                        live.end = _refusal(answer)
                        return
                    for line in answer.iter_lines():
                        if line.startswith("data: {"):
                            live.take(json.loads(line[6:]))
                        if live.leave.is_set():
                            live.end = "left"
                            return
                live.end = live.end or "the stream ended without a last event"
            except httpx.HTTPError as error:
                live.end = live.end or f"the connection breaks ({type(error).__name__})"
            finally:
                live.began.set()
                live.over.set()

        threading.Thread(target=follow, daemon=True).start()
        return live

    def answered(self, user: str, text: str = "hello", session_key: str = "") -> Episode:
        """Have a message answered; return the episode."""
        key = session_key or self.session(user)
        live = self.turn(user, text, key)
        assert live.over.wait(TURN_S)
        assert live.end == "answered", live.end
        rows = self.trainer("GET", "/rl/episodes", key=key).json()["data"]
        newest = rows[-1]["episode_id"]
        return Episode(user=user, session_key=key, episode_id=newest, text=live.text)

    def answered_at_last(self, user: str) -> tuple[list[str], float]:
        """Send messages until one is answered; return how the others failed, and the seconds."""
        began, failed, key = time.monotonic(), [], ""
        while True:
            try:
                key = key or self.session(user)
                live = self.turn(user, "still there?", key)
                assert live.over.wait(TURN_S)
                end = live.end
            except httpx.HTTPError:
                end = "no new session: the connection breaks"
            if end == "answered":
                return failed, time.monotonic() - began
            failed.append(end)
            assert time.monotonic() - began < START_S, failed
            time.sleep(0.25)

    def reward(self, episode: Episode, reward: float) -> str:
        """Judge an episode; return "" once that was acknowledged, else why not."""
        body = {"reward": reward, "episode_id": episode.episode_id}
        try:
            answer = self.trainer("POST", "/rl/set_reward", json=body)
        except httpx.HTTPError as error:
            return f"the connection breaks ({type(error).__name__})"
        return "" if answer.status_code == 200 else _refusal(answer)

    def why_not_trained(self, episode: Episode, reward: float) -> str:
        """Judge an episode; return why it will not be trained, as its user is told; "" if it is."""
        body = {"reward": reward, "episode_id": episode.episode_id}
        answer = self.trainer("POST", "/rl/set_reward", json=body)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        return "" if told["will_train"] else str(told["reason"])

    def rewarded_at_last(self, episode: Episode, reward: float) -> list[str]:
        """Judge an episode until that is acknowledged; return how the others failed."""
        began, failed = time.monotonic(), []
        while refused := self.reward(episode, reward):
            if "already trained" in refused:
                break
            failed.append(refused)
            assert time.monotonic() - began < START_S, failed
            time.sleep(0.25)
        return failed

    def fate(self, episode: Episode) -> str:
        """Return "trained" or "dropped" once an episode is; "" before, or while nobody answers."""
        try:
            answer = self.trainer("GET", f"/rl/episodes/{episode.episode_id}")
        except httpx.HTTPError:
            return ""
        state = answer.json()["state"] if answer.status_code == 200 else ""
        return state if state in ("trained", "dropped") else ""

    def wait_trained(self, episode: Episode) -> bool:
        """Wait until an episode has been trained; return whether it was.

        A random model has steps without a finite gradient; their episodes are dropped.
        """
        return bool(until(lambda: self.fate(episode), TRAINED_S) == "trained")

    def history(self, user: str) -> list[tuple[str, str]]:
        """Return the conversation with a user: each message and all that was said to it."""
        answer = self.agent("GET", f"/sessions/agent:m:{user}/history")
        assert answer.status_code == 200, answer.text
        turns: list[tuple[str, str]] = []
        for message in answer.json()["messages"]:
            text = str(message["content"])
            if message["role"] == "assistant":
                turns[-1] = (turns[-1][0], turns[-1][1] + text)
            elif not text.startswith("[System: "):  # Hermes asks for the rest of a reply
                turns.append((text, ""))
        return turns

    def require_history(self, user: str, *turns: tuple[str, str]) -> list[tuple[str, str]]:
        """Fail unless the conversation with a user begins with these turns; return the others."""
        told = self.history(user)
        for (asked, said), (wanted, text) in zip(told, turns, strict=False):
            assert (asked, plain(said)) == (wanted, plain(text)), told
        assert len(told) >= len(turns), told
        return told[len(turns) :]

    @contextlib.contextmanager
    def events(self) -> Iterator[Feed]:
        """Follow the trainer's events from now on."""
        feed = Feed()
        url = f"{self.ready['inference_gateway']}/rl/events"
        headers = self._headers("inference_admin_key")
        with (
            httpx.Client(timeout=TURN_S, trust_env=False) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            thread = threading.Thread(target=feed.read, args=(answer,), daemon=True)
            thread.start()
            assert feed.connected.wait(TURN_S)
            yield feed
            feed.stop = True

    # -- what must be true of its files -----------------------------------------------------------

    def steps(self) -> list[dict[str, Any]]:
        """Return the rows of all steps, read from the file."""
        path = f"file:{self.run_dir / 'trajectories.db'}?mode=ro"
        with contextlib.closing(sqlite3.connect(path, uri=True)) as db:
            return [json.loads(row) for (row,) in db.execute("SELECT row FROM steps ORDER BY step")]

    def finished_at(self, version: int) -> float:
        """Return when a version's checkpoint was complete, seconds since the epoch; 0.0 if not."""
        marker = self.run_dir / "checkpoints" / f"policy_version_{version}" / "COMPLETE"
        return marker.stat().st_mtime if marker.exists() else 0.0

    def is_saving(self, version: int) -> bool:
        """Return whether a version's checkpoint is half written."""
        return any((self.run_dir / "checkpoints").glob(f".unfinished-{version}-*"))

    def require_sound(self, *episodes: Episode) -> None:
        """Fail unless these episodes were trained once each, and versions have no gap."""
        rows = self.steps()
        consumed = [id_ for row in rows for id_ in row["episode_ids"]]
        for episode in episodes:
            assert consumed.count(episode.episode_id) == 1, (episode, consumed)
        assert len(consumed) == len(set(consumed))
        versions = [row["policy_version"] for row in rows]
        assert versions == list(range(1, len(versions) + 1))
        status = self.trainer("GET", "/rl/status").json()
        assert not status["paused"], status["pause_reason"]

    # -- helpers ----------------------------------------------------------------------------------

    def _headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys.get(key, key)}"}

    def _ask(
        self, url: str, admin: str, method: str, path: str, *, key: str = "", **kwargs: Any
    ) -> httpx.Response:
        headers = self._headers(key or admin)
        with httpx.Client(timeout=30, trust_env=False) as client:
            return client.request(method, f"{url}{path}", headers=headers, **kwargs)


class Feed:
    """The trainer's events that have arrived."""

    def __init__(self) -> None:
        self.stop = False
        self.connected = threading.Event()
        self._rows: list[tuple[str, dict[str, Any]]] = []
        self._arrived = threading.Condition()

    def read(self, answer: httpx.Response) -> None:
        """Read them until the connection ends."""
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError):
            for line in answer.iter_lines():
                if line.startswith(":"):
                    self.connected.set()
                elif line.startswith("data: "):
                    row = json.loads(line[6:])
                    with self._arrived:
                        self._rows.append((row["kind"], row["payload"]))
                        self._arrived.notify_all()
                if self.stop:
                    return

    def wait(self, kind: str, timeout_s: float = TRAINED_S) -> dict[str, Any]:
        """Return what the first event of a kind says."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self._first(kind), timeout_s), self._rows
            found = self._first(kind)
        assert found is not None
        return found

    def _first(self, kind: str) -> dict[str, Any] | None:
        return next((data for name, data in self._rows if name == kind), None)


def plain(text: str) -> str:
    """Return a text without half characters, which end up differently where it was cut."""
    return text.replace("\ufffd", "").strip()


def soon(condition: Callable[[], object], timeout_s: float) -> None:
    """Wait for a condition that lasts for a moment only."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the moment did not come"
        time.sleep(0.0005)


def all_gone(pids: list[int], timeout_s: float = GONE_S) -> float:
    """Wait until processes have ended; return the seconds."""
    began = time.monotonic()
    until(lambda: not any(map(is_alive, pids)), timeout_s)
    return time.monotonic() - began


def _refusal(answer: httpx.Response) -> str:
    answer.read()
    try:
        return f"{answer.status_code}: {answer.json()['error']['message']}"
    except (ValueError, KeyError):
        return f"{answer.status_code}: {answer.text[:200]}"
