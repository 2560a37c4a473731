"""How each moment of the fault matrix is brought about, and what its user sees."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
from fakes.fault_stack import (
    HUNG_AFTER_S,
    START_S,
    SUPERVISOR,
    TURN_S,
    Episode,
    FaultStack,
    all_gone,
    plain,
    soon,
)
from fakes.served import is_alive
from fault_results import Cell

ENDS_S = HUNG_AFTER_S + 40.0
"""A turn in flight ends within: until the hang is found, and a start on a loaded machine."""

STOPPED_S = 3.0
"""How long a supervisor is stopped before it may go on."""


class MissedError(Exception):
    """To be tried again: the signal came too early or too late, or a step was not to be had."""


@dataclass(slots=True)
class Seen:
    """What a fault did, as its user saw it."""

    cell: Cell
    struck_at: float = 0.0
    """Seconds since the epoch."""
    texts: list[str] = field(default_factory=list)
    """How requests failed, each in words."""
    seconds: float = 0.0
    """Until it worked again: a message was answered, or for the learner a reward was trained."""
    kept: list[str] = field(default_factory=list)
    """What was checked to be still there."""
    trained: list[Episode] = field(default_factory=list)
    """Whose rewards were acknowledged."""


def run(stack: FaultStack, cell: Cell, name: str) -> Seen:
    """Bring a cell about once and return what was seen.

    Args:
        stack: ready; it is ready again afterwards.
        cell: the fault.
        name: of the conversation that is had; unique.

    Raises: MissedError. AssertionError: something was lost, or did not come back.
    """
    stack.calm(cell.what)
    seen = Seen(cell)
    if cell.when == "starting":
        _strike_starting(stack, seen, name)
    elif cell.when == "stopping":
        _strike_stopping(stack, seen, name)
    elif cell.when == "mid-stream":
        _strike_stream(stack, seen, name)
    elif cell.when in ("mid-step", "mid-save", "mid-publish"):
        _strike_training(stack, seen, name)
    elif cell.when == "mid-reward":
        _strike_reward(stack, seen, name)
    elif cell.when == "before a rollback":
        _strike_rollback(stack, seen, name)
    else:
        before = stack.answered(name)
        with Strike(stack, seen, name):
            pass
        stack.require_history(name, ("hello", before.text))
        seen.kept.append("all earlier turns")
    if not all(stack.wait_trained(episode) for episode in seen.trained):
        raise MissedError
    stack.require_sound(*seen.trained)
    return seen


class Strike:
    """One signal: ``with`` sends it, the block watches what was in flight, then all works again.

    What works again is asked for at once, beside what is in flight.
    """

    def __init__(self, stack: FaultStack, seen: Seen, name: str) -> None:
        """Prepare what must not take time later."""
        self._stack, self._seen, self._name = stack, seen, name
        self._process, self._number = seen.cell.what, signal.Signals[seen.cell.fault]
        self._spare = stack.answered(f"{name}-spare") if self._process == "learner" else None
        self._pids = stack.pids()
        self._pid = stack.pid(self._process)
        self._ends_stack = self._process == SUPERVISOR and self._number is not signal.SIGSTOP
        self._pool = ThreadPoolExecutor(1)
        self._asked: Future[tuple[list[str], float]] | None = None

    def __enter__(self) -> None:
        self._seen.struck_at = self._stack.strike(self._process, self._pid, self._number)
        if not self._ends_stack:
            asked = self._pool.submit(_works_again, self._stack, self._name, self._spare)
            self._asked = asked

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._pool:
            if kind is not None:
                return
            if self._asked:
                failed, self._seen.seconds = self._asked.result()
                self._seen.texts += failed
        if self._spare:
            self._seen.trained.append(self._spare)
        if self._ends_stack:
            _start_again(self._stack, self._seen, self._name, self._pids)
        elif self._process == SUPERVISOR:
            time.sleep(STOPPED_S)
            self._stack.strike(SUPERVISOR, self._pid, signal.SIGCONT)
            self._stack.wait_all_ready()
            assert self._stack.pids() == self._pids, "somebody was blamed for the supervisor"
        else:
            self._stack.wait_all_ready()
            assert not is_alive(self._pid)
            if self._number is signal.SIGSTOP:
                last_exit = self._stack.status()[self._process]["last_exit"]
                assert "no heartbeat for" in last_exit, last_exit


def _works_again(stack: FaultStack, name: str, spare: Episode | None) -> tuple[list[str], float]:
    """Return how requests failed until one went well, and the seconds until then."""
    if spare is None:
        return stack.answered_at_last(f"{name}-again")
    began = time.monotonic()
    failed = stack.rewarded_at_last(spare, 1.0)
    stack.wait_trained(spare)
    return failed, time.monotonic() - began


def _start_again(stack: FaultStack, seen: Seen, name: str, pids: list[int]) -> None:
    """Wait until nothing is left of a stack, and start it as its user would."""
    gone_s = all_gone(pids)
    stack.close()
    began = time.monotonic()
    stack.start()
    stack.answered(f"{name}-again")
    seen.seconds = time.monotonic() - began
    seen.texts.append(f"the stack has gone; all processes after {gone_s:.0f} s")


def _strike_stream(stack: FaultStack, seen: Seen, name: str) -> None:
    first = stack.answered(name)
    strike = Strike(stack, seen, name)
    live = stack.turn(name, "tell me more", first.session_key)
    assert live.began.wait(TURN_S)
    if live.over.is_set():
        raise MissedError
    with strike:
        assert live.over.wait(ENDS_S), "the turn did not end"
    if live.end == "answered":
        seen.texts.append("the turn goes on")
    else:
        seen.texts.append(f"the turn fails: {live.end}")
    seen.kept.append("all earlier turns")
    if later := stack.require_history(name, ("hello", first.text)):
        ((asked, said),) = later
        begun, wanted = plain(said), plain(live.text)
        assert asked == "tell me more"
        assert begun.startswith(wanted) or wanted.startswith(begun), (said, live.text)
        seen.kept.append("the turn's text")
    else:
        assert live.end != "answered"
    again = stack.answered(name, "go on", first.session_key)
    if reason := stack.why_not_trained(again, -1.0):
        seen.texts.append(f"the episode is not trained: {reason}")
    else:
        seen.trained.append(again)


def _strike_reward(stack: FaultStack, seen: Seen, name: str) -> None:
    judged = stack.answered(name)
    refused: list[str] = []
    sending = threading.Event()

    def send() -> None:
        sending.set()
        refused.append(stack.reward(judged, 1.0))

    strike = Strike(stack, seen, name)
    thread = threading.Thread(target=send)
    thread.start()
    sending.wait()
    with strike:
        thread.join()
    if refused[0]:
        seen.texts.append(f"the reward fails: {refused[0]}")
        seen.texts += stack.rewarded_at_last(judged, 1.0)
    seen.trained.append(judged)
    seen.kept.append("the reward")


def _strike_training(stack: FaultStack, seen: Seen, name: str) -> None:
    cell = seen.cell
    judged = stack.answered(name)
    strike = Strike(stack, seen, name)
    with stack.events() as feed:
        assert not stack.reward(judged, -1.0)
        seen.trained.append(judged)
        version = feed.wait("step.started")["step"]
        if cell.when == "mid-save":
            soon(lambda: stack.is_saving(version) or stack.finished_at(version), TURN_S)
        elif cell.when == "mid-publish":
            soon(lambda: stack.finished_at(version), TURN_S)
        with strike:
            pass
    if not stack.wait_trained(judged):
        raise MissedError
    seen.kept.append("the reward, trained once")
    if cell.when == "mid-publish":
        row = next(row for row in stack.steps() if row["policy_version"] == version)
        missed = row["finished_at"] < seen.struck_at
    else:
        missed = stack.finished_at(version) < seen.struck_at
    if missed:
        raise MissedError


def _strike_rollback(stack: FaultStack, seen: Seen, name: str) -> None:
    judged = stack.answered(name)
    assert not stack.reward(judged, 1.0)
    if not stack.wait_trained(judged):
        raise MissedError
    seen.trained.append(judged)
    target = stack.steps()[-1]["policy_version"] - 1

    def roll_back() -> httpx.Response:
        body = {"policy_version": target}
        return stack.trainer("POST", "/rl/rollback", json=body, timeout=ENDS_S)

    with Strike(stack, seen, name):
        answer = roll_back()
    if answer.is_error:
        seen.texts.append(f"the rollback is refused: {answer.json()['error']['message']}")
        answer = roll_back()
    assert answer.status_code == 200, answer.text
    assert answer.json()["rolled_back_to"] == target
    seen.kept.append("the rewards, trained once")


def _strike_starting(stack: FaultStack, seen: Seen, name: str) -> None:
    cell = seen.cell
    before = stack.answered(name)
    if cell.what == SUPERVISOR:
        pids = stack.pids()
        stack.served.process.send_signal(signal.SIGTERM)
        all_gone(pids)
        stack.close()
        served = stack.spawn()
        served.wait_for("starting")
        began = time.monotonic()
        stack.strike(SUPERVISOR, served.process.pid, signal.Signals[cell.fault])
        if cell.fault == "SIGSTOP":
            time.sleep(STOPPED_S)
            stack.strike(SUPERVISOR, served.process.pid, signal.SIGCONT)
        else:
            served.wait()
            stack.close()
            served = stack.spawn()
        stack.wait_ready(served)
        stack.answered(f"{name}-again")
        seen.seconds = time.monotonic() - began
    else:
        old = stack.pid(cell.what)
        with ThreadPoolExecutor(1) as pool:
            spare = stack.answered(f"{name}-spare") if cell.what == "learner" else None
            asked = pool.submit(_ask_restart, stack, cell.what)
            row = _starting_row(stack, cell.what, old)
            seen.struck_at = stack.strike(cell.what, row, signal.Signals[cell.fault])
            failed, seen.seconds = _works_again(stack, name, spare)
            asked.result()
        if spare:
            seen.trained.append(spare)
        seen.texts += failed
        stack.wait_all_ready()
        # What was struck may have been the cage of a worker, which is not the worker itself.
        assert not is_alive(row) or row != stack.pid(cell.what)
    stack.require_history(name, ("hello", before.text))
    seen.kept.append("all earlier turns")


def _ask_restart(stack: FaultStack, name: str) -> None:
    # It may be answered with 502: the start that it asked for was struck.
    with contextlib.suppress(httpx.HTTPError), stack.served.http() as http:
        http.post(f"/services/{name}/restart", timeout=START_S)


def _starting_row(stack: FaultStack, name: str, old: int) -> int:
    """Return the id of a process that is starting, once it is there."""
    deadline = time.monotonic() + START_S
    while True:
        row = stack.status()[name]
        if row["pid"] not in (None, old):
            if row["state"] != "starting":
                raise MissedError
            return int(row["pid"])
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _strike_stopping(stack: FaultStack, seen: Seen, name: str) -> None:
    cell = seen.cell
    before = stack.answered(name)
    pids, pid = stack.pids(), stack.pid(cell.what)
    began = time.monotonic()
    stack.served.process.send_signal(signal.SIGTERM)
    if not is_alive(pid):
        raise MissedError
    stack.strike(cell.what, pid, signal.Signals[cell.fault])
    if cell.what == SUPERVISOR and cell.fault == "SIGSTOP":
        time.sleep(STOPPED_S)
        stack.strike(SUPERVISOR, pid, signal.SIGCONT)
    stack.served.wait()
    gone_s = all_gone(pids)
    seen.texts.append(f"the stop takes {time.monotonic() - began:.0f} s")
    assert gone_s < 15
    stack.close()
    began = time.monotonic()
    stack.start()
    stack.answered(f"{name}-again")
    seen.seconds = time.monotonic() - began
    stack.require_history(name, ("hello", before.text))
    seen.kept.append("all earlier turns")
