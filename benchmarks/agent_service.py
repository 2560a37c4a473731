"""What the agent service costs: a turn through gateway, router, data proxy and worker.

    python benchmarks/agent_service.py [--rounds N]

It is compared with the same ``AIAgent`` called in a plain script. The upstream of both answers at
once. Every role is a real process. Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
# Run with -P: otherwise this folder's gateway.py would hide Hermes' package of that name.
sys.path += [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from fakes import services  # noqa: E402
from outcome import at_least, at_most, print_outcome  # noqa: E402

TURNS = 12
"""Turns on an existing session, and new sessions, per round."""

STREAMS = 16
"""Sessions at once."""

TURNS_EACH = 6
"""Turns of each of them."""

AGENT = {"max_tokens": 64}
MESSAGE = "Say hello to Ada, please."


def timed(work: Callable[[], object]) -> float:
    """Return how long a call took, in milliseconds."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def measure(turn: Callable[[str], object], label: str) -> dict[str, Any]:
    """Return a round's figures; ``turn`` runs one turn of a session."""
    turn(f"{label}-0")
    existing = [timed(lambda: turn(f"{label}-0")) for _ in range(TURNS)]
    new = [timed(lambda i=i: turn(f"{label}-new-{i}")) for i in range(TURNS)]

    def session(index: int) -> None:
        for _ in range(TURNS_EACH):
            turn(f"{label}-many-{index}")

    with ThreadPoolExecutor(STREAMS) as threads:
        wall_ms = timed(lambda: list(threads.map(session, range(STREAMS))))
    rate = STREAMS * TURNS_EACH / wall_ms * 1000
    return {"existing_ms": existing, "new_ms": new, "turns_per_s": rate}


def plain(upstream: str, rounds: int, home: Path) -> None:
    """Run the plain script: an ``AIAgent`` that is set up as the worker does, and nothing else."""
    from hermes_tui_common.serving import ServeConfig
    from hermes_tui_services.api.agent import AgentRequest
    from hermes_tui_services.api.config import AgentConfig, WorkerRole
    from hermes_tui_services.api.protocol import Upstream
    from hermes_tui_services.worker.approvals import Questions
    from hermes_tui_services.worker.hermes import agent as hermes
    from hermes_tui_services.worker.hermes import home as hermes_home

    role = WorkerRole(
        serve=ServeConfig(name="plain"),
        admin_key="unused",
        agent=AgentConfig.model_validate(AGENT),
        home=home / "hermes",
        workdir=home / "work",
    )
    hermes_home.prepare(role)
    loaded, questions = hermes.load(role), Questions(60)
    model_server = Upstream(base_url=upstream, api_key="key", model="scripted")
    sessions: dict[str, tuple[hermes.HermesSession, list[dict[str, Any]]]] = {}

    class Silent:
        def push(self, event: object) -> None:
            pass

    def turn(key: str) -> None:
        if key not in sessions:
            sessions[key] = hermes.HermesSession(key, loaded, role, questions), []
        session, history = sessions[key]
        request = AgentRequest(message=MESSAGE, session_key=key, run_id="run", history=history)
        response = session.turn(request, model_server, Silent())
        history += [{"role": "user", "content": MESSAGE}, *response.messages]

    turn("warm-up")
    for index in range(rounds):
        sys.stdin.readline()  # rounds alternate with the chain's, so that other load slows both
        print(json.dumps(measure(turn, f"plain-{index}")), flush=True)


class Chain:
    """The whole service, called by a light client: a connection per thread."""

    def __init__(self, gateway: str, upstream: str) -> None:
        self._netloc = urlsplit(gateway).netloc
        self._upstream = upstream
        self._connections: dict[int, http.client.HTTPConnection] = {}

    def turn(self, key: str) -> None:
        """Run one streamed turn."""
        import threading

        connection = self._connections.setdefault(
            threading.get_ident(), http.client.HTTPConnection(self._netloc, timeout=60)
        )
        body = {
            "input": MESSAGE,
            "model": "bench",
            "user": key,
            "stream": True,
            "inf_base_url": self._upstream,
            "session_api_key": "key",
        }
        headers = {
            "Authorization": f"Bearer {services.ADMIN_KEY}",
            "Content-Type": "application/json",
        }
        connection.request("POST", "/v1/responses", json.dumps(body), headers)
        answer = connection.getresponse().read()
        assert b"event: response.completed" in answer, answer


