"""Faults from outside: a client that leaves, a port that is taken, an upstream that misbehaves."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fakes.fault_stack import START_S, FaultStack
from fakes.served import until
from fakes.upstream import Reply, Upstream, echo, running, say
from fault_results import Cell, Outcome

pytestmark = pytest.mark.timeout(900)


@pytest.mark.cell(Cell(what="client", fault="leaves in the middle of a turn"), short=False)
def test_client_leaves(stack: FaultStack, outcome: Outcome) -> None:
    first = stack.answered("leaves")
    live = stack.turn("leaves", "more", first.session_key)
    assert live.began.wait(60)
    began = time.monotonic()
    live.leave.set()
    assert live.over.wait(60)
    until(lambda: stack.trainer("GET", "/rl/status").json()["engine"]["num_running"] == 0)
    outcome.seconds = time.monotonic() - began
    outcome.texts.append("the engine's request is ended")
    stack.answered("leaves", "back again", first.session_key)
    stack.require_history("leaves", ("hello", first.text))
    outcome.kept.append("all earlier turns, the text so far")


@pytest.mark.cell(Cell(what="port of a killed process", fault="taken by another"), short=False)
def test_port_taken(stack: FaultStack, outcome: Outcome) -> None:
    first = stack.answered("port")
    stack.calm("agent-gateway")
    address = urlsplit(stack.ready["agent_gateway"])
    pid = stack.pid("agent-gateway")
    stack.strike("agent-gateway", pid, signal.SIGKILL)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        until(lambda: _bind(taken, str(address.hostname), int(address.port or 0)))
        taken.listen()
        reason = until(
            lambda: (
                "cannot listen" in (told := stack.status()["agent-gateway"]["reason"] or "")
                and told
            )
        )
        assert f"in use by pid {os.getpid()}" in reason
    stack.deaths["agent-gateway"].append(time.monotonic())
    outcome.texts.append(reason.splitlines()[0].replace(f":{address.port}", ""))
    _, outcome.seconds = stack.answered_at_last("port-after")
    stack.require_history("port", ("hello", first.text))
    outcome.kept.append("all earlier turns")


def _bind(sock: socket.socket, host: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        sock.bind((host, port))
        return True
    return False


# -- an upstream that is not ours -----------------------------------------------------------------

EURO = "€".encode()
_CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":0,"model":"m","choices":'
REPLIES = {
    "dies in the middle": say("half a ", "sentence", cut=True),
    "answers 500": Reply(status=500),
    "sends garbage": say("half a ", raw=b"\x00\xff{]data: {\n\ndata: {broken\n\n", cut=True),
    "sends half a character": say(
        "half a ",
        raw=_CHUNK + b'[{"index":0,"delta":{"content":"' + EURO[:2] + b'"}}]}\n\n',
        cut=True,
    ),
    "says NaN": say(
        "half a ",
        raw=_CHUNK + b'[{"index":0,"delta":{"content":"x"},"logprobs":NaN}]}\n\n',
    ),
}
HANGS = "hangs, and a person interrupts"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with running() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def plain(
    tmp_path_factory: pytest.TempPathFactory, byte_model: Path, upstream: Upstream
) -> Iterator[FaultStack]:
    """Return a stack without training, whose agent calls the upstream."""
    words = (
        "training.enabled=false",
        f"upstream.base_url={upstream.url}",
        "upstream.api_key=key",
        "upstream.model=m",
    )
    stack = FaultStack(tmp_path_factory.mktemp("plain"), byte_model, *words)
    stack.start()
    yield stack
    stack.close()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault, marks=pytest.mark.cell(Cell(what="upstream", fault=fault), short=False), id=fault
        )
        for fault in (*REPLIES, HANGS)
    ],
)
def test_upstream(plain: FaultStack, upstream: Upstream, fault: str, outcome: Outcome) -> None:
    upstream.script = lambda asked: REPLIES.get(fault) or say("half a ", "sentence", hang=True)
    live = plain.turn(f"upstream {fault}", "hello", "")
    if fault == HANGS:
        assert live.began.wait(60)
        began = time.monotonic()
        answer = plain.agent("POST", f"/sessions/agent:m:upstream {fault}/interrupt")
        assert answer.status_code == 200
        outcome.seconds = time.monotonic() - began
    assert live.over.wait(START_S)
    outcome.texts.append(f"the turn ends: {live.end}")
    upstream.script = echo
    began = time.monotonic()
    again = plain.turn(f"upstream {fault}", "and now?", "")
    assert again.over.wait(START_S)
    assert (again.end, again.text) == ("answered", "and now?")
    outcome.seconds = outcome.seconds or time.monotonic() - began
    said = plain.history(f"upstream {fault}")
    assert said[-1] == ("and now?", "and now?")
    if len(said) > 1:
        outcome.kept.append("the text that had arrived")
