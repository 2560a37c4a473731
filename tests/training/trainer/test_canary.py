"""The canary over a real store and a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import END, FakeEngine, byte_tokenizer, encode, says

from hermes_tui_training.api.config import CanaryConfig
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import CanaryAnswer
from hermes_tui_training.chat_template.renderer import Chat
from hermes_tui_training.engine.base import EngineStats
from hermes_tui_training.store.store import Store
from hermes_tui_training.trainer.canary import Canary

QUESTIONS = ("Hello?", "1 + 1?")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_tui_training.trainer.canary._IDLE_POLL_S", 0.005)


class Bench:
    def __init__(self, root: Path, **canary: Any) -> None:
        self.store = Store(root / "trajectories.db")
        self.engine = FakeEngine()
        self.config = CanaryConfig(**{"prompts": QUESTIONS, **canary})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        canary = Canary(
            store=self.store,
            engine=self.engine,
            chat=Chat(byte_tokenizer()),
            config=self.config,
        )
        canary.start()
        try:
            yield
        finally:
            await canary.stop()

    async def publish(self, version: int) -> None:
        await self.engine.swap(Path(), version)
        payload = {"policy_version": version, "seconds": 0.0}
        self.store.events.add(EventKind.VERSION_PUBLISHED, payload)

    async def until_asked(self, version: int) -> list[CanaryAnswer]:
        await until(lambda: len(self.store.canaries.answers(version)) == len(self.config.prompts))
        return self.store.canaries.answers(version)

    def events(self, kind: EventKind) -> list[dict[str, Any]]:
        return [event.payload for event in self.store.events.stored() if event.kind == kind]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # any condition, told by nobody
            await asyncio.sleep(0.005)


async def test_each_version_answers_each_question_once(bench: Bench) -> None:
    bench.engine.scripts = [says("hi"), says("2")]
    async with bench.running():
        first = await bench.until_asked(0)
        bench.engine.scripts = [says("hi there"), says("3")]
        await bench.publish(1)
        await bench.until_asked(1)
    assert [(a.prompt, a.text, a.status, a.finish_reason) for a in first] == [
        ("Hello?", "hi", "answered", "stop"),
        ("1 + 1?", "2", "answered", "stop"),
    ]
    assert first[0].token_ids == (*encode("hi"), END)
    assert first[0].logprobs == (-0.5, -0.5 - 1 / 1024, -0.5 - 2 / 1024)
    both = bench.store.canaries.answers()
    assert [(a.policy_version, a.text) for a in both] == [
        (0, "hi"),
        (0, "2"),
        (1, "hi there"),
        (1, "3"),
    ]
    prompt, sampling = bench.engine.requests[0]
    assert prompt == encode("<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\n")
    assert (sampling.temperature, sampling.max_tokens) == (0.0, 32)
    said = bench.events(EventKind.CANARY_ANSWERED)
    assert [(p["policy_version"], p["text"], p["num_tokens"]) for p in said[:2]] == [
        (0, "hi", 3),
        (0, "2", 2),
    ]
    # A restart asks nothing again.
    bench.engine.requests.clear()
    async with bench.running():
        bench.engine.scripts = [says("x"), says("y")]
        await bench.publish(2)
        await bench.until_asked(2)
    assert len(bench.engine.requests) == 2
    assert {a.policy_version for a in bench.store.canaries.answers()} == {1, 2}


async def test_it_is_no_session_and_nothing_is_trained(bench: Bench) -> None:
    async with bench.running():
        await bench.until_asked(0)
    assert bench.store.sessions.newest() == []
    assert bench.store.episodes.find() == []
    assert bench.store.completions.num_untrained() == {}


async def test_it_waits_until_nobody_else_asks(bench: Bench) -> None:
    bench.engine.num_running = 1
    looks = 0
    stats = bench.engine.stats

    def counted() -> EngineStats:
        nonlocal looks
        looks += 1
        return stats()

    bench.engine.stats = counted  # type: ignore[method-assign]
    async with bench.running():
        await until(lambda: looks > 3)
        assert bench.engine.requests == []
        bench.engine.num_running = 0
        await bench.until_asked(0)


async def test_a_newer_version_skips_it_and_that_is_said(bench: Bench) -> None:
    bench.engine.num_running = 1
    async with bench.running():
        await asyncio.sleep(0)
        await bench.publish(1)
        skipped = await bench.until_asked(0)
        bench.engine.num_running = 0
        await bench.until_asked(1)
    assert [(a.status, a.reason, a.text) for a in skipped] == [
        ("skipped", "version 1 came", "")
    ] * 2
    assert {p["policy_version"] for p in bench.events(EventKind.CANARY_SKIPPED)} == {0}
    assert {a.policy_version for a in bench.store.canaries.answers()} == {1}


async def test_an_answer_of_two_versions_is_none(bench: Bench) -> None:
    bench.engine.scripts = [says("half", hold_after=2), says("2")]
    async with bench.running():
        await until(lambda: bench.engine.num_running == 1)
        await bench.publish(1)
        bench.engine.release.set()
        await bench.until_asked(1)
        skipped, whole = await bench.until_asked(0)
    assert (skipped.status, skipped.token_ids) == ("skipped", ())
    assert (whole.status, whole.text) == ("answered", "2")
    assert bench.engine.num_closed_early == 1


async def test_a_failing_engine_is_written_down_and_the_next_version_asked(bench: Bench) -> None:
    bench.engine.scripts = [says("x", fails="no memory"), says("2")]
    async with bench.running():
        failed, fine = await bench.until_asked(0)
        await bench.publish(1)
        await bench.until_asked(1)
    assert (failed.status, failed.reason, failed.text) == ("failed", "no memory", "")
    assert fine.status == "answered"


async def test_no_questions_ask_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, prompts=())
    async with bench.running():
        await bench.publish(1)
        await asyncio.sleep(0)
    assert bench.engine.requests == []
    assert bench.store.canaries.answers() == []


async def test_a_cut_answer_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, prompts=("Hello?",), max_tokens=2)
    bench.engine.scripts = [says("long")]
    async with bench.running():
        (answer,) = await bench.until_asked(0)
    assert (answer.text, answer.finish_reason) == ("lo", "length")