def write_own(run_file: Path, url: str) -> None:
    """Make a model server count as the stack's own, so that no relay is between."""
    from hermes_tui_common.run_file import RoleRunFile

    port = int(url.rpartition(":")[2])
    row = RoleRunFile(
        name="trainer", pid=0, url=url, started_at=0.0, host="127.0.0.1", port=port, instance=""
    )
    run_file.write_text(row.model_dump_json())


def run(rounds: int) -> dict[str, Any]:
    """Return the figures of all rounds."""
    upstream = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/fakes/upstream.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert upstream.stdin
    assert upstream.stdout
    url = upstream.stdout.readline().strip()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        script = subprocess.Popen(
            [sys.executable, "-P", __file__, "--plain", url, str(home), "--rounds", str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert script.stdin
        assert script.stdout
        (home / "run").mkdir()
        own = home / "run" / "trainer.json"
        write_own(own, url.removesuffix("/v1"))
        try:
            with services.running(home / "run", agent=AGENT, gateway_run_file=own) as stack:
                chain = Chain(stack.gateway_url, url)
                chain.turn("warm-up")
                rows: dict[str, list[dict[str, Any]]] = {"plain": [], "chain": []}
                for index in range(rounds):
                    print("go", file=script.stdin, flush=True)
                    rows["plain"].append(json.loads(script.stdout.readline()))
                    rows["chain"].append(measure(chain.turn, f"chain-{index}"))
                rss = {name: round(p.rss_bytes() / 2**20) for name, p in stack.processes.items()}
                start_s = stack["worker-0"].start_s
        finally:
            for process in (script, upstream):
                assert process.stdin
                process.stdin.close()
                process.wait(20)
    return summary(rows) | {"rss_mib": rss, "worker_start_s": round(start_s, 2)}


def summary(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return medians over all rounds, and the time that the chain adds."""
    result: dict[str, Any] = {}
    for name in ("existing_ms", "new_ms"):
        medians = {
            kind: statistics.median(value for row in rows[kind] for value in row[name])
            for kind in rows
        }
        result[name] = {kind: round(value, 1) for kind, value in medians.items()}
        result[name]["added"] = round(medians["chain"] - medians["plain"], 1)
    rates = {kind: statistics.median(row["turns_per_s"] for row in rows[kind]) for kind in rows}
    result["turns_per_s_at_16"] = {kind: round(rate, 1) for kind, rate in rates.items()}
    result["turns_per_s_at_16"]["ratio"] = round(rates["chain"] / rates["plain"], 2)
    return result


def report(result: dict[str, Any]) -> None:
    """Print the table, and the JSON line."""
    existing, new = result["existing_ms"], result["new_ms"]
    rate = result["turns_per_s_at_16"]
    print("                                plain    chain    difference")
    for label, row in (
        ("turn, existing session, ms", existing),
        ("first turn of a session, ms", new),
    ):
        print(f"{label:<28} {row['plain']:>8} {row['chain']:>8}    +{row['added']}")
    print(
        f"{'turns/s, 16 sessions at once':<28} {rate['plain']:>8} {rate['chain']:>8}"
        f"    x{rate['ratio']}"
    )
    print(f"resident MiB: {result['rss_mib']}; worker start {result['worker_start_s']} s")
    targets = [
        at_most("added to a turn on an existing session, ms", existing["added"], 15.0),
        at_most("added to the first turn of a session, ms", new["added"], 60.0),
        at_least("turns/s at 16 sessions, chain over plain threads", rate["ratio"], 0.6),
    ]
    print_outcome("agent_service", result, targets)


def main() -> None:
    """Run the benchmark, or its plain script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often both are measured")
    parser.add_argument("--plain", nargs=2, metavar=("URL", "HOME"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plain:
        plain(args.plain[0], args.rounds, Path(args.plain[1]))
    else:
        report(run(args.rounds))


if __name__ == "__main__":
    main()
